"""One drill from its file to its outcome: starts what it needs, runs it, judges it, ends what it started."""

from __future__ import annotations

import asyncio
import signal
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.drills.record import Record
    from sidecar.drills.scenario import Drill
    from sidecar.drills.show import Show

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DrillError(Exception):
    """A drill cannot begin; nothing was touched, or what was started has been ended. The text says why.

    ``code`` is the exit code for it.
    """

    def __init__(self, text: str, code: int = EXIT_REFUSED, *, interrupted: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.interrupted = interrupted


class _InterruptedError(Exception):
    """Somebody ended it before it began."""


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
    drill: Drill, form: Form, show: Show, environ: Mapping[str, str], admin: Admin, target: str, file: str = ""
) -> Outcome:
    """Run one drill and return what it came to. ``admin`` and ``target`` are for one that starts nothing.

    Raises:
        DrillError: it cannot begin.
    """
    return asyncio.run(_run(form.of(drill), form, show, environ, admin, target, file))


async def _run(
    drill: Drill, form: Form, show: Show, environ: Mapping[str, str], admin: Admin, target: str, file: str
) -> Outcome:
    began = datetime.now(UTC).isoformat(timespec="seconds")
    show.line(f"{drill.name}{f' {form}' if form.without else ''}: {drill.title}")
    try:
        if drill.start is None:
            place = Place(admin, target)
            record = await Running(drill, place, show).run()
        else:
            record = await _in_a_fleet(drill, show, environ)
    except (PlaceError, FleetError) as error:
        silent = isinstance(error, PlaceError) and error.code == EXIT_UNREACHABLE and drill.start is None
        raise DrillError(f"{drill.name}: {error}", EXIT_UNREACHABLE if silent else EXIT_REFUSED) from None
    except _InterruptedError:
        raise DrillError(f"{drill.name}: interrupted", interrupted=True) from None
    return Outcome(drill, record, judge(drill, record), began, str(form), file)


async def _in_a_fleet(drill: Drill, show: Show, environ: Mapping[str, str]) -> Record:
    assert drill.start is not None  # noqa: S101  the caller looked
    loop, here = asyncio.get_running_loop(), asyncio.current_task()
    assert here is not None  # noqa: S101  this runs in one
    fleet = Fleet(drill.start, environ)
    show.note(f"starting {drill.start.up.workers} workers and a sidecar")
    for signum in _SIGNALS:  # the drill has its own once it runs
        loop.add_signal_handler(signum, here.cancel)
    try:
        fleet.start()
        places = await fleet.ready()
        place = Place(Admin(admin=f"unix:{places.admin_socket}"), places.listen)
        return await Running(drill, place, show, fleet).run()
    except asyncio.CancelledError:
        raise _InterruptedError from None
    finally:
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, show.note, "already ending")
        show.note("ending the workers and the sidecar")
        trouble = await fleet.end()
        if trouble:
            show.note(trouble)
        for signum in _SIGNALS:
            loop.remove_signal_handler(signum)
