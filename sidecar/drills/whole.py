"""One drill from its file to its outcome: starts what it needs, runs it, judges it, ends what it started."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sidecar.cli.client import Admin
from sidecar.cli.outcome import EXIT_REFUSED, EXIT_UNREACHABLE
from sidecar.drills.fleet import Fleet, FleetError
from sidecar.drills.place import Place, PlaceError
from sidecar.drills.reports import Outcome
from sidecar.drills.run import Running
from sidecar.drills.scenario import lacking, shortened
from sidecar.drills.verdict import judge
from sidecar.heeding import hand_over, heed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType
    from typing import Any

    from sidecar.drills.record import Record
    from sidecar.drills.scenario import Drill, Start
    from sidecar.drills.show import Show


class DrillError(Exception):
    """A drill cannot begin; nothing was touched, or what was started has been ended. The text says why.

    ``code`` is the exit code for it.
    """

    def __init__(self, text: str, code: int = EXIT_REFUSED, *, interrupted: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.interrupted = interrupted


@dataclass(frozen=True, slots=True)
class Form:
    """How a drill is run: in its short form, and without which of the features that it tests."""

    short: bool = False
    without: str = ""

    def of(self, drill: Drill) -> Drill:
        """Return ``drill`` in this form.

        :raises KeyError: it does not say how ``without`` is switched off.
        """
        made = shortened(drill) if self.short else drill
        return lacking(made, self.without) if self.without else made

    def __str__(self) -> str:
        return f"without {self.without}" if self.without else ""


def run_drill(
    drill: Drill,
    form: Form,
    show: Show,
    environ: Mapping[str, str],
    admin: Admin,
    target: str,
    file: str,
    told: Callable[[int, FrameType | None], Any],
) -> Outcome:
    """Run one drill and return what it came to. ``admin`` and ``target`` are for one that starts nothing.

    SIGINT, SIGTERM and SIGHUP end it, and call ``told`` from its end on: what it came to is yet to be written down.

    Raises:
        DrillError: it cannot begin.
    """
    drill = form.of(drill)
    show.line(f"{drill.name}{f' {form}' if form.without else ''}: {drill.title}")
    began = datetime.now(UTC).isoformat(timespec="seconds")
    record = asyncio.run(_run(drill, show, environ, Place(admin, target), told))
    return Outcome(drill, record, judge(drill, record), began, str(form), file)


async def _run(
    drill: Drill, show: Show, environ: Mapping[str, str], place: Place, told: Callable[[int, FrameType | None], Any]
) -> Record:
    loop, here = asyncio.get_running_loop(), asyncio.current_task()
    assert here is not None  # noqa: S101  this runs in one
    heed(loop, lambda _: here.cancel())  # the drill has its own once it runs
    try:
        if drill.start is None:
            return await Running(drill, place, show).run()
        return await _in_a_fleet(drill, drill.start, show, environ)
    except (PlaceError, FleetError) as error:
        silent = isinstance(error, PlaceError) and error.code == EXIT_UNREACHABLE and drill.start is None
        raise DrillError(f"{drill.name}: {error}", EXIT_UNREACHABLE if silent else EXIT_REFUSED) from None
    except asyncio.CancelledError:
        raise DrillError(f"{drill.name}: interrupted", interrupted=True) from None
    finally:
        hand_over(loop, told)


async def _in_a_fleet(drill: Drill, start: Start, show: Show, environ: Mapping[str, str]) -> Record:
    fleet = Fleet(start, environ)
    show.note(f"starting {start.up.workers} workers and a sidecar")
    try:
        fleet.start()
        places = await fleet.ready()
        place = Place(Admin(admin=f"unix:{places.admin_socket}"), places.listen)
        return await Running(drill, place, show, fleet).run()
    finally:
        heed(asyncio.get_running_loop(), lambda _: show.note("already ending"))
        show.note("ending the workers and the sidecar")
        trouble = await fleet.end()
        if trouble:
            show.note(trouble)
