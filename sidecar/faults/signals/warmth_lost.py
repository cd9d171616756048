"""Warmth lost: replicas are reported cold, as after a restart that nobody noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.model import State
from sidecar.faults.signals.kind import SignalKind, with_replicas

if TYPE_CHECKING:
    from router.model import EndpointRecord, Replica
    from sidecar.faults.rules import FaultRule


class WarmthLostFault(SignalKind):
    """Has replicas cold, with no warmth, and nothing said of when they are warm again."""

    def record(self, record: EndpointRecord, rule: FaultRule) -> EndpointRecord:
        """Return the record without warmth."""
        return with_replicas(record, rule, _cold)


def _cold(replica: Replica) -> Replica:
    warmth = tuple((name, 0.0) for name, _ in replica.warmth)
    return replace(replica, state=State.COLD, warmth=warmth, warm_for_s=0.0, warm_in_s=0.0)
