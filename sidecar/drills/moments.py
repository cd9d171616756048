"""When something was noticed, taken out, let in again, and when callers were well again. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from router.outcomes import Reason
from sidecar.drills.picks import LEAST_ATTEMPTS, windows
from sidecar.drills.record import Seen
from sidecar.drills.traffic import figures, slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.drills.record import FaultSpan, Record

BEFORE_S = 5.0
"""How long before a fault counts as usual."""
MOST_S = 3.0
"""Over so long before a fault, at least, the usual share is told."""
FOR_SURE = 30.0
"""So many attempts are expected of an endpoint in a stretch that tells of its share."""
GONE = Seen(out="gone")
NEVER: Final = "never"
DRAINED = frozenset({Reason.HELD.value, Reason.DRAINING.value})
"""Why an endpoint is out that an operator drained, or that drains itself: no fault's doing."""
SLOW_FACTOR = 2.0
"""Callers are not well while their P95 is over this times what it was before the fault, unless an objective says."""
ERROR_RATIO = 0.01
"""Callers are not well while more than this share of their requests fails."""


def detect_s(record: Record, fault: FaultSpan, endpoint: str) -> float | str:
    """Return how long until the sidecar showed that it noticed: out, breaker not closed, or half its share lost.

    A text instead says why there is no such time; so with ``eject_s`` and ``return_s``.
    """
    before = _not_well(record, fault, endpoint)
    if before:
        return before
    found = [at for at, seen in _struck(record, fault, endpoint) if seen.out or seen.breaker != "closed"]
    lost = _lost_half(record, fault, endpoint)
    if lost is not None:
        found.append(lost)
    return min(found) - fault.begin if found else NEVER


def eject_s(record: Record, fault: FaultSpan, endpoint: str) -> float | str:
    """Return how long until the endpoint was picked for nothing, which an operator's draining is not."""
    before = _not_well(record, fault, endpoint)
    if before:
        return before
    return next((at - fault.begin for at, seen in _struck(record, fault, endpoint) if seen.out), NEVER)


def return_s(record: Record, fault: FaultSpan, endpoint: str) -> float | str:
    """Return how long after the fault's end the endpoint was picked again, 0 where it was at once.

    A killed process ends its fault by being there again.
    """
    ejected = eject_s(record, fault, endpoint)
    if isinstance(ejected, str):
        return "cannot be measured: it was never ejected" if ejected == NEVER else ejected
    over = fault.end if fault.there_again is None else min(fault.end, fault.there_again)
    since = max(over, fault.begin + ejected)
    until = _next_fault(record, over, endpoint)
    looks = [look for look in record.looks if since <= look.at < until]
    for number, look in enumerate(looks):
        if not look.endpoints.get(endpoint, GONE).out:
            return look.at - over if number else max(0.0, since - over)
    return NEVER


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


def _not_well(record: Record, fault: FaultSpan, endpoint: str) -> str:
    """Return why nothing can be told of a fault's effect: the endpoint was not well before it. "" where it was."""
    before = next((look for look in reversed(record.looks) if look.at <= fault.begin), None)
    if before is None:
        return "cannot be measured: nothing was seen before the fault"
    seen = before.endpoints.get(endpoint, GONE)
    if seen.out:
        return f"cannot be measured: it was out ({seen.out}) before the fault"
    return "" if seen.breaker == "closed" else f"cannot be measured: its breaker was {seen.breaker} before the fault"


def _struck(record: Record, fault: FaultSpan, endpoint: str) -> Iterator[tuple[float, Seen]]:
    """Yield when and what the endpoint was from the fault's begin to the first look after its end.

    Less what follows from draining. A killed process is noticed late where it is there again soon: that counts up to
    the fault's time, or the next fault of the same endpoint.
    """
    until = fault.end
    if fault.there_again is not None:
        until = max(fault.there_again, min(until, _next_fault(record, fault.there_again, endpoint)))
    drained = False
    for look in record.looks:
        if look.at < fault.begin:
            continue
        seen = look.endpoints.get(endpoint, GONE)
        drained = seen.out in DRAINED or (drained and bool(seen.out))
        if not drained:
            yield look.at, seen
        if look.at > until:
            return


def _next_fault(record: Record, since: float, endpoint: str) -> float:
    """Return when the next fault strikes the endpoint."""
    begins = [one.begin for one in record.faults if one.endpoint == endpoint and one.begin >= since]
    return min(begins, default=math.inf)


def _lost_half(record: Record, fault: FaultSpan, endpoint: str) -> float | None:
    """Return when an endpoint's share of the attempts was under half of what it was before the fault.

    Each stretch has so many attempts that this does not come by chance; one in which it was drained tells nothing.
    """
    usual = 0.0
    for _, _, shares in windows(record.scrapes, fault.begin - BEFORE_S, fault.begin, LEAST_ATTEMPTS, MOST_S):
        usual = shares.get(endpoint, 0.0)
    if not usual:
        return None
    drained = [look.at for look in record.looks if look.endpoints.get(endpoint, GONE).out in DRAINED]
    for begin, end, shares in windows(record.scrapes, fault.begin, fault.end, FOR_SURE / usual):
        if shares.get(endpoint, 0.0) < usual / 2 and not any(begin <= at <= end for at in drained):
            return end
    return None
