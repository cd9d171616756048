"""A fault, as processes and programs tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FaultTerms:
    """What one fault is. ``kind`` names what it does (``kinds.KINDS``), ``ratio`` is its toxicity in [0, 1].

    ``direction`` is ``request`` or ``response``, empty as its kind has it. What follows narrows it, empty or None
    matches all; ``header`` is ``NAME`` or ``NAME: VALUE``. The rest is for the kinds that take it, None where it was
    left out: then a kind goes by its own default. What people may ask for is ``sidecar.settings.Fault``.
    """

    id: str
    kind: str
    ratio: float
    direction: str = ""
    model: str = ""
    version: str = ""
    shard: int | None = None
    endpoint: str = ""
    tenant: str = ""
    header: str = ""
    status: int | None = None
    grpc_status: int | None = None
    delay_ms: float | None = None
    jitter_ms: float | None = None
    distribution: str | None = None
    after_bytes: int | None = None
    after_events: int | None = None
    bytes_per_s: float | None = None
    piece_bytes: int | None = None
    every_bytes: int | None = None
    skew_ms: float | None = None
    free_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class FaultRule(FaultTerms):
    """A fault in force, as the processes have it: it ends by itself at ``until`` (monotonic seconds)."""

    until: float = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class FaultShown(FaultTerms):
    """A fault in force, as the admin API shows it (``checking.document_of``): it ends by itself in ``left_s``."""

    left_s: float = field(kw_only=True)
