"""How faults of signals are asked for: their names, and the parameters that each goes by. Pure."""

from __future__ import annotations

from typing import Final

TERMS: Final[dict[str, tuple[str, ...]]] = {
    "warmth_lost": (),
    "telemetry_frozen": (),
    "clock_skew": ("skew_ms",),
    "nan_load": (),
    "memory_pressure": ("free_ratio",),
    "wrong_hash": (),
    "half_loaded": (),
}
"""The kinds, and their parameters."""

REQUESTS_ONLY: Final = ("tenant", "header")
"""What of a scope narrows a fault to some requests: endpoints' words have none of it."""
