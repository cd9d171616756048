"""Files of halves: callers' are traces of ``warmroute record``, workers' are JSON lines of their own logs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from sidecar.traffic.attribution.joining import Half, Side
from sidecar.traffic.traces.recorded import Recorded, opening_of
from sidecar.traffic.traces.trace import MAX_REQUESTS, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class WorkerLine(msgspec.Struct, frozen=True):
    """One line of a worker. ``at``: when it began, seconds of 1970; other fields are not looked at."""

    request_id: str
    at: _Seconds
    took_s: _Seconds
    worker: str
    failed: bool = False


_WORKER: Final = msgspec.json.Decoder(WorkerLine)
_CALLER: Final = msgspec.json.Decoder(Recorded)


def callers(path: Path) -> list[Half]:
    """Read a recorded trace. Requests without an id, or of which it is not known how long they took, have no half.

    Raises:
        TraceError: it is none, or does not say when it began.
    """
    lines = _lines(path)
    where, first = next(lines, (f"{path}:1", b""))
    opening = opening_of(where, first)
    try:
        began = datetime.fromisoformat(opening.began)
    except ValueError:
        raise TraceError(f"{where}: began: {opening.began!r} is no date, and moments need one") from None
    began_s = (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp()
    found = []
    for where, line in lines:
        try:
            one = _CALLER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"{where}: {error}") from None
        if one.request_id and one.took_s is not None:
            failed = one.ended is not None and one.ended.failed
            found.append(Half(Side.CALLER, one.request_id, began_s + one.at_s, one.took_s, failed=failed))
    return found


def workers(path: Path) -> list[Half]:
    """Read what workers did.

    Raises:
        TraceError: a line is none of :class:`WorkerLine`.
    """
    found = []
    for where, line in _lines(path):
        try:
            one = _WORKER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"{where}: {error}") from None
        found.append(Half(Side.WORKER, one.request_id, one.at, one.took_s, one.worker, one.failed))
    return found


def as_they_became_known(halves: Iterable[Half]) -> list[tuple[float, Half]]:
    """Return halves by when they were over, each by its own clock: that is when its line was written."""
    return sorted(((half.began_s + half.took_s, half) for half in halves), key=lambda one: one[0])


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number > MAX_REQUESTS + 1:
                    raise TraceError(f"{path}:{number}: more than {MAX_REQUESTS} requests; cut the file into several")
                if line.strip():
                    yield f"{path}:{number}", line
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
