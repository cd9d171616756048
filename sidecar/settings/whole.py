"""The whole configuration of one sidecar."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from router.policy import (
    AffinityPolicy,
    BackPressurePolicy,
    BreakerPolicy,
    ConcurrencyPolicy,
    ConsistencyPolicy,
    FreshnessPolicy,
    HedgingPolicy,
    KeyPolicy,
    LadderPolicy,
    LatencyPolicy,
    ModelPolicy,
    OutlierPolicy,
    Policies,
    QuarantinePolicy,
    RampPolicy,
    RetryPolicy,
    ScoringPolicy,
    ShardPolicy,
    WarmthPolicy,
)
from sidecar.settings.admission import Admission
from sidecar.settings.base import Base, Reload, doc
from sidecar.settings.bounds import Limits, Overload, Timeouts
from sidecar.settings.dns import DnsServers
from sidecar.settings.faults import Faults
from sidecar.settings.models import Endpoint, Model
from sidecar.settings.recognise import Recognise
from sidecar.settings.sockets import Admin, Listener, UpstreamTls
from sidecar.settings.store import StateStore
from sidecar.settings.versions import serve_policy
from sidecar.settings.warmups import shape_policy


class Policy(Base, frozen=True):
    """The router's tunables; the defaults stand in router/policy/."""

    scoring: ScoringPolicy = msgspec.field(default_factory=ScoringPolicy)
    freshness: FreshnessPolicy = msgspec.field(default_factory=FreshnessPolicy)
    ramp: RampPolicy = msgspec.field(default_factory=RampPolicy)
    warmth: WarmthPolicy = msgspec.field(default_factory=WarmthPolicy)
    quarantine: QuarantinePolicy = msgspec.field(default_factory=QuarantinePolicy)
    consistency: ConsistencyPolicy = msgspec.field(default_factory=ConsistencyPolicy)
    outlier: OutlierPolicy = msgspec.field(default_factory=OutlierPolicy)
    back_pressure: BackPressurePolicy = msgspec.field(default_factory=BackPressurePolicy)
    breaker: BreakerPolicy = msgspec.field(default_factory=BreakerPolicy)
    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    latency: LatencyPolicy = msgspec.field(default_factory=LatencyPolicy)
    hedging: HedgingPolicy = msgspec.field(default_factory=HedgingPolicy)
    ladder: LadderPolicy = msgspec.field(default_factory=LadderPolicy)
    concurrency: ConcurrencyPolicy = msgspec.field(default_factory=ConcurrencyPolicy)
    admission: Admission = msgspec.field(default_factory=Admission)


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


class LogLevel(StrEnum):
    """What is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Logging(Base, frozen=True):
    """Structured logs on standard error."""

    format: Annotated[LogFormat, doc(Reload.RESTART, "json: one object a line; text: for people")] = LogFormat.JSON
    level: Annotated[LogLevel, doc(Reload.RESTART, "least level written")] = LogLevel.INFO


class Settings(Base, frozen=True):
    """One sidecar's whole configuration."""

    version: Annotated[int, doc(Reload.RESTART, "schema version, always 1", "version", ge=1, le=1)]
    listeners: Annotated[tuple[Listener, ...], doc(Reload.RESTART, "where to accept"), Meta(min_length=1)]
    admin: Admin = msgspec.field(default_factory=Admin)
    state: StateStore = msgspec.field(default_factory=StateStore)
    models: Annotated[tuple[Model, ...], doc(Reload.LIVE, "what requests may ask for")] = ()
    endpoints: Annotated[tuple[Endpoint, ...], doc(Reload.LIVE, "static endpoints that hold several models")] = ()
    upstream_tls: UpstreamTls = msgspec.field(default_factory=UpstreamTls)
    dns: DnsServers = msgspec.field(default_factory=DnsServers)
    policies: Policy = msgspec.field(default_factory=Policy)
    recognise: Recognise = msgspec.field(default_factory=Recognise)
    limits: Limits = msgspec.field(default_factory=Limits)
    overload: Overload = msgspec.field(default_factory=Overload)
    faults: Faults = msgspec.field(default_factory=Faults)
    timeouts: Timeouts = msgspec.field(default_factory=Timeouts)
    logging: Logging = msgspec.field(default_factory=Logging)


def model_policies(settings: Settings) -> tuple[ModelPolicy, ...]:
    """Return what the router needs of each configured model."""
    return tuple(
        ModelPolicy(
            name=model.name,
            idempotent=model.idempotent,
            default=model.default,
            on_no_candidate=model.on_no_candidate,
            hedge=model.hedge,
            balancer=model.balancer,
            latency=model.latency,
            key=None if model.key is None else KeyPolicy(**msgspec.structs.asdict(model.key)),
            load_reports=model.load_reports,
            shapes=None if model.shapes is None else shape_policy(model.shapes),
            serve=serve_policy(model.versions),
            affinity=None if model.affinity is None else AffinityPolicy(**msgspec.structs.asdict(model.affinity)),
            shards=ShardPolicy(**msgspec.structs.asdict(model.shards)),
        )
        for model in settings.models
    )


def router_policies(settings: Settings) -> Policies:
    """Return the router's tunables."""
    return Policies(
        **{
            field: getattr(settings.policies, field)
            for field in settings.policies.__struct_fields__
            if field != "admission"
        },
        requests_per_endpoint=settings.limits.requests_per_endpoint,
        connections_per_endpoint=settings.limits.connections_per_endpoint,
    )
