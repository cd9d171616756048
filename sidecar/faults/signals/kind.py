"""What all faults of signals have in common: what an endpoint says is altered before anybody goes by it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.model import EndpointRecord, LoadReport, Replica
    from sidecar.faults.rules import FaultRule


class SignalKind:
    """One kind; without a change of its own it leaves everything as it is."""

    withholds: ClassVar[bool] = False
    """No word of the endpoint arrives: what it said last is gone by."""

    def record(self, record: EndpointRecord, rule: FaultRule) -> EndpointRecord | None:
        """Return what the endpoint's report becomes; None: it is refused, and so are the signs of life beside it."""
        return record

    def lateness_s(self, rule: FaultRule) -> float:
        """Return how much older than they are the endpoint's words seem."""
        return 0.0

    def report(self, report: LoadReport, rule: FaultRule) -> LoadReport | None:
        """Return what a load report becomes that comes beside answers; None: it is refused."""
        return report


def concerns(rule: FaultRule, record: EndpointRecord) -> bool:
    """Tell whether a rule is about an endpoint: by its id, and by what it holds."""
    if rule.endpoint and rule.endpoint != record.id:
        return False
    narrowed = rule.model or rule.version or rule.shard is not None
    return not narrowed or any(_is_meant(rule, replica) for replica in record.replicas)


def with_replicas(record: EndpointRecord, rule: FaultRule, change: Callable[[Replica], Replica]) -> EndpointRecord:
    """Return the record with those of its replicas changed that the rule is about."""
    return replace(
        record,
        replicas=tuple(change(replica) if _is_meant(rule, replica) else replica for replica in record.replicas),
    )


def _is_meant(rule: FaultRule, replica: Replica) -> bool:
    return (
        (not rule.model or rule.model == replica.model)
        and (not rule.version or rule.version == replica.version)
        and (rule.shard is None or rule.shard == replica.shard)
    )
