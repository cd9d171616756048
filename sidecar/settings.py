"""The configuration schema: what a user may set, with each field's default, unit and reload class.

A field's metadata stands in its annotation: ``_doc(reload, text, unit)``. Reload classes: ``live`` takes effect on the
next request, ``new`` on new connections, ``restart`` needs a new process.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from router.policy import (
    BackPressurePolicy,
    BalancerName,
    BreakerPolicy,
    FreshnessPolicy,
    HedgingPolicy,
    KeyPolicy,
    LatencyPolicy,
    ModelPolicy,
    OnNoCandidate,
    Policies,
    QuarantinePolicy,
    RampPolicy,
    RetryPolicy,
    ScoringPolicy,
)
from sidecar.http1.forwarding import MODEL_HEADER


class Reload(StrEnum):
    """When a changed value takes effect."""

    LIVE = "live"
    NEW = "new connections"
    RESTART = "restart"


def _doc(
    reload: Reload,
    text: str,
    unit: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    form: tuple[str, str] | None = None,
) -> Meta:
    """Document and bound a field.

    ``form`` is a pattern for text, and what it asks for in words; the pattern is empty where it stands at the type, as
    it must in a field that may be null.
    """
    extra = {"reload": reload.value, "unit": unit, "form": form[1] if form else ""}
    return Meta(description=text, extra=extra, ge=ge, gt=gt, le=le, pattern=form[0] or None if form else None)  # type: ignore[call-overload,no-any-return]


LABEL = (r"^[A-Za-z0-9._-]{0,128}\Z", "at most 128 letters, digits, dots, underscores or hyphens")
"""Form of a name for metrics, logs and paths; without a colon, so that it never is another one's HOST:PORT."""


Seconds = Annotated[float, Meta(gt=0, le=86400)]
"""A duration in a field that may be null: msgspec takes bounds where the number stands."""


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All parts of the configuration: immutable, and strict about unknown fields."""


class Protocol(StrEnum):
    """What is spoken on a listener."""

    HTTP = "http"
    GRPC = "grpc"


class ClientAuth(StrEnum):
    """Whether callers must show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class TlsVersion(StrEnum):
    """The least version of TLS that is spoken."""

    V1_2 = "1.2"
    V1_3 = "1.3"


class ListenerTls(Base, frozen=True):
    """TLS on a listener. Files are followed: a changed one is used by the next handshake, within a second."""

    cert_file: Annotated[str, _doc(Reload.NEW, "certificate with what leads to its CA, PEM", "path")]
    key_file: Annotated[str, _doc(Reload.NEW, "its private key, PEM, without a password", "path")]
    ca_file: Annotated[str | None, _doc(Reload.NEW, "CAs that callers' certificates must lead to, PEM", "path")] = None
    client_auth: Annotated[
        ClientAuth, _doc(Reload.NEW, "none: callers are not asked; optional: what they show must be good; required")
    ] = ClientAuth.NONE
    allowed_names: Annotated[
        tuple[str, ...],
        _doc(
            Reload.NEW,
            "callers let in, by subjectAltName: SPIFFE ids (a final /* for all below it), DNS names (*.example.org for "
            "one label); empty: all with a good certificate",
            "names",
        ),
    ] = ()
    min_version: Annotated[TlsVersion, _doc(Reload.NEW, 'least version, "1.2" or "1.3" (in quotes)')] = TlsVersion.V1_2


class Listener(Base, frozen=True):
    """A socket that the sidecar accepts on."""

    address: Annotated[str, _doc(Reload.RESTART, "where to accept, HOST:PORT or unix:/PATH", "address")]
    name: Annotated[str, _doc(Reload.RESTART, "label in metrics and logs; the address where empty", form=LABEL)] = ""
    protocol: Annotated[
        Protocol, _doc(Reload.RESTART, "http: HTTP/1.1; grpc: gRPC over HTTP/2, to grpc:// endpoints")
    ] = Protocol.HTTP
    processes: Annotated[
        int, _doc(Reload.RESTART, "data processes, each with a socket of its own", "processes", ge=1, le=64)
    ] = 2
    backlog: Annotated[
        int,
        _doc(
            Reload.RESTART,
            "accept queue; the kernel caps it at net.core.somaxconn",
            "connections",
            ge=1,
            le=65535,
        ),
    ] = 4096
    fastopen_queue: Annotated[
        int, _doc(Reload.RESTART, "TCP_FASTOPEN queue; 0 turns it off", "connections", ge=0, le=65535)
    ] = 256
    unix_mode: Annotated[
        str,
        _doc(
            Reload.RESTART,
            "mode of the socket's file, where the address is a unix:/PATH",
            form=(r"^0[0-7]{3}\Z", 'an octal mode in quotes, such as "0660"'),
        ),
    ] = "0660"
    tls: Annotated[ListenerTls | None, _doc(Reload.RESTART, "null: plain")] = None
    default_model: Annotated[str | None, _doc(Reload.LIVE, "model for requests that name none")] = None
    trusted_networks: Annotated[
        tuple[str, ...],
        _doc(
            Reload.NEW,
            "whose forwarding and warmroute-* fields are believed: networks as 10.0.0.0/8, or unix for Unix sockets",
            "networks",
        ),
    ] = ()
    model_header: Annotated[
        str | None,
        _doc(
            Reload.NEW,
            "field that names a model, NAME or NAME@VERSION, where the path does not; null: none does",
            "field name",
        ),
    ] = MODEL_HEADER


Number = Annotated[int, Meta(ge=1, le=1 << 20)]
"""A limit in a field that may be null."""


class Limits(Base, frozen=True):
    """What one process accepts at most."""

    head_bytes: Annotated[int, _doc(Reload.NEW, "request or response head", "bytes", ge=1024, le=1 << 20)] = 65536
    target_bytes: Annotated[int, _doc(Reload.NEW, "request target", "bytes", ge=64, le=1 << 20)] = 16384
    fields: Annotated[int, _doc(Reload.NEW, "header fields of one head", "fields", ge=8, le=10000)] = 100
    body_bytes: Annotated[int, _doc(Reload.NEW, "request body", "bytes", ge=0)] = 64 << 20
    replay_bytes: Annotated[
        int, _doc(Reload.NEW, "request body kept for a retry; over it there is none", "bytes", ge=0)
    ] = 1 << 20
    connections: Annotated[
        int, _doc(Reload.NEW, "downstream connections of one process", "connections", ge=1, le=1 << 20)
    ] = 4096
    handshakes: Annotated[
        int, _doc(Reload.NEW, "TLS handshakes under way in one process", "handshakes", ge=1, le=1 << 20)
    ] = 512
    model_prefix_bytes: Annotated[
        int,
        _doc(
            Reload.NEW,
            "beginning of a JSON body that is kept until it has named its model",
            "bytes",
            ge=1024,
            le=1 << 30,
        ),
    ] = 8 << 20
    model_prefixes_bytes: Annotated[
        int,
        _doc(
            Reload.NEW,
            "the same of all requests of one process, a quarter of its memory (`overload`) at most",
            "bytes",
            ge=1 << 20,
        ),
    ] = 256 << 20
    pipelined: Annotated[int, _doc(Reload.NEW, "bytes read ahead of the request being answered", "bytes", ge=4096)] = (
        131072
    )
    calls_per_connection: Annotated[
        int, _doc(Reload.NEW, "gRPC calls at once on one connection, a caller's or a worker's", "calls", ge=1, le=65535)
    ] = 100
    early_resets_per_s: Annotated[
        Number | None,
        _doc(
            Reload.NEW,
            "gRPC calls that a caller may give up within 100 ms and unanswered, at once and per second, on one "
            "connection; more: REFUSED_STREAM. null: ten for each of calls_per_connection",
            "calls/s",
        ),
    ] = None
    pooled_per_endpoint: Annotated[
        int, _doc(Reload.NEW, "idle upstream connections kept per endpoint", "connections", ge=0, le=65536)
    ] = 256
    requests_per_endpoint: Annotated[
        Number | None,
        _doc(Reload.LIVE, "requests in flight at one endpoint, of one process; null for no limit", "requests"),
    ] = None
    connections_per_endpoint: Annotated[
        Number | None,
        _doc(Reload.NEW, "connections to one endpoint, of one process; null for no limit", "connections"),
    ] = None
    body_rate_bytes_per_s: Annotated[
        int, _doc(Reload.NEW, "a caller that sends its body slower is told 408; 0: however slow", "bytes/s", ge=0)
    ] = 240
    read_rate_bytes_per_s: Annotated[
        int, _doc(Reload.NEW, "a caller that takes a waiting answer slower is cut; 0: however slow", "bytes/s", ge=0)
    ] = 240
    rate_grace_s: Annotated[
        float, _doc(Reload.NEW, "shortest time over which the rate of a body is measured", "seconds", ge=1, le=3600)
    ] = 10.0
    read_grace_s: Annotated[
        float, _doc(Reload.NEW, "shortest time over which a caller's reading is measured", "seconds", ge=1, le=3600)
    ] = 60.0
    probes_per_s: Annotated[
        float,
        _doc(
            Reload.LIVE,
            "questions that endpoints are probed with, of the whole sidecar; over it probes come later than set",
            "questions/s",
            ge=1,
            le=100000,
        ),
    ] = 500.0


class Overload(Base, frozen=True):
    """When a data process refuses new work, before it runs out of memory, descriptors or time."""

    memory_bytes: Annotated[
        Annotated[int, Meta(ge=32 << 20)] | None,
        _doc(
            Reload.LIVE,
            "resident memory of one data process; null: an equal share of 80% of what the container or machine has, at "
            "least 96 MiB",
            "bytes",
        ),
    ] = None
    soft_ratio: Annotated[
        float,
        _doc(Reload.LIVE, "share from which on nothing grows and what is idle is closed", "ratio", gt=0, le=1),
    ] = 0.85
    hard_ratio: Annotated[
        float, _doc(Reload.LIVE, "share from which on new requests are refused with 503", "ratio", gt=0, le=1)
    ] = 0.95
    loop_lag_s: Annotated[
        Annotated[float, Meta(ge=0.05, le=60)] | None,
        _doc(Reload.LIVE, "lateness of the event loop that counts as all of its time; null: ignored", "seconds"),
    ] = 1.0
    reserve_connections: Annotated[
        int,
        _doc(
            Reload.LIVE,
            "connections over the limit of which questions for health are answered",
            "connections",
            ge=0,
            le=4096,
        ),
    ] = 64


class Timeouts(Base, frozen=True):
    """How long each step may take."""

    connect_s: Annotated[float, _doc(Reload.NEW, "connect to a worker, TLS included", "seconds", gt=0, le=3600)] = 1.0
    handshake_s: Annotated[float, _doc(Reload.NEW, "TLS handshake of a caller", "seconds", gt=0, le=3600)] = 5.0
    response_head_s: Annotated[float, _doc(Reload.NEW, "request sent to response head", "seconds", gt=0, le=86400)] = (
        30.0
    )
    stream_idle_s: Annotated[float, _doc(Reload.NEW, "silence inside a response body", "seconds", gt=0, le=86400)] = (
        300.0
    )
    tunnel_idle_s: Annotated[
        float, _doc(Reload.NEW, "silence of a tunnel (WebSocket, Upgrade) both ways", "seconds", gt=0, le=86400)
    ] = 3600.0
    client_head_s: Annotated[
        float, _doc(Reload.NEW, "first byte to end of a request head", "seconds", gt=0, le=3600)
    ] = 10.0
    client_body_idle_s: Annotated[
        float, _doc(Reload.NEW, "silence inside a request body", "seconds", gt=0, le=3600)
    ] = 30.0
    keep_alive_s: Annotated[float, _doc(Reload.NEW, "idle downstream connection", "seconds", gt=0, le=86400)] = 75.0
    upstream_keep_alive_s: Annotated[float, _doc(Reload.NEW, "idle upstream connection", "seconds", gt=0, le=86400)] = (
        55.0
    )
    connection_age_s: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        _doc(
            Reload.NEW,
            "the next answer after this (less up to a tenth, at random) ends a downstream connection; null: no limit",
            "seconds",
        ),
    ] = 3600.0
    upstream_connection_age_s: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        _doc(
            Reload.NEW,
            "an upstream connection takes no request after this (less up to a tenth, at random); null: no limit",
            "seconds",
        ),
    ] = None
    drain_wait_s: Annotated[
        float,
        _doc(
            Reload.LIVE,
            "after SIGTERM: not ready, but accepting and answering as before, so that load balancers notice",
            "seconds",
            ge=0,
            le=3600,
        ),
    ] = 0.0
    drain_idle_s: Annotated[
        float,
        _doc(Reload.LIVE, "then: how long connections that ask nothing are kept open", "seconds", ge=0, le=3600),
    ] = 1.0
    drain_s: Annotated[
        float, _doc(Reload.LIVE, "grace period after SIGTERM and drain_wait_s", "seconds", ge=0, le=86400)
    ] = 30.0
    total_s: Annotated[
        Seconds | None,
        _doc(Reload.NEW, "a request's head to the end of its answer, all tries; null for no limit", "seconds"),
    ] = None
    try_s: Annotated[
        Seconds | None, _doc(Reload.NEW, "one try, to the end of its answer; null for no limit", "seconds")
    ] = None


class Admin(Base, frozen=True):
    """The admin API: reads are open on loopback, writes need the socket or the token."""

    socket: Annotated[str | None, _doc(Reload.RESTART, "Unix socket, mode 0600", "path")] = None
    address: Annotated[
        str | None,
        _doc(Reload.RESTART, "loopback HOST:PORT for reads, or with a token for writes", "HOST:PORT"),
    ] = "127.0.0.1:9901"
    token_file: Annotated[
        str | None, _doc(Reload.LIVE, "file whose content is the bearer token for writes over TCP", "path")
    ] = None


class UpstreamTls(Base, frozen=True):
    """TLS to workers (https://). Their certificates are always verified; files are followed as a listener's are."""

    ca_file: Annotated[str | None, _doc(Reload.NEW, "CAs, PEM; the system's where null", "path")] = None
    cert_file: Annotated[str | None, _doc(Reload.NEW, "certificate that workers are shown, PEM", "path")] = None
    key_file: Annotated[str | None, _doc(Reload.NEW, "its private key, PEM, without a password", "path")] = None
    server_name: Annotated[
        str | None, _doc(Reload.NEW, "name asked for and verified; the endpoint's HOST where null", "name")
    ] = None
    allowed_names: Annotated[
        tuple[str, ...],
        _doc(
            Reload.NEW,
            "names that a worker's certificate must hold one of, instead of the one asked for; forms as for listeners",
            "names",
        ),
    ] = ()
    min_version: Annotated[TlsVersion, _doc(Reload.NEW, 'least version, "1.2" or "1.3" (in quotes)')] = TlsVersion.V1_2


class StateTls(Base, frozen=True):
    """TLS towards the state store (with rediss://)."""

    ca_file: Annotated[str | None, _doc(Reload.RESTART, "CA bundle; the system's where null", "path")] = None
    cert_file: Annotated[str | None, _doc(Reload.RESTART, "client certificate", "path")] = None
    key_file: Annotated[str | None, _doc(Reload.RESTART, "client key", "path")] = None


class StateStore(Base, frozen=True):
    """The shared state."""

    url: Annotated[
        str,
        _doc(Reload.RESTART, "redis://, rediss://, unix:///PATH (user and password may stand in it), or none", "URL"),
    ] = "none"
    namespace: Annotated[
        str,
        _doc(
            Reload.RESTART,
            "stands in every key: wr:{NAMESPACE}:...",
            form=(r"^[A-Za-z0-9._-]{1,64}\Z", "1 to 64 letters, digits, dots, underscores or hyphens"),
        ),
    ] = "default"
    password_file: Annotated[
        str | None, _doc(Reload.RESTART, "file with the password, instead of one in the URL", "path")
    ] = None
    tls: StateTls = msgspec.field(default_factory=StateTls)


class ShardMode(StrEnum):
    """How a model's weights are split. ``replicated``: every endpoint holds all of them."""

    REPLICATED = "replicated"


class Shards(Base, frozen=True):
    """How a model is split over endpoints."""

    mode: Annotated[ShardMode, _doc(Reload.RESTART, "replicated: every endpoint holds the whole model")] = (
        ShardMode.REPLICATED
    )


class ProbeKind(StrEnum):
    """What a probed endpoint is, which says what it is asked (docs/signals.md)."""

    HTTP = "http"
    AUTO = "auto"
    TRITON = "triton"
    VLLM = "vllm"
    SGLANG = "sglang"
    KSERVE = "kserve"
    MLSERVER = "mlserver"
    NIM = "nim"


PROBE_PATH = "/v2/health/ready"
"""What a plain HTTP endpoint is asked where no path is given."""

UrlPath = Annotated[str, Meta(pattern=r"^/[!-~]*\Z")]
_PATH = ("", "a path that starts with / and holds neither spaces nor control characters")
ServedName = Annotated[str, Meta(pattern=r"^[!-~]{1,256}\Z")]


class Expectation(Base, frozen=True):
    """What makes the answer to a plain HTTP probe mean ready."""

    status: Annotated[
        Annotated[int, Meta(ge=100, le=599)] | None, _doc(Reload.LIVE, "this status; null: any 2xx", "status")
    ] = None
    body_contains: Annotated[
        str | None, _doc(Reload.LIVE, "text within the first 64 KiB of the body; null: bodies are not read")
    ] = None


class Probe(Base, frozen=True):
    """An active probe of static endpoints: whether they are ready, and what they say of their load."""

    kind: Annotated[
        ProbeKind,
        _doc(
            Reload.LIVE,
            "what the endpoints are; http: any server, asked one path; auto: found out from what they answer; "
            "gRPC endpoints are asked by grpc.health.v1, whatever stands here",
        ),
    ] = ProbeKind.HTTP
    path: Annotated[
        UrlPath | None,
        _doc(
            Reload.LIVE, "path that answers 2xx when ready; null: the kind's own (http: /v2/health/ready)", form=_PATH
        ),
    ] = None
    expect: Annotated[Expectation | None, _doc(Reload.LIVE, "with kind http: what means ready; null: any 2xx")] = None
    served_as: Annotated[
        ServedName | None,
        _doc(
            Reload.LIVE,
            'the model\'s name at the server, where that is another; "*": whatever it serves, so that it is asked for '
            "itself alone",
            form=("", "1 to 256 visible characters"),
        ),
    ] = None
    load: Annotated[
        bool, _doc(Reload.LIVE, "read the metrics page, too: queue, memory, and whether a run has succeeded")
    ] = True
    metrics_path: Annotated[
        UrlPath | None, _doc(Reload.LIVE, "path of the metrics page; null: the kind's own", form=_PATH)
    ] = None
    metrics_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        _doc(Reload.LIVE, "its port; null: the kind's own (triton: 8002, mlserver: 8082), else the endpoint's", "port"),
    ] = None
    interval_s: Annotated[
        float, _doc(Reload.LIVE, "time between probes, give or take a tenth", "seconds", ge=0.05, le=3600)
    ] = 1.0
    timeout_s: Annotated[float, _doc(Reload.LIVE, "time for one probe, all that it asks", "seconds", gt=0, le=3600)] = (
        1.0
    )


class ModelTimeouts(Base, frozen=True):
    """Times of one model's requests; what is null stands under timeouts."""

    response_head_s: Annotated[Seconds | None, _doc(Reload.NEW, "request sent to response head", "seconds")] = None
    stream_idle_s: Annotated[Seconds | None, _doc(Reload.NEW, "silence inside a response body", "seconds")] = None
    total_s: Annotated[Seconds | None, _doc(Reload.NEW, "a request's head to the end of its answer", "seconds")] = None
    try_s: Annotated[Seconds | None, _doc(Reload.NEW, "one try, to the end of its answer", "seconds")] = None


class Key(Base, frozen=True):
    """Where a request of a model whose balancer is keyed has its key: header or last_segment."""

    header: Annotated[
        str | None, _doc(Reload.LIVE, "field whose value is the key, the first one where it comes twice", "field name")
    ] = None
    last_segment: Annotated[
        bool, _doc(Reload.LIVE, "the key is what follows the last slash of the path, percent-decoded")
    ] = False
    load_factor: Annotated[
        float,
        _doc(
            Reload.LIVE,
            "an endpoint with so many times the mean in flight takes no more by its keys: the next one does",
            "times",
            ge=1,
            le=1000,
        ),
    ] = 1.25


class Model(Base, frozen=True):
    """One model, by the name that requests use."""

    name: Annotated[
        str,
        _doc(
            Reload.LIVE,
            "name as in /v2/models/NAME",
            form=(r"^[A-Za-z0-9._:-]{1,128}\Z", "1 to 128 letters, digits, dots, underscores, colons or hyphens"),
        ),
    ]
    shards: Shards = msgspec.field(default_factory=Shards)
    idempotent: Annotated[bool, _doc(Reload.LIVE, "a request may be executed twice: it may be retried once sent")] = (
        False
    )
    endpoints: Annotated[
        tuple[str, ...],
        _doc(Reload.LIVE, "static endpoints: http://HOST:PORT, https://, grpc://HOST:PORT or unix:/PATH", "URLs"),
    ] = ()
    default: Annotated[bool, _doc(Reload.LIVE, "takes requests that name no known model; at most one")] = False
    on_no_candidate: Annotated[OnNoCandidate, _doc(Reload.LIVE, "fail: 503 with Retry-After")] = OnNoCandidate.FAIL
    probe: Annotated[
        Probe | None, _doc(Reload.LIVE, "readiness probe of the static endpoints; null counts them as warm")
    ] = None
    timeouts: ModelTimeouts = msgspec.field(default_factory=ModelTimeouts)
    hedge: Annotated[
        bool, _doc(Reload.LIVE, "ask a second endpoint where the first is slow to answer; needs idempotent")
    ] = False
    balancer: Annotated[
        BalancerName,
        _doc(Reload.LIVE, "who is picked of those that may be: warm goes by weights and waits; keyed needs a key"),
    ] = BalancerName.WARM
    key: Annotated[Key | None, _doc(Reload.LIVE, "the key that the balancer keyed goes by")] = None
    load_reports: Annotated[
        bool,
        _doc(Reload.LIVE, "ask HTTP/1.1 workers for load reports (ORCA) in their answers, and go by them"),
    ] = False


class Endpoint(Base, frozen=True):
    """A static endpoint that holds several models."""

    url: Annotated[str, _doc(Reload.LIVE, "http://HOST:PORT, https://HOST:PORT or unix:/PATH", "URL")]
    models: Annotated[tuple[str, ...], _doc(Reload.LIVE, "NAME or NAME@VERSION of what it holds")]
    name: Annotated[
        str, _doc(Reload.LIVE, "endpoint id; where empty, the URL's HOST:PORT or the whole unix:/PATH", form=LABEL)
    ] = ""
    probe: Annotated[Probe | None, _doc(Reload.LIVE, "readiness probe; null counts it as warm")] = None


class Policy(Base, frozen=True):
    """The router's tunables; the defaults stand in router/policy.py."""

    scoring: ScoringPolicy = msgspec.field(default_factory=ScoringPolicy)
    freshness: FreshnessPolicy = msgspec.field(default_factory=FreshnessPolicy)
    ramp: RampPolicy = msgspec.field(default_factory=RampPolicy)
    quarantine: QuarantinePolicy = msgspec.field(default_factory=QuarantinePolicy)
    back_pressure: BackPressurePolicy = msgspec.field(default_factory=BackPressurePolicy)
    breaker: BreakerPolicy = msgspec.field(default_factory=BreakerPolicy)
    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    latency: LatencyPolicy = msgspec.field(default_factory=LatencyPolicy)
    hedging: HedgingPolicy = msgspec.field(default_factory=HedgingPolicy)


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

    format: Annotated[LogFormat, _doc(Reload.RESTART, "json: one object a line; text: for people")] = LogFormat.JSON
    level: Annotated[LogLevel, _doc(Reload.RESTART, "least level written")] = LogLevel.INFO


class Settings(Base, frozen=True):
    """One sidecar's whole configuration."""

    version: Annotated[int, _doc(Reload.RESTART, "schema version, always 1", "version", ge=1, le=1)]
    listeners: Annotated[tuple[Listener, ...], _doc(Reload.RESTART, "where to accept"), Meta(min_length=1)]
    admin: Admin = msgspec.field(default_factory=Admin)
    state: StateStore = msgspec.field(default_factory=StateStore)
    models: Annotated[tuple[Model, ...], _doc(Reload.LIVE, "what requests may ask for")] = ()
    endpoints: Annotated[tuple[Endpoint, ...], _doc(Reload.LIVE, "static endpoints that hold several models")] = ()
    upstream_tls: UpstreamTls = msgspec.field(default_factory=UpstreamTls)
    policies: Policy = msgspec.field(default_factory=Policy)
    limits: Limits = msgspec.field(default_factory=Limits)
    overload: Overload = msgspec.field(default_factory=Overload)
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
            key=None if model.key is None else KeyPolicy(**msgspec.structs.asdict(model.key)),
            load_reports=model.load_reports,
        )
        for model in settings.models
    )


def router_policies(settings: Settings) -> Policies:
    """Return the router's tunables."""
    return Policies(
        **{field: getattr(settings.policies, field) for field in settings.policies.__struct_fields__},
        requests_per_endpoint=settings.limits.requests_per_endpoint,
        connections_per_endpoint=settings.limits.connections_per_endpoint,
    )
