"""How much of a proven warmth is left after idleness: caches cool, clocks fall, pages go. Pure."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.endpoint import Candidate
    from router.policy import WarmthPolicy


def lasting_at(idle_s: float, policy: WarmthPolicy) -> float:
    """Return what is left of warmth after so long without work: 1 at first, then linearly less, ``floor`` at last."""
    after_s = policy.idle_after_s
    if after_s is None or idle_s <= after_s:
        return 1.0
    if idle_s >= after_s + policy.decay_s:
        return policy.floor
    return 1.0 - (1.0 - policy.floor) * (idle_s - after_s) / policy.decay_s


def idle_s_of(candidate: Candidate, age_s: float, now: float) -> float:
    """Return how long a candidate has done nothing, as far as is known here.

    That is since it came, became warm, was proven, or answered any process of this sidecar, or by its own report.
    """
    since = max(candidate.latency.sampled_at, candidate.endpoint.first_seen_at)
    if candidate.warm_at != inf:
        since = max(since, candidate.warm_at)
    if candidate.replica.proven_at is not None:
        since = max(since, candidate.replica.proven_at)
    told_s = candidate.endpoint.record.idle_for_s
    if told_s is not None:
        since = max(since, now - age_s - told_s)
    return max(0.0, now - since)
