"""What makes no sense in how models are split, and in which endpoint is said to hold which shard."""

from __future__ import annotations

from collections.abc import Iterator

from router.model import HTTP, WHOLE
from router.policy import OnNoCandidate, PolicyError, ShardMode, ShardPolicy
from router.urls import protocol_of
from sidecar.config.problems import Path
from sidecar.discovery.planned import held
from sidecar.http1.keys import member_of_message
from sidecar.settings import Endpoint, Model, Protocol, Settings

_KEYLESS = (
    "is for HTTP alone: every gRPC call of this model is INVALID_ARGUMENT, as its key can be in metadata only "
    "(key: {header: ...}), or in ModelInfer's message (key: {json: id} or {json: parameters.NAME}), and "
    "without one nobody knows its shard"
)


def sharding(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield (path, remedy) of everything that makes no sense."""
    models = {model.name: model for model in settings.models}
    for index, model in enumerate(settings.models):
        if model.shards.mode is not ShardMode.REPLICATED and model.on_no_candidate is OnNoCandidate.LAZY:
            yield (
                ("models", index, "on_no_candidate"),
                "lazy has one endpoint load all of a model, and this one is split: choose wait or fail",
            )
        yield from _split(("models", index, "shards"), model, settings)
    for index, endpoint in enumerate(settings.endpoints):
        yield from _shards(("endpoints", index), endpoint, models)


def keyless_calls(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield (path, what to know) of models whose calls over gRPC can never say which shard they are for."""
    if not any(listener.protocol is Protocol.GRPC for listener in settings.listeners):
        return
    for index, model in enumerate(settings.models):
        key = model.key
        if model.shards.mode is not ShardMode.KEYED or key is None or key.header is not None:
            continue
        if key.json is not None and member_of_message(key.json):
            continue
        urls = [*model.urls]
        for endpoint in settings.endpoints:
            urls += [endpoint.url for name, _, _ in filter(None, map(held, endpoint.models)) if name == model.name]
        if model.dns is not None:
            urls.append(f"{model.dns.scheme.value}://")
        if settings.state.url != "none" or any(protocol_of(url) != HTTP for url in urls):
            yield ("models", index, "key", "last_segment" if key.json is None else "json"), _KEYLESS


def _split(path: Path, model: Model, settings: Settings) -> Iterator[tuple[Path, str]]:
    shards = model.shards
    try:
        ShardPolicy(shards.mode, shards.count, shards.entry)
    except PolicyError as error:
        yield (*path, error.field.rpartition(".")[2]), error.remedy
        return
    if shards.mode is ShardMode.REPLICATED or settings.state.url != "none":
        return
    there: dict[str, set[int]] = {"": set(range(shards.count))} if model.endpoints else {}
    for endpoint in settings.endpoints:
        for name, version, shard in filter(None, map(held, endpoint.models)):
            if name == model.name:
                there.setdefault(version, set()).update(range(shards.count) if shard == WHOLE else (shard,))
    for version, numbers in there.items():
        missing = sorted(set(range(shards.count)) - numbers)
        if missing:
            first = f"{model.name}{f'@{version}' if version else ''}#{missing[0]}"
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            yield path, f"no endpoint holds {first}{more}, and none ever will: list it under endpoints"


def _shards(path: Path, endpoint: Endpoint, models: dict[str, Model]) -> Iterator[tuple[Path, str]]:
    modes = set()
    entries = set(map(held, endpoint.models))
    for number, entry in enumerate(endpoint.models):
        name, version, shard = held(entry) or ("", "", WHOLE)
        model = models.get(name)
        if shard == WHOLE or model is None:
            continue
        modes.add(model.shards.mode)
        place = (*path, "models", number)
        if model.shards.mode is ShardMode.REPLICATED:
            yield place, f"{name} is not split: set shards at the model, or leave #{shard} out"
        elif model.shards.count == 1:
            yield place, f"of how many is not said: set shards.count at {name}"
        elif shard >= model.shards.count:
            yield place, f"{name} has the shards 0 to {model.shards.count - 1}"
        elif (name, version, WHOLE) in entries:
            yield place, f"the endpoint holds all of {name} by another entry: keep one of the two"
    if endpoint.group and ShardMode.TENSOR not in modes:
        yield (*path, "group"), "has no use: the endpoint holds no shard of a model whose shards.mode is tensor"
