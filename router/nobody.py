"""Why nobody can be picked, and when it is worth to ask again: what a caller is told with the 503."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from router.groups import FEW
from router.model import State
from router.outcomes import Reason
from router.routes import NoCandidate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.endpoint import Candidate, Endpoint
    from router.glance import Glance
    from router.policy import FreshnessPolicy, Policies
    from router.routes import Route

_COMING = (State.LOADING, State.WARMING)
_SOONEST_FIRST = (
    Reason.AT_LIMIT,
    Reason.BUSY,
    Reason.QUARANTINED,
    Reason.BREAKER_OPEN,
    Reason.STALE,
    Reason.NOT_WARM,
    Reason.UNPROVEN,
    Reason.DRAINING,
    Reason.HELD,
    Reason.GROUP_INCOMPLETE,
    Reason.OTHER_VERSION,
    Reason.NOT_ENTRY,
)
"""Which reason is named where as many candidates share it: the one that is likely to pass first."""


def nobody(route: Route, out: Sequence[tuple[Glance, Reason]], policy: FreshnessPolicy, now: float) -> NoCandidate:
    """Say why a route has nobody: the reason that most share, counts of all, and when the first may be back.

    Those that answer through others are no reason, unless there is nobody to answer through.
    """
    if not out:
        return NoCandidate(Reason.NO_ENDPOINTS, policy.heartbeat_s, f"no endpoint serves {route.key}")
    asked = [(glance, reason) for glance, reason in out if glance.entry]
    if not asked:
        entry = route.policy.shards.entry
        detail = f"{route.key}: no endpoint holds shard {entry}, which takes the requests"
        return NoCandidate(Reason.GROUP_INCOMPLETE, policy.heartbeat_s, detail)
    out = asked
    counts = Counter(reason for _, reason in out)
    most = max(counts.values())
    leading = [reason for reason, count in counts.items() if count == most]
    reason = next((reason for reason in _SOONEST_FIRST if reason in leading), leading[0])
    parts = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))
    wait_s, warm_in_s = _soonest(out, policy, now)
    lacks = next((glance.lacks for glance, why in out if why is Reason.GROUP_INCOMPLETE), ())
    more = f" ({', '.join(map(str, lacks[:FEW]))})" if lacks else ""
    return NoCandidate(reason, wait_s, f"{route.key}: none of {len(out)} can be picked: {parts}{more}", warm_in_s)


def at_limit(key: str, full: Sequence[Endpoint], policies: Policies) -> NoCandidate:
    """Say that whoever could take the request has as much in flight as may be."""
    least = min(endpoint.limit for endpoint in full)
    if any(endpoint.limiter is not None and endpoint.limiter.limit == endpoint.limit for endpoint in full):
        named = f"policies.concurrency: {least} at the moment"
    elif least != policies.requests_per_endpoint or any(endpoint.cap < endpoint.limit for endpoint in full):
        named = "limits.connections_per_endpoint"
    else:
        named = f"limits.requests_per_endpoint: {least}"
    return NoCandidate(Reason.AT_LIMIT, 1.0, f"{key}: all {len(full)} that could take it are at their limit ({named})")


def only_tried(endpoint_id: str, retry_after_s: float) -> NoCandidate:
    """Say that the one endpoint left is the one that has just been tried."""
    return NoCandidate(Reason.ALREADY_TRIED, retry_after_s, f"only {endpoint_id} is left, and it has been tried")


def _soonest(out: Sequence[tuple[Glance, Reason]], policy: FreshnessPolicy, now: float) -> tuple[float, float]:
    """Return when the first may be back, and the same where that is what replicas on their way say; else 0.

    One that nobody loads is no reason to come back sooner.
    """
    backs = []
    predicted = True
    for glance, why in out:
        replica = glance.candidate.replica
        if why is not Reason.NOT_WARM:
            backs.append(_back_in_s(glance.candidate, why, policy, now))
            predicted = False
        elif replica.state in _COMING:
            backs.append(replica.warm_in_s or policy.heartbeat_s)
            predicted = predicted and replica.warm_in_s > 0
    if not backs:
        return policy.heartbeat_s, 0.0
    soonest = min(backs)
    return soonest, soonest if predicted else 0.0


def _back_in_s(candidate: Candidate, reason: Reason, policy: FreshnessPolicy, now: float) -> float:
    if reason is Reason.QUARANTINED:
        at = candidate.endpoint.quarantine.probe_at(alone=True)
        return policy.heartbeat_s if at == inf else max(0.0, at - now)
    if reason is Reason.BREAKER_OPEN:
        return max(0.0, candidate.breaker.until - now) or policy.heartbeat_s
    if reason is Reason.OUTLIER:
        return max(0.0, candidate.ejection.until - now)
    if reason is Reason.BUSY:
        return max(0.0, candidate.busy_until - now)
    return policy.heartbeat_s
