"""Who may be picked. One class per reason; the first that objects names the reason.

Order matters for what people read: what the endpoint itself says comes before what this sidecar thinks of it.
Whether a replica is asked itself or through another comes next to last, so that ``not_entry`` means "fit"; being busy
comes last, so that ``busy`` means "would be picked but for that": those are picked all the same where nobody else is
left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.model import State, StoreMode
from router.outcomes import Reason

if TYPE_CHECKING:
    from router.protocols import Candidate, Filter


class Warm:
    """Only a replica whose first run has been proven."""

    name = "warm"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object unless the replica is warm; a draining one is told apart."""
        state = candidate.replica.state
        if state is State.WARM:
            return None
        return Reason.DRAINING if state is State.DRAINING else Reason.NOT_WARM


class Proven:
    """Not a replica whose connections broke since warm-up requests proved it: another process may stand there now.

    So no live request is the probe of its quarantine: warm-up requests are, and it is back when they succeeded.
    """

    name = "proven"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object until warm-up requests that were begun after the last break have succeeded."""
        proven_at = candidate.replica.proven_at
        return None if proven_at is None or candidate.broke_at <= proven_at else Reason.UNPROVEN


class NotDraining:
    """Not an endpoint that said it is leaving."""

    name = "not_draining"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where the endpoint drains."""
        return Reason.DRAINING if candidate.record.draining else None


class NotHeld:
    """Not an endpoint that an operator drained at this sidecar."""

    name = "not_held"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where it is held."""
        return Reason.HELD if candidate.held else None


class GroupComplete:
    """Only a replica whose group can answer: every shard is there, warm, and of one generation."""

    name = "group_complete"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where the group lacks something (``router/groups.py``)."""
        return Reason.GROUP_INCOMPLETE if candidate.lacks else None


class Consistent:
    """Not a replica that keeps saying that it loaded something else than most of its version."""

    name = "consistent"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where it is inconsistent."""
        return Reason.INCONSISTENT if candidate.inconsistent else None


class Fresh:
    """Only an endpoint that was heard from within the TTL."""

    name = "fresh"

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where the last report is too old (ages stand still while the store is silent)."""
        return Reason.STALE if candidate.age_s >= self._ttl_s else None


class BreakerAdmits:
    """Not an endpoint whose breaker is open, or half open with every trial taken."""

    name = "breaker_admits"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where the breaker blocks."""
        return Reason.BREAKER_OPEN if candidate.breaker_open else None


class NoOutlier:
    """Not a replica that is out because it failed much more than the others."""

    name = "no_outlier"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where it is ejected as an outlier."""
        return Reason.OUTLIER if candidate.outlier else None


class NotQuarantined:
    """Not an endpoint in quarantine; its probe is begun by the cluster, not drawn."""

    name = "not_quarantined"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where it is in quarantine."""
        return Reason.QUARANTINED if candidate.quarantined else None


class Entry:
    """Only the replica that takes requests for its group; the others answer through it."""

    name = "entry"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where it is another one."""
        return None if candidate.entry else Reason.NOT_ENTRY


class NotBusy:
    """Not an endpoint that pushed back, until the time it named."""

    name = "not_busy"

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Object where it is busy."""
        return Reason.BUSY if candidate.busy else None


def default_filters(ttl_s: float) -> tuple[Filter, ...]:
    """Return the filters in the order in which they are asked."""
    return (
        Warm(),
        Proven(),
        NotDraining(),
        NotHeld(),
        GroupComplete(),
        Consistent(),
        Fresh(ttl_s),
        BreakerAdmits(),
        NoOutlier(),
        NotQuarantined(),
        Entry(),
        NotBusy(),
    )
