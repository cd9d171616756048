"""What a schema cannot say: addresses, references between parts, and choices that do not go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from router.model import HTTP, Replica
from router.urls import is_loopback, protocol_of
from router.wire import MAX_RECORD_BYTES, replica_bytes
from sidecar.config.addresses import (
    AddressError,
    check_endpoint_url,
    check_listen_address,
    check_network,
    check_server_name,
    check_state_url,
    check_unix_path,
    server_place,
    split_address,
    unix_path,
)
from sidecar.config.admitting import admitting
from sidecar.config.choosing import FIELD_NAME, choosing
from sidecar.config.degrading import degrading
from sidecar.config.faulting import faulting
from sidecar.config.probing import examine_probe
from sidecar.config.problems import Path, dotted, nearest
from sidecar.config.recognising import recognising
from sidecar.config.sharding import keyless_calls, sharding
from sidecar.config.versioning import versioning
from sidecar.config.warming import examine_shapes, examine_warmup
from sidecar.discovery.planned import held
from sidecar.http1.forwarding import UNIX, is_forwarding
from sidecar.settings import ClientAuth, DnsType, Endpoint, Listener, ListenerTls, Model, Probe, Settings, Warmup
from sidecar.tls.names import NameFormError, check_name
from sidecar.upstreams.adapters import ANY_CLASS, REASON_BYTES

_PLACE_BYTES = 1024
"""More than an endpoint's name and address take."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the value at ``path``; ``warning`` says that it is legal all the same."""

    path: Path
    remedy: str
    warning: bool = False


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield everything about ``settings`` that makes no sense, or that its user should know."""
    yield from _listeners(settings)
    yield from _admin(settings)
    yield from _state(settings)
    yield from _upstream_tls(settings)
    yield from _models(settings)
    yield from _endpoints(settings)
    yield from _ids(settings)
    yield from _too_many_models(settings)
    yield from _dns(settings)
    yield from _times(settings)
    found = (*choosing(settings), *sharding(settings), *degrading(settings), *admitting(settings))
    for path, remedy in found:
        yield Finding(path, remedy)
    for path, remedy in keyless_calls(settings):
        yield Finding(path, remedy, warning=True)
    for path, remedy in recognising(settings):
        yield Finding(path, remedy)
    for path, remedy, warning in versioning(settings):
        yield Finding(path, remedy, warning=warning)
    for path, remedy in faulting(settings):
        yield Finding(path, remedy)
    overload = settings.overload
    if overload.soft_ratio >= overload.hard_ratio:
        yield Finding(
            ("overload", "soft_ratio"),
            f"must be below overload.hard_ratio ({overload.hard_ratio}): room is made before work is refused",
        )
    if settings.limits.target_bytes > settings.limits.head_bytes:
        head = settings.limits.head_bytes
        yield Finding(
            ("limits", "target_bytes"), f"must be at most limits.head_bytes ({head}): the target is in the head"
        )


def _refusal(path: Path, check: Callable[[str], object], text: str) -> Iterator[Finding]:
    try:
        check(text)
    except AddressError as error:
        yield Finding(path, str(error))


def _repeated(values: Iterable[object]) -> Iterator[tuple[int, int]]:
    """Yield (index, index of the first equal one) of repeated values; None never counts."""
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        if value is not None and first.setdefault(value, index) != index:
            yield index, first[value]


def _bound(text: str | None) -> tuple[str, int] | None:
    """Return what an address binds, or None where that is not known to be one place."""
    if text is not None and unix_path(text) is not None:
        return text, -1
    try:
        place = split_address(text) if text is not None else None
    except AddressError:
        return None
    return place if place and place[1] else None


def _listeners(settings: Settings) -> Iterator[Finding]:
    listeners = settings.listeners
    names = [model.name for model in settings.models]
    for index, listener in enumerate(listeners):
        yield from _refusal(("listeners", index, "address"), check_listen_address, listener.address)
        if listener.default_model is not None and listener.default_model not in names:
            yield Finding(("listeners", index, "default_model"), _no_model(listener.default_model, names))
        yield from _trust(index, listener)
        yield from _model_header(index, listener.model_header)
    for index, first in _repeated(_bound(listener.address) for listener in listeners):
        remedy = f"already the address of listeners[{first}]: give each its own, or use processes for more of them"
        yield Finding(("listeners", index, "address"), remedy)
    urls = [url for model in settings.models for url in model.urls] + [one.url for one in settings.endpoints]
    for index, listener in enumerate(listeners):
        protocol = listener.protocol.value
        if settings.state.url == "none" and urls and all(protocol_of(url) != protocol for url in urls):
            wanted = "grpc://" if protocol == "grpc" else "http://"
            remedy = f"no endpoint speaks it: give a model endpoints that start with {wanted}"
            yield Finding(("listeners", index, "protocol"), remedy)
    for index, listener in enumerate(listeners):
        if listener.tls is not None:
            yield from _listener_tls(("listeners", index, "tls"), listener.tls)
    for index, first in _repeated(listener.name or None for listener in listeners):
        yield Finding(("listeners", index, "name"), f"already the name of listeners[{first}]: give each its own")


_TAKEN_FIELDS = frozenset(
    {
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "traceparent",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-request-id",
        "x-request-timeout-ms",
    }
)


def _model_header(index: int, name: str | None) -> Iterator[Finding]:
    path: Path = ("listeners", index, "model_header")
    if name is None:
        return
    if not FIELD_NAME.fullmatch(name):
        yield Finding(path, "must be a field name: 1 to 64 letters, digits or hyphens; null turns it off")
    elif name.lower() in _TAKEN_FIELDS or is_forwarding(name.lower().encode()):
        yield Finding(path, "has a meaning of its own: choose another field, for example x-model")


def _trust(index: int, listener: Listener) -> Iterator[Finding]:
    for number, text in enumerate(listener.trusted_networks):
        path: Path = ("listeners", index, "trusted_networks", number)
        if text == UNIX:
            continue
        try:
            network = check_network(text)
        except AddressError as error:
            yield Finding(path, str(error))
            continue
        if network.prefixlen == 0:
            remedy = "everybody can then forge addresses and attempts: name the networks of your own proxies"
            yield Finding(path, remedy, warning=True)


def _listener_tls(path: Path, tls: ListenerTls) -> Iterator[Finding]:
    asks = tls.client_auth is not ClientAuth.NONE
    if asks and tls.ca_file is None:
        yield Finding((*path, "client_auth"), f"needs the CAs of callers: set {dotted((*path, 'ca_file'))}")
    if not asks and tls.ca_file is not None:
        yield Finding((*path, "ca_file"), "has no use while client_auth is none: set it to required, or leave this out")
    if tls.allowed_names and tls.client_auth is not ClientAuth.REQUIRED:
        remedy = "needs client_auth: required, for a caller that shows no certificate has no name"
        yield Finding((*path, "allowed_names"), remedy)
    yield from _names((*path, "allowed_names"), tls.allowed_names)


def _names(path: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    for index, name in enumerate(names):
        try:
            check_name(name)
        except NameFormError as error:
            yield Finding((*path, index), str(error))


def _upstream_tls(settings: Settings) -> Iterator[Finding]:
    tls = settings.upstream_tls
    if tls.cert_file is not None and tls.key_file is None:
        yield Finding(("upstream_tls", "cert_file"), "needs its private key: set upstream_tls.key_file")
    if tls.key_file is not None and tls.cert_file is None:
        yield Finding(("upstream_tls", "key_file"), "needs its certificate: set upstream_tls.cert_file")
    if tls.server_name is not None:
        try:
            check_server_name(tls.server_name)
        except AddressError as error:
            yield Finding(("upstream_tls", "server_name"), str(error))
    yield from _names(("upstream_tls", "allowed_names"), tls.allowed_names)


def _no_model(name: str, names: list[str]) -> str:
    if not names:
        return "no such model: declare it under models"
    meant = nearest(name, names)
    return "no such model; " + (f'did you mean "{meant}"?' if meant else f"declared are: {', '.join(names)}")


def _admin(settings: Settings) -> Iterator[Finding]:
    admin = settings.admin
    if admin.socket is None and admin.address is None:
        yield Finding(
            ("admin",),
            "must have a socket (--admin-socket) or an address: there would be no way to see or steer the sidecar",
        )
    if admin.socket is not None:
        yield from _refusal(("admin", "socket"), check_unix_path, admin.socket)
    if admin.address is None:
        return
    path: Path = ("admin", "address")
    try:
        host, _ = split_address(admin.address)
    except AddressError as error:
        yield Finding(path, str(error))
        return
    if not is_loopback(host):
        if admin.token_file is None:
            yield Finding(path, "must be a loopback address (127.0.0.1 or [::1]), or admin.token_file must be set")
        else:
            yield Finding(path, "is not loopback: everyone who can reach it can read routes and settings", warning=True)
    for index, listener in enumerate(settings.listeners):
        if _bound(listener.address) is not None and _bound(listener.address) == _bound(admin.address):
            yield Finding(path, f"already the address of listeners[{index}]: give the admin API its own port")


def _state(settings: Settings) -> Iterator[Finding]:
    state = settings.state
    try:
        scheme = check_state_url(state.url)
    except AddressError as error:
        yield Finding(("state", "url"), str(error))
        return
    if scheme != "rediss":
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(state.tls, name) is not None:
                yield Finding(("state", "tls", name), "TLS needs state.url to start with rediss://")
    if state.tls.cert_file is not None and state.tls.key_file is None:
        yield Finding(("state", "tls", "cert_file"), "needs its private key: set state.tls.key_file")
    if state.tls.key_file is not None and state.tls.cert_file is None:
        yield Finding(("state", "tls", "key_file"), "needs its certificate: set state.tls.cert_file")
    if state.password_file is not None:
        user, at, _ = state.url.rpartition("://")[2].rpartition("@")
        if scheme == "none":
            yield Finding(("state", "password_file"), "has no use without a store: set state.url")
        elif at and ":" in user:
            yield Finding(("state", "password_file"), "the password stands in state.url too: keep one of the two")


def _models(settings: Settings) -> Iterator[Finding]:
    models = settings.models
    placed = {_model_name(entry) for endpoint in settings.endpoints for entry in endpoint.models}
    for index, first in _repeated(model.name for model in models):
        yield Finding(("models", index, "name"), f"already the name of models[{first}]: declare each model once")
    defaults = [index for index, model in enumerate(models) if model.default]
    for index in defaults[1:]:
        yield Finding(("models", index, "default"), f"models[{defaults[0]}] is the default already: keep one of them")
    for index, model in enumerate(models):
        for number, url in enumerate(model.endpoints):
            yield from _refusal(("models", index, "endpoints", number), check_endpoint_url, url)
        for number, first in _repeated(url.removesuffix("/") for url in model.endpoints):
            yield Finding(("models", index, "endpoints", number), f"the same as endpoints[{first}]: name each once")
        if settings.state.url == "none" and not model.urls and model.name not in placed:
            remedy = "has no endpoint and never will: give it endpoints or dns, or set state.url for workers to come"
            yield Finding(("models", index, "name"), remedy)
        if model.hedge:
            yield from _hedge(index, settings)
        if model.probe is not None and not model.urls:
            yield Finding(("models", index, "probe"), "has no effect: the model has no static endpoints", warning=True)
        elif model.probe is not None:
            yield from _probe(("models", index, "probe"), model.probe, model.urls, (model.name,))
        if model.shapes is not None:
            for place, remedy, warning in examine_shapes(("models", index, "shapes"), model.shapes, model.warmup):
                yield Finding(place, remedy, warning=warning)
        if model.warmup is not None:
            places = _places(settings, model)
            for place, remedy, warning in examine_warmup(("models", index, "warmup"), model.warmup, places):
                yield Finding(place, remedy, warning=warning)
    if settings.state.url == "none" and not models:
        yield Finding(
            ("models",), "must name a model with endpoints, or state.url must name a store that knows workers"
        )


def _dns(settings: Settings) -> Iterator[Finding]:
    for index, model in enumerate(settings.models):
        dns, path = model.dns, ("models", index, "dns")
        if dns is None:
            continue
        if dns.type is DnsType.A and dns.port is None:
            yield Finding(path, "needs the port of the endpoints: set port, or type: srv, whose records have it")
        if dns.type is DnsType.SRV and dns.port is not None:
            yield Finding((*path, "port"), "has no use with type srv, whose records have the port: leave it out")
        if dns.scheme.value in ("https", "grpcs") and settings.upstream_tls.server_name is None:
            remedy = "needs upstream_tls.server_name: endpoints are addresses, and certificates are for names"
            yield Finding((*path, "scheme"), remedy)
    for number, text in enumerate(settings.dns.servers):
        yield from _refusal(("dns", "servers", number), server_place, text)


def _probe(path: Path, probe: Probe, urls: tuple[str, ...], models: tuple[str, ...]) -> Iterator[Finding]:
    for place, remedy, warning in examine_probe(path, probe, urls, models):
        yield Finding(place, remedy, warning=warning)


def _hedge(index: int, settings: Settings) -> Iterator[Finding]:
    path: Path = ("models", index, "hedge")
    if not settings.models[index].idempotent:
        yield Finding(path, "needs idempotent: true, as a hedged request may be executed twice")
    if settings.policies.retry.attempts == 0:
        yield Finding(path, "needs policies.retry.attempts of at least 1: a hedge is one of them")
    model = settings.models[index]
    places = _places(settings, model)
    if settings.state.url == "none" and len(places) == 1 and model.dns is None:
        yield Finding(path, "has no effect: the model has one endpoint, and nobody else to ask", warning=True)
    elif settings.state.url == "none" and places and all(protocol_of(url) != HTTP for url in places):
        yield Finding(path, "has no effect: the model has grpc endpoints only, and they are not hedged", warning=True)
    for name in ("requests_per_endpoint", "connections_per_endpoint"):
        if getattr(settings.limits, name) == 1:
            text = f"has no effect: a hedge leaves an endpoint's last place to others, and limits.{name} is 1"
            yield Finding(path, text, warning=True)


def _places(settings: Settings, model: Model) -> list[str]:
    """Return the URLs of the static endpoints that hold a model."""
    return list(model.urls) + [
        endpoint.url for endpoint in settings.endpoints if model.name in map(_model_name, endpoint.models)
    ]


def _times(settings: Settings) -> Iterator[Finding]:
    """Yield times of one try that the time of the whole request always comes before."""
    common = settings.timeouts
    if common.try_s is not None and common.total_s is not None and common.try_s >= common.total_s:
        yield Finding(("timeouts", "try_s"), f"has no effect: total_s ({common.total_s}) ends first", warning=True)
    for index, model in enumerate(settings.models):
        own = model.timeouts
        try_s = common.try_s if own.try_s is None else own.try_s
        total_s = common.total_s if own.total_s is None else own.total_s
        named = "try_s" if own.try_s is not None else "total_s" if own.total_s is not None else ""
        if named and try_s is not None and total_s is not None and try_s >= total_s:
            text = f"try_s ({try_s}) has no effect: total_s ({total_s}) ends first"
            yield Finding(("models", index, "timeouts", named), text, warning=True)


def _is_endpoint(url: str) -> bool:
    try:
        check_endpoint_url(url)
    except AddressError:
        return False
    return True


def _ids(settings: Settings) -> Iterator[Finding]:
    """Refuse two endpoints that would go by one id: the scheme is no part of it."""
    named = {endpoint.url.rstrip("/") for endpoint in settings.endpoints if endpoint.name}
    places: list[tuple[Path, str]] = [
        (("endpoints", index, "url"), endpoint.url) for index, endpoint in enumerate(settings.endpoints)
    ]
    places += [
        (("models", index, "endpoints", number), url)
        for index, model in enumerate(settings.models)
        for number, url in enumerate(model.endpoints)
    ]
    first: dict[str, str] = {}
    for path, raw in places:
        url = raw.rstrip("/")
        id_ = url.partition("://")[2]
        if url not in named and _is_endpoint(url) and id_ and first.setdefault(id_, url) != url:
            remedy = f"has the same HOST:PORT as {first[id_]}: list one of them under endpoints, with a name of its own"
            yield Finding(path, remedy)


def _endpoints(settings: Settings) -> Iterator[Finding]:
    names = [model.name for model in settings.models]
    for index, endpoint in enumerate(settings.endpoints):
        yield from _refusal(("endpoints", index, "url"), check_endpoint_url, endpoint.url)
        yield from _held(index, endpoint, names)
        if endpoint.probe is not None:
            models = tuple(dict.fromkeys(entry.partition("#")[0] for entry in endpoint.models))
            yield from _probe(("endpoints", index, "probe"), endpoint.probe, (endpoint.url,), models)
    for index, first in _repeated(endpoint.url.removesuffix("/") for endpoint in settings.endpoints):
        yield Finding(("endpoints", index, "url"), f"already the URL of endpoints[{first}]: list its models there")
    for index, first in _repeated(endpoint.name or None for endpoint in settings.endpoints):
        yield Finding(("endpoints", index, "name"), f"already the name of endpoints[{first}]: give each its own")


def _held(index: int, endpoint: Endpoint, names: list[str]) -> Iterator[Finding]:
    if not endpoint.models:
        yield Finding(("endpoints", index, "models"), "must hold at least one model, NAME or NAME@VERSION")
    for number, entry in enumerate(endpoint.models):
        path: Path = ("endpoints", index, "models", number)
        said = held(entry)
        if said is None:
            yield Finding(path, "must be NAME or NAME@VERSION, perhaps with #SHARD")
        elif said[0] not in names:
            yield Finding(path, _no_model(said[0], names))
    for number, first in _repeated(endpoint.models):
        yield Finding(("endpoints", index, "models", number), f"the same as models[{first}]: name each once")


def _too_many_models(settings: Settings) -> Iterator[Finding]:
    """Refuse what no data process could be told: one message holds all that one endpoint has."""
    warmups = {model.name: model.warmup for model in settings.models}
    placed = [
        (endpoint.url, entry, endpoint.probe, ("endpoints", index, "models", number))
        for index, endpoint in enumerate(settings.endpoints)
        for number, entry in enumerate(endpoint.models)
    ]
    placed += [
        (url, model.name, model.probe, ("models", index, "endpoints", number))
        for index, model in enumerate(settings.models)
        for number, url in enumerate(model.endpoints)
    ]
    counted: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for url, entry, probe, path in placed:
        url = url.rstrip("/")
        names = counted.setdefault(url, set())
        if entry in names:
            continue
        names.add(entry)
        found = _found(entry, probe, warmups.get(_model_name(entry)))
        before = sizes.get(url, _PLACE_BYTES)
        sizes[url] = before + replica_bytes(found)
        if before <= MAX_RECORD_BYTES < sizes[url]:
            remedy = f"one endpoint can hold no more than the {len(names) - 1} models before this one"
            yield Finding(path, remedy)


def _found(entry: str, probe: Probe | None, warmup: Warmup | None) -> Replica:
    """Return the largest replica that may be told of what is configured so."""
    if probe is None and warmup is None:
        return Replica(entry)
    classes = ((ANY_CLASS, 1.0),) if warmup is None else tuple((one.name, 1.0) for one in warmup.requests)
    return Replica(entry, reason="x" * REASON_BYTES, warmth=classes, proven_at=None if warmup is None else 0.0)


def _model_name(entry: str) -> str:
    said = held(entry)
    return "" if said is None else said[0]
