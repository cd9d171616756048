"""What a sidecar accepts at most, and how long each step may take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sidecar.settings.base import Base, Number, Reload, Seconds, doc


class Limits(Base, frozen=True):
    """What one process accepts at most."""

    head_bytes: Annotated[int, doc(Reload.NEW, "request or response head", "bytes", ge=1024, le=1 << 20)] = 65536
    target_bytes: Annotated[int, doc(Reload.NEW, "request target", "bytes", ge=64, le=1 << 20)] = 16384
    fields: Annotated[int, doc(Reload.NEW, "header fields of one head", "fields", ge=8, le=10000)] = 100
    body_bytes: Annotated[int, doc(Reload.NEW, "request body", "bytes", ge=0)] = 64 << 20
    replay_bytes: Annotated[
        int, doc(Reload.NEW, "request body kept for a retry; over it there is none", "bytes", ge=0)
    ] = 1 << 20
    connections: Annotated[
        int, doc(Reload.NEW, "downstream connections of one process", "connections", ge=1, le=1 << 20)
    ] = 4096
    handshakes: Annotated[
        int, doc(Reload.NEW, "TLS handshakes under way in one process", "handshakes", ge=1, le=1 << 20)
    ] = 512
    model_prefix_bytes: Annotated[
        int,
        doc(
            Reload.NEW,
            "beginning of a JSON body that is kept until it has named its model",
            "bytes",
            ge=1024,
            le=1 << 30,
        ),
    ] = 8 << 20
    model_prefixes_bytes: Annotated[
        int,
        doc(
            Reload.NEW,
            "the same of all requests of one process, a quarter of its memory (`overload`) at most",
            "bytes",
            ge=1 << 20,
        ),
    ] = 256 << 20
    pipelined: Annotated[int, doc(Reload.NEW, "bytes read ahead of the request being answered", "bytes", ge=4096)] = (
        131072
    )
    calls_per_connection: Annotated[
        int, doc(Reload.NEW, "gRPC calls at once on one connection, a caller's or a worker's", "calls", ge=1, le=65535)
    ] = 100
    early_resets_per_s: Annotated[
        Number | None,
        doc(
            Reload.NEW,
            "gRPC calls that a caller may give up within 100 ms and unanswered, at once and per second, on one "
            "connection; more: REFUSED_STREAM. null: ten for each of calls_per_connection",
            "calls/s",
        ),
    ] = None
    pooled_per_endpoint: Annotated[
        int, doc(Reload.NEW, "idle upstream connections kept per endpoint", "connections", ge=0, le=65536)
    ] = 256
    requests_per_endpoint: Annotated[
        Number | None,
        doc(Reload.LIVE, "requests in flight at one endpoint, of one process; null for no limit", "requests"),
    ] = None
    connections_per_endpoint: Annotated[
        Number | None,
        doc(Reload.NEW, "connections to one endpoint, of one process; null for no limit", "connections"),
    ] = None
    body_rate_bytes_per_s: Annotated[
        int, doc(Reload.NEW, "a caller that sends its body slower is told 408; 0: however slow", "bytes/s", ge=0)
    ] = 240
    read_rate_bytes_per_s: Annotated[
        int, doc(Reload.NEW, "a caller that takes a waiting answer slower is cut; 0: however slow", "bytes/s", ge=0)
    ] = 240
    rate_grace_s: Annotated[
        float, doc(Reload.NEW, "shortest time over which the rate of a body is measured", "seconds", ge=1, le=3600)
    ] = 10.0
    read_grace_s: Annotated[
        float, doc(Reload.NEW, "shortest time over which a caller's reading is measured", "seconds", ge=1, le=3600)
    ] = 60.0
    probes_per_s: Annotated[
        float,
        doc(
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
        doc(
            Reload.LIVE,
            "resident memory of one data process; null: an equal share of 80% of what the container or machine has, at "
            "least 96 MiB",
            "bytes",
        ),
    ] = None
    soft_ratio: Annotated[
        float,
        doc(Reload.LIVE, "share from which on nothing grows and what is idle is closed", "ratio", gt=0, le=1),
    ] = 0.85
    hard_ratio: Annotated[
        float, doc(Reload.LIVE, "share from which on new requests are refused with 503", "ratio", gt=0, le=1)
    ] = 0.95
    loop_lag_s: Annotated[
        Annotated[float, Meta(ge=0.05, le=60)] | None,
        doc(Reload.LIVE, "lateness of the event loop that counts as all of its time; null: ignored", "seconds"),
    ] = 1.0
    reserve_connections: Annotated[
        int,
        doc(
            Reload.LIVE,
            "connections over the limit of which questions for health are answered",
            "connections",
            ge=0,
            le=4096,
        ),
    ] = 64


class Timeouts(Base, frozen=True):
    """How long each step may take."""

    connect_s: Annotated[float, doc(Reload.NEW, "connect to a worker, TLS included", "seconds", gt=0, le=3600)] = 1.0
    name_refresh_s: Annotated[
        float,
        doc(
            Reload.LIVE,
            "age at which a host's addresses are looked up again; what is known is used meanwhile",
            "seconds",
            ge=0.1,
            le=86400,
        ),
    ] = 5.0
    handshake_s: Annotated[float, doc(Reload.NEW, "TLS handshake of a caller", "seconds", gt=0, le=3600)] = 5.0
    response_head_s: Annotated[float, doc(Reload.NEW, "request sent to response head", "seconds", gt=0, le=86400)] = (
        30.0
    )
    stream_idle_s: Annotated[float, doc(Reload.NEW, "silence inside a response body", "seconds", gt=0, le=86400)] = (
        300.0
    )
    tunnel_idle_s: Annotated[
        float, doc(Reload.NEW, "silence of a tunnel (WebSocket, Upgrade) both ways", "seconds", gt=0, le=86400)
    ] = 3600.0
    client_head_s: Annotated[
        float, doc(Reload.NEW, "first byte to end of a request head", "seconds", gt=0, le=3600)
    ] = 10.0
    client_body_idle_s: Annotated[float, doc(Reload.NEW, "silence inside a request body", "seconds", gt=0, le=3600)] = (
        30.0
    )
    keep_alive_s: Annotated[float, doc(Reload.NEW, "idle downstream connection", "seconds", gt=0, le=86400)] = 75.0
    upstream_keep_alive_s: Annotated[float, doc(Reload.NEW, "idle upstream connection", "seconds", gt=0, le=86400)] = (
        55.0
    )
    connection_age_s: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        doc(
            Reload.NEW,
            "the next answer after this (less up to a tenth, at random) ends a downstream connection; null: no limit",
            "seconds",
        ),
    ] = 3600.0
    upstream_connection_age_s: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        doc(
            Reload.NEW,
            "an upstream connection takes no request after this (less up to a tenth, at random); null: no limit",
            "seconds",
        ),
    ] = None
    drain_wait_s: Annotated[
        float,
        doc(
            Reload.LIVE,
            "after SIGTERM: not ready, but accepting and answering as before, so that load balancers notice",
            "seconds",
            ge=0,
            le=3600,
        ),
    ] = 0.0
    drain_idle_s: Annotated[
        float,
        doc(Reload.LIVE, "then: how long connections that ask nothing are kept open", "seconds", ge=0, le=3600),
    ] = 1.0
    drain_s: Annotated[
        float, doc(Reload.LIVE, "grace period after SIGTERM and drain_wait_s", "seconds", ge=0, le=86400)
    ] = 30.0
    total_s: Annotated[
        Seconds | None,
        doc(Reload.NEW, "a request's head to the end of its answer, all tries; null for no limit", "seconds"),
    ] = None
    try_s: Annotated[
        Seconds | None, doc(Reload.NEW, "one try, to the end of its answer; null for no limit", "seconds")
    ] = None
