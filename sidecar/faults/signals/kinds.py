"""The kinds of faults of signals, by name (``terms.TERMS``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.faults.signals.clock_skew import ClockSkewFault
from sidecar.faults.signals.half_loaded import HalfLoadedFault
from sidecar.faults.signals.memory_pressure import MemoryPressureFault
from sidecar.faults.signals.nan_load import NanLoadFault
from sidecar.faults.signals.telemetry_frozen import TelemetryFrozenFault
from sidecar.faults.signals.warmth_lost import WarmthLostFault
from sidecar.faults.signals.wrong_hash import WrongHashFault

if TYPE_CHECKING:
    from sidecar.faults.signals.kind import SignalKind

SIGNALS: Final[dict[str, SignalKind]] = {
    "warmth_lost": WarmthLostFault(),
    "telemetry_frozen": TelemetryFrozenFault(),
    "clock_skew": ClockSkewFault(),
    "nan_load": NanLoadFault(),
    "memory_pressure": MemoryPressureFault(),
    "wrong_hash": WrongHashFault(),
    "half_loaded": HalfLoadedFault(),
}
"""All kinds of signals, by name."""
