"""Lines of halves: callers' are traces of ``warmroute record``, workers' are JSON lines of their own logs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeVar

import msgspec

from sidecar.traffic.attribution.joining import Half, Side
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.recorded import opening_of
from sidecar.traffic.traces.trace import MAX_REQUESTS, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
FAILED_CODES: Final = frozenset({2, 4, 13, 14, 15})
"""gRPC's UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS: what workers and the way to them fail by."""
MAX_LINE_BYTES: Final = 128 << 20
MAX_PROCESSES: Final = 1000
"""Workers' processes whose lines are counted; of more, gaps are not seen."""


class CallerLine(msgspec.Struct, frozen=True):
    """What is needed of a line of a recorded trace (:class:`~sidecar.traffic.traces.recorded.Recorded`)."""

    at_s: _Seconds
    request_id: _Text = ""
    took_s: _Seconds | None = None
    ended: Ended | None = None
    worker: _Text = ""
    grpc_status: int | None = None

    @property
    def failed(self) -> bool:
        """True where the way or a worker failed: what a caller did wrong itself is nobody else's."""
        if self.ended is Ended.GRPC_STATUS:
            return self.grpc_status in FAILED_CODES
        return self.ended is not None and self.ended.failed and self.ended is not Ended.STATUS_4XX


class WorkerLine(msgspec.Struct, frozen=True):
    """One line of a worker. ``at``: when it began, seconds of 1970; other fields are not looked at.

    ``seq`` counts the lines of one process, ``epoch``. Lines of other workers than warmroute's may do without what has
    a default.
    """

    request_id: _Text
    at: _Seconds
    took_s: _Seconds
    worker: _Text
    failed: bool = False
    model: _Text = ""
    version: _Text = ""
    attempt: int = 1
    epoch: _Text = ""
    seq: int | None = None
    queue_s: _Seconds | None = None
    run_s: _Seconds | None = None


_CALLER: Final = msgspec.json.Decoder(CallerLine)
_WORKER: Final = msgspec.json.Decoder(WorkerLine)


class Lines(Protocol):
    """Makes halves of the lines of one file, or of those that take each other's place."""

    def begin(self) -> None:
        """What comes next is the first line of a file."""

    def half(self, where: str, line: bytes) -> Half | None:
        """Return what a line says; None where that is no half.

        Raises:
            TraceError: it is none of these lines.
        """


class CallerLines:
    """Of a recorded trace. Requests without an id, or of which it is not known how long they took, have no half."""

    def __init__(self) -> None:
        self._first = True
        self._began_s = 0.0
        self.since_s: float | None = None
        """When the first trace began, seconds of 1970: nothing is known of callers before that."""
        self.sampled_ratio = 1.0

    def begin(self) -> None:
        """See :class:`Lines`."""
        self._first = True

    def half(self, where: str, line: bytes) -> Half | None:
        """See :class:`Lines`."""
        if self._first:
            self._open(where, line)
            return None
        one = _decoded(where, line, _CALLER)
        if not one.request_id or one.took_s is None:
            return None
        return Half(Side.CALLER, one.request_id, self._began_s + one.at_s, one.took_s, one.worker, one.failed)

    def _open(self, where: str, line: bytes) -> None:
        opening = opening_of(where, line)
        try:
            began = datetime.fromisoformat(opening.began)
        except ValueError:
            raise TraceError(f"{where}: began: {opening.began!r} is no date, and moments need one") from None
        self._began_s = (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp()
        self._first = False
        if self.since_s is None:
            self.since_s = self._began_s
        self.sampled_ratio = min(self.sampled_ratio, opening.sampled_ratio)


class WorkerLines:
    """Of workers' logs; of one worker or of several."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}
        self.lost = 0
        """Lines that were not written, or not read: gaps in their numbers."""

    def begin(self) -> None:
        """See :class:`Lines`."""

    def half(self, where: str, line: bytes) -> Half | None:
        """See :class:`Lines`."""
        one = _decoded(where, line, _WORKER)
        key = ""
        if one.seq is not None:
            key = f"{one.epoch}:{one.seq}"
            self._count(one.worker, one.epoch, one.seq)
        label = f"{one.model}@{one.version}" if one.version else one.model
        return Half(
            Side.WORKER,
            one.request_id,
            one.at,
            one.took_s,
            one.worker,
            one.failed,
            label,
            one.attempt,
            key,
            one.queue_s,
            one.run_s,
        )

    def _count(self, worker: str, epoch: str, seq: int) -> None:
        process = (worker, epoch)
        last = self._last.get(process)
        if last is None:
            if len(self._last) < MAX_PROCESSES:
                self._last[process] = seq
        elif seq > last:
            self.lost += seq - last - 1
            self._last[process] = seq


def read(path: Path, lines: Lines) -> list[Half]:
    """Read a file, whole.

    Raises:
        TraceError: a line is none of these.
    """
    lines.begin()
    found = (lines.half(where, line) for where, line in _lines(path))
    return [half for half in found if half is not None]


def as_they_became_known(halves: Iterable[Half]) -> list[tuple[float, Half]]:
    """Return halves by when they were over, each by its own clock: that is when its line was written."""
    return sorted(((half.ended_s, half) for half in halves), key=lambda one: one[0])


def _decoded(where: str, line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{where}: {error}; correct it, or take the line out") from None


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                if number > MAX_REQUESTS + 1:
                    raise TraceError(f"{path}:{number}: more than {MAX_REQUESTS} requests; cut the file into several")
                if len(line) > MAX_LINE_BYTES:
                    raise TraceError(f"{path}:{number}: a line of more than {MAX_LINE_BYTES} bytes; take it out")
                if line.strip():
                    yield f"{path}:{number}", line
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
