"""Telemetry frozen: nothing that an endpoint says arrives any more, while it serves on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sidecar.faults.signals.kind import SignalKind

if TYPE_CHECKING:
    from router.model import LoadReport
    from sidecar.faults.rules import FaultRule


class TelemetryFrozenFault(SignalKind):
    """Withholds reports, signs of life and load reports: what was said last grows old."""

    withholds: ClassVar[bool] = True

    def report(self, report: LoadReport, rule: FaultRule) -> LoadReport | None:
        """Refuse it."""
        return None
