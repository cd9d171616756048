"""What sibling processes hear of ejections, and whom one can do without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.breaker import GuardState
from router.model import BreakerRule, EjectCause, EndpointEjected, EndpointReturned, Event

if TYPE_CHECKING:
    from router.endpoint import Candidate, Endpoint
    from router.policy import BreakerPolicy


def quarantine_event(endpoint: Endpoint, now: float) -> Event:
    """Return the event for siblings after an endpoint's quarantine began, went on or ended."""
    if endpoint.quarantine.active:
        return quarantined_event(endpoint, now)
    return EndpointReturned(endpoint.id, EjectCause.QUARANTINE, now)


def quarantined_event(endpoint: Endpoint, at: float) -> EndpointEjected:
    """Return the event for a quarantine that is in force, since ``at``."""
    quarantine = endpoint.quarantine
    return EndpointEjected(endpoint.id, EjectCause.QUARANTINE, quarantine.until, quarantine.level, at)


def switch_event(candidate: Candidate, now: float) -> Event:
    """Return the event for siblings after a breaker opened or closed."""
    breaker = candidate.breaker
    if breaker.state is GuardState.OPEN:
        if breaker.evidence is not None:
            candidate.latency.settle(now)
            breaker.evidence = candidate.measured(breaker.evidence)
        return breaker_event(candidate, now)
    of = (candidate.model, candidate.version, candidate.shard)
    return EndpointReturned(candidate.endpoint.id, EjectCause.BREAKER, now, *of)


def breaker_event(candidate: Candidate, at: float) -> EndpointEjected:
    """Return the event for a breaker that is open, since ``at``."""
    breaker = candidate.breaker
    return EndpointEjected(
        candidate.endpoint.id,
        EjectCause.BREAKER,
        breaker.until,
        1,
        at,
        candidate.model,
        candidate.version,
        breaker.rule,
        breaker.evidence,
        candidate.shard,
    )


def trials_event(candidate: Candidate) -> EndpointEjected:
    """Say what a breaker opened on, and where it is half open how its trials go."""
    event = breaker_event(candidate, candidate.breaker.since)
    if candidate.breaker.state is not GuardState.HALF_OPEN:
        return event
    return replace(event, trials=candidate.breaker.under_way, tried=candidate.breaker.tried)


def outlier_event(candidate: Candidate, at: float) -> EndpointEjected:
    """Return the event for a replica that is out as an outlier, since ``at``."""
    ejection = candidate.ejection
    return EndpointEjected(
        candidate.endpoint.id,
        EjectCause.OUTLIER,
        ejection.until,
        ejection.level,
        at,
        candidate.model,
        candidate.version,
        None,
        ejection.evidence,
        candidate.shard,
    )


def spares(candidate: Candidate, policy: BreakerPolicy, now: float) -> bool:
    """Return whether a replica that is merely slow can be done without.

    Enough others of its version are left that are not becoming slow as well: what is slow with most of them has another
    cause than the replica.
    """
    out, left = 1, 0
    for other in candidate.routes[-1].candidates:
        if other is candidate:
            continue
        if other.breaker.state is not GuardState.CLOSED and other.breaker.rule is BreakerRule.SURGE:
            out += 1
        elif now < other.fit_until:
            seen = other.breaker.look(now)
            if seen.calls >= policy.minimum_calls / 4 and seen.slow >= policy.surge_ratio * seen.calls / 2:
                out += 1
            else:
                left += 1
    return left > 0 and out <= policy.surge_most_ratio * (out + left)
