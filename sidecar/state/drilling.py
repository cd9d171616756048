"""Which drill has this sidecar: one at a time, for as long as it goes on saying that it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrillLease:
    """``by`` is who took it. It ends at ``until`` where nobody prolongs it, the drill at ``ends_by`` (monotonic s)."""

    id: str
    name: str
    by: str
    until: float
    ends_by: float
