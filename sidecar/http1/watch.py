"""The times of a model's requests, and the watch that a request has which is bounded beyond the times of its steps.

Most requests have no watch and pay for none: one attribute is tested where they begin and where they end.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from sidecar.http1.hedging import Hedge
    from sidecar.http1.steps import Course
    from sidecar.settings import ModelTimeouts, Timeouts

TIMEOUT_FIELD: Final = b"x-request-timeout-ms: %d\r\n\r\n"
"""What a worker is told that is left of the time which the caller gave (RFC 9110 has no field for it)."""


class Times:
    """How long the steps of a model's requests may take, seconds; infinity where there is no limit.

    ``bounded``: there is a limit on all of a request or on a try. The texts name those two for people.
    """

    __slots__ = ("bounded", "response_head_s", "stream_idle_s", "total_s", "total_text", "try_s", "try_text")

    def __init__(self, timeouts: Timeouts, own: ModelTimeouts | None = None) -> None:
        self.response_head_s = timeouts.response_head_s
        self.stream_idle_s = timeouts.stream_idle_s
        self.total_s = inf
        self.try_s = inf
        total_s, try_s = timeouts.total_s, timeouts.try_s
        if own is not None:
            if own.response_head_s is not None:
                self.response_head_s = own.response_head_s
            if own.stream_idle_s is not None:
                self.stream_idle_s = own.stream_idle_s
            if own.total_s is not None:
                total_s = own.total_s
            if own.try_s is not None:
                try_s = own.try_s
        if total_s is not None:
            self.total_s = total_s
        if try_s is not None:
            self.try_s = try_s
        self.total_text = f"over {total_s} s (timeouts.total_s)"
        self.try_text = f"no whole answer in {try_s} s (timeouts.try_s)"
        self.bounded = total_s is not None or try_s is not None


class Watch:
    """What one request in hand is bounded by: when it must end, and how long one try may take.

    ``ends_at`` is monotonic seconds, ``limit`` says in words what is over then. ``told``: the caller gave a time of its
    own, so workers are told what is left of it, and a timer keeps it to the millisecond; other limits are looked at by
    the sweep. ``calm``: that is all there is to it, so it needs no end and serves the connection's next request too.
    ``course`` is that of a request that needs more than a pick (``special``), which ends with it.
    ``asked_at`` is when the request was whole, on routes that hedge; ``hedge`` the second try while it runs
    beside the first.
    """

    __slots__ = (
        "asked_at",
        "calm",
        "course",
        "ends_at",
        "hedge",
        "hedge_timer",
        "hedged",
        "limit",
        "timer",
        "times",
        "told",
        "try_s",
        "try_text",
    )

    def __init__(self, times: Times, timeout_ms: int, now: float, *, calm: bool = False) -> None:
        self.times = times
        self.calm = calm
        self.ends_at = now + times.total_s
        self.limit = times.total_text
        self.try_s = times.try_s
        self.try_text = times.try_text
        self.timer: asyncio.TimerHandle | None = None
        self.course: Course | None = None
        self.asked_at = inf
        self.hedge: Hedge | None = None
        self.hedge_timer: asyncio.TimerHandle | None = None
        self.hedged = False
        self.told = timeout_ms >= 0
        if self.told and timeout_ms / 1000 < times.total_s:
            self.ends_at = now + timeout_ms / 1000
            self.limit = f"over {timeout_ms} ms (x-request-timeout-ms)"

    @property
    def callers_own(self) -> bool:
        """True where it is the caller's own time that is over first, and not one that is configured."""
        return self.told and self.limit is not self.times.total_text

    def told_field(self, now: float) -> bytes:
        """Return the field that tells a worker how long it has from ``now``, and the head's end."""
        return TIMEOUT_FIELD % max(1, int(min(self.ends_at - now, self.try_s) * 1000))

    def close(self) -> None:
        """The request is over: nothing fires any more."""
        if self.course is not None:
            self.course.close()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.stop_hedging()

    def stop_hedging(self) -> None:
        """No second try is wanted from here on."""
        if self.hedge_timer is not None:
            self.hedge_timer.cancel()
            self.hedge_timer = None
