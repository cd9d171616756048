"""Half-loaded hot swap: new content is taking over, and does not come to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.model import State
from sidecar.faults.signals.kind import SignalKind, with_replicas
from sidecar.faults.signals.wrong_hash import another

if TYPE_CHECKING:
    from router.model import EndpointRecord, Replica
    from sidecar.faults.rules import FaultRule


class HalfLoadedFault(SignalKind):
    """Has replicas loading other content in their next generation, half as warm as they were."""

    def record(self, record: EndpointRecord, rule: FaultRule) -> EndpointRecord:
        """Return the record in the middle of a swap."""
        return with_replicas(record, rule, _half)


def _half(replica: Replica) -> Replica:
    return replace(
        another(replica),
        state=State.LOADING,
        warmth=tuple((name, value / 2) for name, value in replica.warmth),
        generation=replica.generation + 1,
        warm_for_s=0.0,
        warm_in_s=0.0,
    )
