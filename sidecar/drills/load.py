"""The drill's own load: timed requests through the open-loop sender, and what became of each."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from sidecar.drills import reaching
from sidecar.drills.record import Call
from sidecar.drills.scenario import Spacing
from sidecar.traffic.arrivals import poisson, steady
from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended
from sidecar.traffic.summary import UNCONNECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.drills.scenario import Load
    from sidecar.traffic.samples import Sample

GRACE_S = 1.0
"""How much longer than a request's own time its end is waited for."""
_LOST = UNCONNECTED | {Ended.CUT, Ended.FALSE_END, Ended.TIMED_OUT, Ended.UNSENT}
"""Ends in which a caller got no whole answer, not even an error."""
_STATUSES = frozenset({Ended.STATUS_4XX, Ended.STATUS_5XX})


def timed(load: Load, most_s: float) -> Iterator[Timed]:
    """Yield the requests of a load with their moments, for its ``for_s`` or ``most_s``, the shorter."""
    duration_s = most_s if load.for_s is None else min(load.for_s, most_s)
    if load.spacing is Spacing.EVEN:
        moments = steady(load.rate_per_s, duration_s)
    else:
        moments = poisson(load.rate_per_s, duration_s, random.Random(load.seed))  # noqa: S311  the same load each time
    ends_with = load.ends_with.encode()
    call = reaching.is_call(load)
    message = reaching.message(load) if call else b""
    for number, at_s in enumerate(moments):
        n, id_ = str(number % load.distinct), f"{load.seed}-{number}"
        yield Timed(
            at_s=at_s,
            method=load.method,
            target=_filled(load.path, n, id_),
            headers=tuple((name, _filled(value, n, id_)) for name, value in load.headers.items()),
            body=message if call else _filled(load.body, n, id_).encode(),
            call=call,
            ends_with=ends_with,
            timeout_s=load.timeout_s,
        )


def _filled(text: str, number: str, id_: str) -> str:
    return text.replace("$N", number).replace("$ID", id_) if "$" in text else text


def call_of(sample: Sample, offset_s: float) -> Call:
    """Return a sample as a drill keeps it; its run began ``offset_s`` after the drill."""
    ok = sample.ended is Ended.OK
    outcome = f"http_{sample.status}" if sample.ended in _STATUSES else sample.ended.value
    if sample.ended is Ended.GRPC_STATUS:
        outcome = f"grpc_{sample.grpc_status}"
    return Call(
        at=sample.intended_s + offset_s,
        latency_ms=1000 * sample.latency_s,
        ok=ok,
        outcome=outcome,
        degraded=sample.headers.get("warmroute-degraded", ""),
    )


class Sending:
    """One load under way, for ``most_s`` at most. ``now`` is seconds since the drill began."""

    def __init__(self, load: Load, target: str, now: Callable[[], float], most_s: float) -> None:
        self._load = load
        self._most_s = most_s
        self._now = now
        self._offset_s = 0.0
        self._sender = reaching.sender(load, target, self._take)
        self._task: asyncio.Task[None] | None = None
        self.calls: list[Call] = []
        """Those that have ended, in that order."""
        self.lost = 0
        self.wrong = 0
        self.clean_cut = 0

    @property
    def doubled(self) -> int:
        """Answers that came a second time."""
        return self._sender.unasked_answers

    def start(self) -> None:
        """Begin to send."""
        self._offset_s = self._now()
        self._task = asyncio.get_running_loop().create_task(self._sender.run(timed(self._load, self._most_s)))

    async def end(self, hurry: asyncio.Future[None]) -> None:
        """Send nothing more, and wait for what is under way, until ``hurry``; what has no end by then is lost."""
        if self._task is None:
            return
        self._sender.stop()
        most_s = self._load.timeout_s + GRACE_S
        await asyncio.wait({self._task, hurry}, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self.lost += self._sender.begun - self._sender.ended

    def ended_since(self, moment: float) -> Iterator[Call]:
        """Yield the calls that ended at ``moment`` or later."""
        for call in reversed(self.calls):
            if call.at + call.latency_ms / 1000 < moment:
                return
            yield call

    def _take(self, sample: Sample) -> None:
        self.calls.append(call_of(sample, self._offset_s))
        self.lost += sample.ended in _LOST
        self.wrong += sample.ended is Ended.WRONG
        self.clean_cut += sample.ended is Ended.FALSE_END
