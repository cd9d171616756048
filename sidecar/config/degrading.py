"""What makes no sense in how a model degrades: fallbacks, caches, static answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath

import msgspec

from router.model import HTTP
from router.urls import protocol_of
from sidecar.cache.keeping import ENTRY_BYTES
from sidecar.cache.terms import NOT_WHOLE
from sidecar.config.problems import Path, nearest
from sidecar.config.static_calls import METHOD, METHOD_REMEDY, examine_call, examine_file, resolved
from sidecar.settings import MODEL_INFER, Cache, Model, Settings, StaticAnswer, Trust

MAX_FALLBACKS = 8
MAX_STATIC_BYTES = 65536
_ENTRY = re.compile(r"[A-Za-z0-9._:-]{1,128}(@[!-?A-~]{1,128})?")
_FIELD = re.compile(r"[A-Za-z0-9-]{1,64}")
_PATTERN = re.compile(r"[/*][!-~]{0,1023}")
_VALUE = re.compile(r"[ -~]{0,1024}")
_WRITTEN_HERE = frozenset(
    {
        "age",
        "cache-status",
        "connection",
        "content-length",
        "content-type",
        "keep-alive",
        "retry-after",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "warmroute-degraded",
        "warmroute-outcome",
        "x-request-id",
    }
)
"""Fields of a static answer's head that are not its author's to write."""
_KEEPS_NOTHING = (
    "would keep nothing: it goes by policies.admission.tenant, and nobody is believed: set "
    "listeners[].trusted_networks, policies.admission.trust: anybody, tenant_header, or shared: true"
)

Findings = Iterator[tuple[Path, str]]


def degrading(settings: Settings) -> Findings:
    """Yield (path, remedy) of everything that makes no sense."""
    edges = {model.name: [entry.partition("@")[0] for entry in model.fallback] for model in settings.models}
    for index, model in enumerate(settings.models):
        place: Path = ("models", index)
        yield from _fallback(place, model, settings, edges)
        if model.cache is not None:
            yield from _cache((*place, "cache"), model.cache)
            yield from _cache_tenants((*place, "cache"), model.cache, settings)
            if model.cache.redis is not None and settings.state.url == "none":
                yield (*place, "cache", "redis"), "needs a store: set state.url, or leave this out"
        if model.static_answer is not None:
            yield from _static((*place, "static_answer"), model.static_answer)
        yield from _over_grpc(place, model)
        if not model.fallback_on:
            yield (*place, "fallback_on"), "must name at least one end of a request, for example no_candidate"
        for number, end in enumerate(model.fallback_on):
            if end in model.fallback_on[:number]:
                yield (*place, "fallback_on", number), "is named before: name each once"


def _over_grpc(place: Path, model: Model) -> Findings:
    if model.urls and all(protocol_of(url) != HTTP for url in model.urls):
        if model.cache is not None and not model.cache.calls:
            yield (
                (*place, "cache", "calls"),
                f"must name a method, for example {MODEL_INFER}: the model has grpc endpoints only",
            )
        if model.static_answer is not None and model.static_answer.call is None:
            yield (
                (*place, "static_answer"),
                "has no effect: the model has grpc endpoints only: set call, which is what their calls are answered",
            )


def _fallback(place: Path, model: Model, settings: Settings, edges: dict[str, list[str]]) -> Findings:
    names = list(edges)
    if len(model.fallback) > MAX_FALLBACKS:
        yield (*place, "fallback"), f"must name at most {MAX_FALLBACKS}"
    protocols = _protocols(model.name, settings)
    for number, entry in enumerate(model.fallback):
        path: Path = (*place, "fallback", number)
        name, _, version = entry.partition("@")
        if not _ENTRY.fullmatch(entry):
            yield path, "must be NAME or NAME@VERSION"
        elif entry in model.fallback[:number]:
            yield path, "is named before: name each once"
        elif name == model.name and not version:
            yield path, f"is the model itself: name another model, or a version of it: {name}@VERSION"
        elif name not in names:
            if settings.state.url == "none":
                meant = nearest(name, names)
                yield path, "no such model; " + (f'did you mean "{meant}"?' if meant else "declare it under models")
        elif name != model.name and (way := _way_back(name, model.name, edges)):
            circle = " -> ".join([model.name, *way])
            yield path, f"falls back in a circle ({circle}): the load of one outage would go round; leave one out"
        else:
            other = _protocols(name, settings)
            if protocols and other and not protocols & other:
                yield path, "speaks another protocol: a request can fall back to a model of its own protocol only"


def _way_back(start: str, end: str, edges: dict[str, list[str]]) -> list[str]:
    """Return the models on a way from one to another, both included; nothing where there is none."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop()
        if way[-1] == end:
            return way
        for name in edges.get(way[-1], ()):
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def _protocols(name: str, settings: Settings) -> set[str]:
    urls = [url for model in settings.models if model.name == name for url in model.urls]
    urls += [one.url for one in settings.endpoints if name in (entry.partition("@")[0] for entry in one.models)]
    return {protocol_of(url) for url in urls}


def _cache(path: Path, cache: Cache) -> Findings:
    if cache.deterministic and cache.paths != Cache().paths:
        yield (*path, "paths"), "has no say while deterministic is true: leave one of the two out"
    if not cache.deterministic and not cache.paths:
        yield (*path, "paths"), "must name a path, for example */infer"
    for number, pattern in enumerate(cache.paths):
        if not _PATTERN.fullmatch(pattern):
            yield (*path, "paths", number), "must start with / or *, and hold neither spaces nor control characters"
    for number, name in enumerate(cache.calls):
        if not METHOD.fullmatch(name):
            yield (*path, "calls", number), METHOD_REMEDY
        elif name in cache.calls[:number]:
            yield (*path, "calls", number), "is named before: name each once"
    for member, names in (("key_headers", cache.key_headers), ("credential_headers", cache.credential_headers)):
        for number, name in enumerate(names):
            if not _FIELD.fullmatch(name):
                yield (*path, member, number), "must be a field name: 1 to 64 letters, digits or hyphens"
    for name in ("methods", "statuses"):
        if not getattr(cache, name):
            yield (*path, name), "must name at least one, or be left out"
    for number, status in enumerate(cache.statuses):
        if status in NOT_WHOLE:
            yield (*path, "statuses", number), "is no whole answer: leave it out"
        elif status >= 400 and not cache.errors:
            yield (*path, "statuses", number), "is an error: set errors: true, or leave it out"
    for member in ("credentials", "credential_headers"):
        if getattr(cache, member) and cache.tenant_header is not None:
            yield (*path, member), "has no say beside tenant_header, which is what tells callers apart"
    least = cache.max_entry_bytes + ENTRY_BYTES
    if cache.bytes < least:
        yield (*path, "bytes"), f"must be at least max_entry_bytes and {ENTRY_BYTES} more ({least})"


def _cache_tenants(path: Path, cache: Cache, settings: Settings) -> Findings:
    admission = settings.policies.admission
    if cache.shared:
        if cache.tenant_header is not None:
            yield (*path, "shared"), "has no say beside tenant_header, which is what tells callers apart"
    elif (
        cache.tenant_header is None
        and admission.tenant.header is not None
        and admission.trust is not Trust.ANYBODY
        and not any(listener.trusted_networks for listener in settings.listeners)
    ):
        yield path, _KEEPS_NOTHING


def _static(path: Path, answer: StaticAnswer) -> Findings:
    if answer.body is not None and answer.body_file is not None:
        yield (*path, "body_file"), "body is set too: keep one of the two"
    if answer.status in (204, 205, 304):
        yield (*path, "status"), "has no body and no type: choose another, for example 200"
    if len((answer.body or "").encode()) > MAX_STATIC_BYTES:
        yield (*path, "body"), f"must be at most {MAX_STATIC_BYTES} bytes"
    for name, value in answer.headers.items():
        if not _FIELD.fullmatch(name):
            yield (*path, "headers", name), "must be a field name: 1 to 64 letters, digits or hyphens"
        elif name.lower() in _WRITTEN_HERE:
            yield (*path, "headers", name), "is written by the sidecar itself: leave it out"
        elif not _VALUE.fullmatch(value):
            yield (*path, "headers", name), "must be at most 1024 printable ASCII characters"
    if answer.call is not None:
        yield from examine_call((*path, "call"), answer.call)


def static_files(settings: Settings) -> Findings:
    """Yield (path, remedy) of files with static answers that are too long or none; others are looked at elsewhere."""
    for index, model in enumerate(settings.models):
        answer = model.static_answer
        path: Path = ("models", index, "static_answer")
        if answer is not None and answer.body_file is not None:
            try:
                size = FilePath(answer.body_file).stat().st_size
            except (OSError, ValueError):
                size = 0
            if size > MAX_STATIC_BYTES:
                yield (*path, "body_file"), f"has {size} bytes, at most {MAX_STATIC_BYTES}: serve it from elsewhere"
        if answer is not None and answer.call is not None:
            yield from examine_file((*path, "call"), answer.call)


def with_static_bodies(settings: Settings) -> Settings:
    """Return settings whose static answers have their bodies in them: data processes read no such files."""
    models = tuple(
        model
        if model.static_answer is None
        else msgspec.structs.replace(model, static_answer=_resolved(model.static_answer))
        for model in settings.models
    )
    return settings if models == settings.models else msgspec.structs.replace(settings, models=models)


def _resolved(answer: StaticAnswer) -> StaticAnswer:
    if answer.body_file is not None:
        answer = msgspec.structs.replace(answer, body=FilePath(answer.body_file).read_bytes().decode())
    if answer.call is not None:
        answer = msgspec.structs.replace(answer, call=resolved(answer.call))
    return answer
