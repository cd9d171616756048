"""Injected faults: how many may be in force, those of the configuration, and whose requests may ask for one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from sidecar.settings.base import Base, Reload, doc

MOST_FAULT_S = 3600
"""No fault lasts longer."""
NAME = Annotated[str, Meta(max_length=256)]


class FaultDirection(StrEnum):
    """Which way of an attempt a fault is in."""

    REQUEST = "request"
    RESPONSE = "response"


class Distribution(StrEnum):
    """How a delay is drawn around ``delay_ms``."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    EXPONENTIAL = "exponential"


class HeaderTrust(StrEnum):
    """Whose requests may ask for a fault."""

    NOBODY = "nobody"
    TRUSTED = "trusted"


class Fault(Base, frozen=True):
    """One fault: what it does, to which attempts, and for how long."""

    kind: Annotated[str, doc(Reload.LIVE, "what it does, see docs/faults.md")]
    id: Annotated[
        str,
        doc(
            Reload.LIVE,
            "its name; another of the same name takes its place; empty: made up",
            form=(r"^[A-Za-z0-9._-]{0,64}\Z", "at most 64 letters, digits, dots, underscores or hyphens"),
        ),
    ] = ""
    for_s: Annotated[float, doc(Reload.LIVE, "it ends by itself after this", "seconds", gt=0, le=MOST_FAULT_S)] = 60.0
    ratio: Annotated[
        float, doc(Reload.LIVE, "share of the attempts in its scope that it strikes", "ratio", ge=0, le=1)
    ] = 1.0
    direction: Annotated[
        FaultDirection | None, doc(Reload.LIVE, "which way it is in; null: as its kind is by default")
    ] = None
    model: Annotated[NAME, doc(Reload.LIVE, "strikes attempts for this model only; empty: for any")] = ""
    version: Annotated[NAME, doc(Reload.LIVE, "... on replicas of this version only")] = ""
    shard: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None, doc(Reload.LIVE, "... of this shard only; null: of any", "shard")
    ] = None
    endpoint: Annotated[NAME, doc(Reload.LIVE, "... on this endpoint only")] = ""
    tenant: Annotated[NAME, doc(Reload.LIVE, "... of this tenant only, see policies.admission.tenant")] = ""
    header: Annotated[
        NAME, doc(Reload.LIVE, "... of requests with this field only, NAME, or NAME: VALUE for one value")
    ] = ""
    status: Annotated[Annotated[int, Meta(ge=400, le=599)] | None, doc(Reload.LIVE, "what abort answers", "status")] = (
        None
    )
    grpc_status: Annotated[
        Annotated[int, Meta(ge=1, le=16)] | None, doc(Reload.LIVE, "what abort answers gRPC calls", "gRPC code")
    ] = None
    delay_ms: Annotated[
        Annotated[float, Meta(gt=0, le=300_000)] | None, doc(Reload.LIVE, "how long something is late", "milliseconds")
    ] = None
    jitter_ms: Annotated[
        Annotated[float, Meta(gt=0, le=300_000)] | None,
        doc(Reload.LIVE, "how far delays are from delay_ms, see distribution", "milliseconds"),
    ] = None
    distribution: Annotated[
        Distribution | None,
        doc(
            Reload.LIVE,
            "uniform: within jitter_ms; normal: jitter_ms is the deviation; exponential: jitter_ms more on average",
        ),
    ] = None
    after_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 40)] | None, doc(Reload.LIVE, "how much passes before it acts", "bytes")
    ] = None
    after_events: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 30)] | None,
        doc(Reload.LIVE, "how many events (gRPC: messages) pass before it acts", "events"),
    ] = None
    bytes_per_s: Annotated[
        Annotated[float, Meta(ge=1, le=1 << 40)] | None, doc(Reload.LIVE, "how fast bytes pass", "bytes a second")
    ] = None
    piece_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None, doc(Reload.LIVE, "how much passes at a time", "bytes")
    ] = None
    every_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 30)] | None, doc(Reload.LIVE, "one byte of so many is touched", "bytes")
    ] = None
    skew_ms: Annotated[
        Annotated[float, Meta(gt=0, le=300_000)] | None,
        doc(Reload.LIVE, "how much older what an endpoint says seems", "milliseconds"),
    ] = None
    free_ratio: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        doc(Reload.LIVE, "how much of its memory seems free at most", "ratio"),
    ] = None


SCOPE = ("model", "version", "shard", "endpoint", "tenant", "header")
PARAMETERS = (
    "status",
    "grpc_status",
    "delay_ms",
    "jitter_ms",
    "distribution",
    "after_bytes",
    "after_events",
    "bytes_per_s",
    "piece_bytes",
    "every_bytes",
    "skew_ms",
    "free_ratio",
)
"""The fields that only some kinds take."""


class Faults(Base, frozen=True):
    """Failures that are injected on purpose: none by default."""

    most: Annotated[
        int, doc(Reload.LIVE, "faults in force at once, however they were asked for; 0: none", "faults", ge=0, le=64)
    ] = 16
    most_attempts: Annotated[
        int,
        doc(
            Reload.LIVE,
            "attempts of one process that faults touch at once; beyond that attempts go unharmed",
            "attempts",
            ge=1,
            le=65536,
        ),
    ] = 256
    headers: Annotated[
        HeaderTrust,
        doc(Reload.LIVE, "whose requests may ask for faults: nobody's, or of callers in listeners[].trusted_networks"),
    ] = HeaderTrust.NOBODY
    rules: Annotated[
        tuple[Fault, ...],
        doc(Reload.LIVE, "in force from when the configuration that names them first is, each for its for_s"),
    ] = ()


def parameters_of(fault: Fault) -> dict[str, object]:
    """Return the fields of ``fault`` that only some kinds take, as far as they are given."""
    return {name: value for name in PARAMETERS if (value := getattr(fault, name)) is not None}


def fields_of(fault: Fault) -> dict[str, object]:
    """Return all of ``fault`` but its name and its time."""
    return {name: value for name, value in msgspec.structs.asdict(fault).items() if name not in ("id", "for_s")}
