"""Clock skew: what an endpoint says seems older than it is, as by a clock that is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.signals.kind import SignalKind

if TYPE_CHECKING:
    from sidecar.faults.rules import FaultRule

DEFAULT_SKEW_MS = 10_000.0
"""Beyond the age at which records are stale (5 s where nothing is configured)."""


class ClockSkewFault(SignalKind):
    """Shifts the moments of reports and signs of life into the past, by ``skew_ms``."""

    def lateness_s(self, rule: FaultRule) -> float:
        """Return the skew."""
        return (DEFAULT_SKEW_MS if rule.skew_ms is None else rule.skew_ms) / 1000
