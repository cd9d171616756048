"""Models and the endpoints that hold them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from router.policy import BalancerName, LatencyOf, OnNoCandidate
from sidecar.settings.admission import ModelAdmission, Wait
from sidecar.settings.affinity import Affinity
from sidecar.settings.base import LABEL, Base, Reload, Seconds, doc
from sidecar.settings.dns import Dns
from sidecar.settings.groups import Shards
from sidecar.settings.ladder import USUAL_FALLBACK_ON, Cache, FallbackOn, StaticAnswer
from sidecar.settings.probes import Probe
from sidecar.settings.versions import Versions
from sidecar.settings.warmups import Shapes, Warmup


class ModelTimeouts(Base, frozen=True):
    """Times of one model's requests; what is null stands under timeouts."""

    response_head_s: Annotated[Seconds | None, doc(Reload.NEW, "request sent to response head", "seconds")] = None
    stream_idle_s: Annotated[Seconds | None, doc(Reload.NEW, "silence inside a response body", "seconds")] = None
    total_s: Annotated[Seconds | None, doc(Reload.NEW, "a request's head to the end of its answer", "seconds")] = None
    try_s: Annotated[Seconds | None, doc(Reload.NEW, "one try, to the end of its answer", "seconds")] = None


class Key(Base, frozen=True):
    """Where a request of a model whose balancer is keyed, or whose shards are, has its key."""

    header: Annotated[
        str | None, doc(Reload.LIVE, "field whose value is the key, the first one where it comes twice", "field name")
    ] = None
    last_segment: Annotated[
        bool, doc(Reload.LIVE, "the key is what follows the last slash of the path, percent-decoded")
    ] = False
    json: Annotated[
        str | None,
        doc(Reload.LIVE, "the key is this member of a JSON body, a text or a number; names with dots between", "names"),
    ] = None
    body_bytes: Annotated[
        int, doc(Reload.LIVE, "of json: longer bodies are not kept back for their key", "bytes", ge=1, le=1 << 26)
    ] = 1 << 20
    load_factor: Annotated[
        float,
        doc(
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
        doc(
            Reload.LIVE,
            "name as in /v2/models/NAME",
            form=(r"^[A-Za-z0-9._:-]{1,128}\Z", "1 to 128 letters, digits, dots, underscores, colons or hyphens"),
        ),
    ]
    shards: Shards = msgspec.field(default_factory=Shards)
    idempotent: Annotated[bool, doc(Reload.LIVE, "a request may be executed twice: it may be retried once sent")] = (
        False
    )
    endpoints: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "static endpoints: http://HOST:PORT, https://, grpc://HOST:PORT or unix:/PATH", "URLs"),
    ] = ()
    dns: Annotated[
        Dns | None, doc(Reload.LIVE, "a name whose addresses or SRV records are endpoints, looked up again and again")
    ] = None
    default: Annotated[bool, doc(Reload.LIVE, "takes requests that name no known model; at most one")] = False
    on_no_candidate: Annotated[
        OnNoCandidate,
        doc(Reload.LIVE, "fail: 503 with Retry-After; wait: until a replica is warm; lazy: have one loaded, and wait"),
    ] = OnNoCandidate.FAIL
    wait: Wait = msgspec.field(default_factory=Wait)
    admission: ModelAdmission = msgspec.field(default_factory=ModelAdmission)
    probe: Annotated[
        Probe | None, doc(Reload.LIVE, "readiness probe of the static endpoints; null counts them as warm")
    ] = None
    warmup: Annotated[
        Warmup | None,
        doc(Reload.LIVE, "requests that prove a static endpoint warm before it gets any; null: none are sent"),
    ] = None
    shapes: Annotated[
        Shapes | None,
        doc(Reload.LIVE, "requests prefer replicas proven for their shape class; null: whoever is warm"),
    ] = None
    timeouts: ModelTimeouts = msgspec.field(default_factory=ModelTimeouts)
    hedge: Annotated[
        bool, doc(Reload.LIVE, "ask a second endpoint where the first is slow to answer; needs idempotent")
    ] = False
    latency: Annotated[
        LatencyOf,
        doc(
            Reload.LIVE,
            "what of an attempt counts as its latency: the first_byte of its answer, its total, or auto: the first byte"
            " of a stream of events, the total of any other answer",
        ),
    ] = LatencyOf.AUTO
    balancer: Annotated[
        BalancerName,
        doc(Reload.LIVE, "who is picked of those that may be: warm goes by weights and waits; keyed needs a key"),
    ] = BalancerName.WARM
    key: Annotated[Key | None, doc(Reload.LIVE, "the key that the balancer keyed goes by, or shards")] = None
    affinity: Annotated[
        Affinity | None, doc(Reload.LIVE, "prefer who has seen the beginning of a request's prompt; null: nobody is")
    ] = None
    load_reports: Annotated[
        bool,
        doc(Reload.LIVE, "ask workers for load reports (ORCA) in their answers and behind them, and go by those"),
    ] = False
    versions: Versions = msgspec.field(default_factory=Versions)
    fallback: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "models or versions that answer instead, best first: NAME or NAME@VERSION", "names"),
    ] = ()
    cache: Annotated[
        Cache | None, doc(Reload.LIVE, "answers kept in good times and replayed in bad ones; null keeps none")
    ] = None
    static_answer: Annotated[
        StaticAnswer | None, doc(Reload.LIVE, "what is answered where nothing better is left; null: 503")
    ] = None
    fallback_on: Annotated[
        tuple[FallbackOn, ...],
        doc(Reload.LIVE, "ends of a request that fallback, cache and static_answer stand in for", "outcomes"),
    ] = USUAL_FALLBACK_ON

    @property
    def urls(self) -> tuple[str, ...]:
        """Its static endpoints, and the form of those that a name stands for."""
        return self.endpoints if self.dns is None else (*self.endpoints, self.dns.url)


class Endpoint(Base, frozen=True):
    """A static endpoint that holds several models."""

    url: Annotated[str, doc(Reload.LIVE, "http://HOST:PORT, https://HOST:PORT or unix:/PATH", "URL")]
    models: Annotated[
        tuple[str, ...],
        doc(Reload.LIVE, "NAME or NAME@VERSION of what it holds, with #SHARD where it is one shard of several"),
    ]
    group: Annotated[
        str,
        doc(Reload.LIVE, "name of the group that its shards answer in, where there are several groups", form=LABEL),
    ] = ""
    name: Annotated[
        str, doc(Reload.LIVE, "endpoint id; where empty, the URL's HOST:PORT or the whole unix:/PATH", form=LABEL)
    ] = ""
    probe: Annotated[Probe | None, doc(Reload.LIVE, "readiness probe; null counts it as warm")] = None
