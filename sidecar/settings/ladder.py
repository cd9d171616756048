"""How a model degrades: what it falls back to, which answers it keeps, and what it says where nothing is left."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.settings.base import Base, Reload, doc


class FallbackOn(StrEnum):
    """How a request may end that is then answered by a step below instead; the names are those of outcomes."""

    NO_CANDIDATE = "no_candidate"
    OVERLOADED = "overloaded"
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_PROTOCOL = "upstream_protocol"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_5XX = "upstream_5xx"
    UPSTREAM_BUSY = "upstream_busy"
    DEADLINE_EXCEEDED = "deadline_exceeded"


USUAL_FALLBACK_ON = (
    FallbackOn.NO_CANDIDATE,
    FallbackOn.OVERLOADED,
    FallbackOn.CONNECT_FAILED,
    FallbackOn.CONNECT_TIMEOUT,
    FallbackOn.UPSTREAM_RESET,
    FallbackOn.UPSTREAM_PROTOCOL,
    FallbackOn.UPSTREAM_TIMEOUT,
)


class CachedMethod(StrEnum):
    """Methods whose answers may be kept."""

    GET = "GET"
    POST = "POST"


MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
FieldName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}\Z")]
Status = Annotated[int, Meta(ge=200, le=599)]


class SharedCache(Base, frozen=True):
    """A second tier in the store of ``state.url``: it outlives processes, and other sidecars fill it too."""

    wait_ms: Annotated[
        float,
        doc(Reload.LIVE, "longest wait for it, where a process has no answer of its own", "milliseconds", gt=0, le=100),
    ] = 5.0
    entries: Annotated[int, doc(Reload.LIVE, "most answers there, of all models", "answers", ge=1, le=10**7)] = 4096
    bytes: Annotated[int, doc(Reload.LIVE, "most bytes there, of all models", "bytes", ge=1024, le=1 << 40)] = 67108864
    max_entry_bytes: Annotated[
        int, doc(Reload.LIVE, "longest answer that goes there, head and body", "bytes", ge=256, le=65536)
    ] = 65536


class Cache(Base, frozen=True):
    """Answers of a model that are kept while all is well, and replayed while nobody can answer. Per data process."""

    deterministic: Annotated[
        bool, doc(Reload.LIVE, "equal requests have equal answers on every path, so paths has no say")
    ] = False
    methods: Annotated[tuple[CachedMethod, ...], doc(Reload.LIVE, "methods whose answers are kept")] = (
        CachedMethod.POST,
    )
    paths: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "paths on which equal requests have equal answers; * stands for anything", "patterns"),
    ] = ("*/infer", "*/embeddings")
    calls: Annotated[
        tuple[str, ...],
        doc(
            Reload.LIVE,
            "unary gRPC methods in which equal calls have equal answers; each call is waited for whole",
            "methods",
        ),
    ] = (MODEL_INFER,)
    statuses: Annotated[tuple[Status, ...], doc(Reload.LIVE, "statuses of answers that are kept", "statuses")] = (200,)
    errors: Annotated[bool, doc(Reload.LIVE, "statuses may name 400 and above")] = False
    streams: Annotated[
        bool,
        doc(Reload.LIVE, "answers without a length, and streams of events, are kept too, once they came whole"),
    ] = False
    tenant_header: Annotated[
        FieldName | None,
        doc(
            Reload.LIVE,
            "field that names the tenant; requests without it are not kept, and none sees another tenant's answers; "
            "null: policies.admission.tenant, and the client's certificate",
            "field name",
            form=("", "a field name: 1 to 64 letters, digits or hyphens"),
        ),
    ] = None
    shared: Annotated[
        bool,
        doc(
            Reload.LIVE,
            "an answer is for whoever asks: policies.admission.tenant and client certificates tell nobody apart",
        ),
    ] = False
    key_headers: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "further fields that an answer depends on", "field names"),
    ] = ()
    credentials: Annotated[
        bool,
        doc(
            Reload.LIVE,
            "without tenant_header: keep answers of requests that carry credentials, each under its own",
        ),
    ] = False
    credential_headers: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "without tenant_header: further fields that say who asks, beside those known", "field names"),
    ] = ()
    ttl_s: Annotated[float, doc(Reload.LIVE, "longest time that an answer is kept", "seconds", gt=0, le=604800)] = 600.0
    entries: Annotated[int, doc(Reload.LIVE, "most answers kept by one process", "answers", ge=1, le=10**7)] = 4096
    bytes: Annotated[int, doc(Reload.LIVE, "most bytes kept by one process", "bytes", ge=1024, le=1 << 40)] = 67108864
    max_entry_bytes: Annotated[
        int, doc(Reload.LIVE, "longest answer that is kept, head and body", "bytes", ge=256, le=1 << 26)
    ] = 262144
    redis: Annotated[
        SharedCache | None, doc(Reload.LIVE, "a second tier, which outlives processes and sidecars; null: none")
    ] = None


class StaticCall(Base, frozen=True):
    """What the calls of one unary gRPC method are answered there: one message, and the status OK."""

    method: Annotated[str, doc(Reload.LIVE, "the method", "method")] = MODEL_INFER
    json: Annotated[
        dict[str, Any] | None, doc(Reload.LIVE, "the message, a ModelInferResponse in the JSON form of protobuf")
    ] = None
    message: Annotated[str | None, doc(Reload.LIVE, "the message's bytes, in base64", "text")] = None
    message_file: Annotated[
        str | None,
        doc(Reload.LIVE, "file with the message's bytes, at most 64 KiB; read with the configuration", "path"),
    ] = None
    metadata: Annotated[dict[str, str], doc(Reload.LIVE, "further initial metadata", "fields")] = msgspec.field(
        default_factory=dict
    )


class StaticAnswer(Base, frozen=True):
    """What a model's requests are answered where nothing better is left."""

    status: Annotated[int, doc(Reload.LIVE, "its status", "status", ge=200, le=599)] = 200
    content_type: Annotated[
        str,
        doc(
            Reload.LIVE,
            "its media type",
            "media type",
            form=(r"^[!-~][ -~]{0,255}\Z", "1 to 256 printable characters that do not begin with a blank"),
        ),
    ] = "application/json"
    body: Annotated[str | None, doc(Reload.LIVE, "its body, as UTF-8", "text")] = None
    body_file: Annotated[
        str | None, doc(Reload.LIVE, "file with its body, UTF-8, at most 64 KiB; read with the configuration", "path")
    ] = None
    headers: Annotated[dict[str, str], doc(Reload.LIVE, "further fields of its head", "fields")] = msgspec.field(
        default_factory=dict
    )
    call: Annotated[
        StaticCall | None,
        doc(Reload.LIVE, "what gRPC calls are answered; with this and no body requests over HTTP are answered nothing"),
    ] = None
