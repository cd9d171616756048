"""A fault in force, as the processes tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One injected fault. ``kind`` names what it does (``sidecar.faults.KINDS``), ``ratio`` is its toxicity in [0, 1].

    It ends by itself at ``until`` (monotonic seconds). ``direction`` is ``request`` or ``response``, empty as its kind
    has it. What follows narrows it, empty or None matches all; ``header`` is ``NAME`` or ``NAME: VALUE``. The rest is
    for the kinds that take it, None where it was left out: then a kind goes by its own default.
    """

    id: str
    kind: str
    ratio: float
    until: float
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
