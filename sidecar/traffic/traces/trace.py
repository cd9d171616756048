"""What all kinds of traces come to, and what is wrong with one that does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.traffic.requests import Timed

MAX_REQUESTS: Final = 2_000_000
MAX_SPAN_S: Final = 1e9
"""From the first request to the last: more is a moment that is none."""
MAX_BODY_BYTES: Final = 1 << 30
"""Of all bodies of one trace together: they are in memory while it is replayed."""


class TraceError(Exception):
    """A trace cannot be used; the message names the file, the line and a remedy."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read and checked, whole.

    ``requests`` counts those in flows too. ``duration_s``: from its first moment to its last. ``left_out``: why some of
    it cannot be sent, with their numbers.
    """

    kind: str
    requests: int
    duration_s: float
    make: Callable[[], Iterator[Timed]]
    """Makes its requests: the first at 0 s, in the order of their moments."""
    left_out: Counter[str] = field(default_factory=Counter)

    def only(self, *, calls: bool) -> Trace:
        """Return the trace without what a target cannot take: gRPC's takes ``calls`` alone, any other none.

        Of a flow all has to fit.
        """
        fits, others, first_s, last_s = 0, 0, -1.0, 0.0
        for request in self.make():
            size = 1 + len(request.then)
            if _fits(request, calls):
                fits += size
                first_s, last_s = request.at_s if first_s < 0 else first_s, request.at_s
            else:
                others += size
        if not others:
            return self
        first_s = max(0.0, first_s)
        why = "no gRPC call, which the target takes alone" if calls else "a gRPC call, which needs a grpc:// target"
        left_out = self.left_out + Counter({why: others})
        make = self.make
        return replace(
            self,
            requests=fits,
            duration_s=last_s - first_s,
            make=lambda: (replace(one, at_s=one.at_s - first_s) for one in make() if _fits(one, calls)),
            left_out=left_out,
        )

    def at(self, speed: float) -> Iterator[Timed]:
        """Make its requests with their spacing, and what callers thought in between, divided by ``speed``.

        How long a caller waits before it hangs up stays what it was.
        """
        for request in self.make():
            yield request if speed == 1.0 else _at(request, speed)


def _fits(request: Timed, calls: bool) -> bool:
    return all(one.call is calls for one in (request, *request.then))


def _at(request: Timed, speed: float) -> Timed:
    return replace(
        request,
        at_s=request.at_s / speed,
        parts=tuple((after_s / speed, data) for after_s, data in request.parts),
        then=tuple(_at(one, speed) for one in request.then),
    )
