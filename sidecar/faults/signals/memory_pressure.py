"""Fake memory pressure: an endpoint is told of with hardly any free memory, and has as much as before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.faults.signals.kind import SignalKind

if TYPE_CHECKING:
    from router.model import EndpointRecord, LoadReport
    from sidecar.faults.rules import FaultRule

DEFAULT_FREE_RATIO = 0.0


class MemoryPressureFault(SignalKind):
    """Leaves ``free_ratio`` of the memory free, and no more than there is."""

    def record(self, record: EndpointRecord, rule: FaultRule) -> EndpointRecord:
        """Return the record with little free memory."""
        ratio = _ratio(rule)
        free, total, told = record.free_memory_bytes, record.total_memory_bytes, record.free_memory_ratio
        if free is not None and total is not None:
            free = min(free, int(total * ratio))
        elif free is not None:
            free = int(free * ratio)
        if told is not None or free is None:
            told = ratio if told is None else min(told, ratio)
        return replace(record, free_memory_bytes=free, free_memory_ratio=told)

    def report(self, report: LoadReport, rule: FaultRule) -> LoadReport | None:
        """Return the report with little free memory, where it tells of memory."""
        if report.free_memory_ratio is None:
            return report
        return replace(report, free_memory_ratio=min(report.free_memory_ratio, _ratio(rule)))


def _ratio(rule: FaultRule) -> float:
    return DEFAULT_FREE_RATIO if rule.free_ratio is None else rule.free_ratio
