"""When something was noticed, taken out, let in again, and when callers were well again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.drills.record import Seen
from sidecar.drills.traffic import figures, slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.drills.record import FaultSpan, Look, Record

BEFORE_S = 5.0
"""How long before a fault counts as usual."""
GONE = Seen(out="gone")
SLOW_FACTOR = 2.0
"""Callers are not well while their P95 is over this times what it was before the fault, unless an objective says."""
ERROR_RATIO = 0.01
"""Callers are not well while more than this share of their requests fails."""


def detect_s(record: Record, fault: FaultSpan, endpoint: str) -> float | None:
    """Return how long until the sidecar showed that it noticed: out, breaker not closed, or half its share lost."""
    usual = _usual_share(record, fault.begin, endpoint)
    for look in _looks(record, fault.begin):
        seen = look.endpoints.get(endpoint, GONE)
        if seen.out or seen.breaker != "closed" or seen.share < usual / 2:
            return look.at - fault.begin
    return None


def eject_s(record: Record, fault: FaultSpan, endpoint: str) -> float | None:
    """Return how long until the endpoint was picked for nothing; None where it always was."""
    looks = _looks(record, fault.begin)
    return next((look.at - fault.begin for look in looks if look.endpoints.get(endpoint, GONE).out), None)


def return_s(record: Record, fault: FaultSpan, endpoint: str) -> float | None:
    """Return how long after the fault's end the endpoint was picked again, 0 where it was at once; None: never."""
    looks = list(_looks(record, fault.end))
    for number, look in enumerate(looks):
        if not look.endpoints.get(endpoint, GONE).out:
            return look.at - fault.end if number else 0.0
    return None


def recover_s(record: Record, fault: FaultSpan, slow_ms: float | None) -> float | None:
    """Return how long after the fault's begin callers were well again for good; 0 where they always were.

    They are not well in a second in which more than ``ERROR_RATIO`` of their requests fail, or their P95 is over
    ``slow_ms``, by default ``SLOW_FACTOR`` times that of the seconds before. None: they still were not at the end.
    """
    if slow_ms is None:
        usual = figures(record, [(max(0.0, fault.begin - BEFORE_S), fault.begin)]).p95_ms
        slow_ms = None if usual is None else SLOW_FACTOR * usual
    last, end = 0.0, 0.0
    for begin, part in slices(record):
        if begin + 1 <= fault.begin or not part.requests:
            continue
        end = begin + 1
        slow = slow_ms is not None and part.p95_ms is not None and part.p95_ms > slow_ms
        if slow or (part.error_ratio or 0.0) > ERROR_RATIO:
            last = end
    if not end or last == end:
        return None
    return max(0.0, last - fault.begin)


def _looks(record: Record, since: float) -> Iterator[Look]:
    return (look for look in record.looks if look.at >= since)


def _usual_share(record: Record, moment: float, endpoint: str) -> float:
    shares = [
        look.endpoints[endpoint].share
        for look in record.looks
        if moment - BEFORE_S <= look.at < moment and endpoint in look.endpoints
    ]
    return sum(shares) / len(shares) if shares else 0.0
