"""What the configuration says of endpoints, as records for the router. Pure: every process reads it for itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Protocol

from router.model import WHOLE, EndpointRecord, Replica, State
from router.policy import ShardMode
from router.urls import protocol_of
from sidecar.discovery.proving import NOT_WARMED_YET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.settings import Probe, Settings
    from sidecar.upstreams.adapters import Signal

NOT_PROBED_YET = "not probed yet"
_ENTRY = re.compile(r"([^@#]+)(?:@([^@#]+))?(?:#([0-9]{1,3}))?\Z")


def is_news(reason: str) -> bool:
    """Return whether whoever gives a replica's reason knows of it; else what was known before stands."""
    return reason != NOT_PROBED_YET and not reason.startswith(NOT_WARMED_YET)


def held(entry: str) -> tuple[str, str, int] | None:
    """Read ``NAME[@VERSION][#SHARD]``: model, version and shard (``router.groups.WHOLE`` for all); None: not that."""
    found = _ENTRY.match(entry)
    if found is None:
        return None
    return found[1], found[2] or "", WHOLE if found[3] is None else int(found[3])


class Loaded(Protocol):
    """What has a load: a record, and what a probe found."""

    @property
    def queue_depth(self) -> int | None: ...  # noqa: D102
    @property
    def free_memory_bytes(self) -> int | None: ...  # noqa: D102
    @property
    def total_memory_bytes(self) -> int | None: ...  # noqa: D102
    @property
    def free_memory_ratio(self) -> float | None: ...  # noqa: D102
    @property
    def queue_time_ms(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class StaticReplica:
    """One model on one static endpoint, or a shard of it, and how its readiness is found out.

    It counts as warm where nothing probes it and it has no ``warmup``, which is whether warm-up requests prove it.
    """

    model: str
    version: str
    probe: Probe | None
    warmup: bool = False
    shard: int = 0
    shard_count: int = 1
    group: str = ""

    @property
    def is_found_out(self) -> bool:
        """Whether somebody says whether it is warm."""
        return self.warmup or self.probe is not None


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """One endpoint of the configuration, merged from every place that names its URL."""

    id: str
    address: str
    replicas: tuple[StaticReplica, ...]


def static_endpoints(settings: Settings, *, warmups: bool = True) -> tuple[StaticEndpoint, ...]:
    """Return the endpoints that ``settings`` names, each URL once.

    The id is the endpoint's ``name``, else the URL's HOST:PORT; all of ``unix:/PATH``, or of a URL whose HOST:PORT is
    another's already. A model may be named at the endpoint and the endpoint at the model: where both do, the endpoint's
    own probe counts. An endpoint of which no shard is named holds all of a model. ``warmups`` False: without regard to
    them, as a source finds endpoints.
    """
    warmed = {model.name for model in settings.models if warmups and model.warmup is not None}
    names: dict[str, str] = {}
    splits = {model.name: model.shards for model in settings.models}
    replicas: dict[str, dict[tuple[str, str, int], StaticReplica]] = {}
    for endpoint in settings.endpoints:
        url = _normal(endpoint.url)
        names[url] = endpoint.name or names.get(url, "")
        there = replicas.setdefault(url, {})
        for entry in endpoint.models:
            said = held(entry)
            if said is None:
                continue
            model, version, shard = said
            planned = StaticReplica(model, version, endpoint.probe, model in warmed)
            split = splits.get(model)
            if shard != WHOLE and split is not None:
                asked = split.mode is not ShardMode.TENSOR or shard == split.entry
                planned = replace(
                    planned,
                    warmup=planned.warmup and asked,
                    shard=shard,
                    shard_count=split.count,
                    group=endpoint.group,
                )
            there[said] = planned
    for model_settings in settings.models:
        for raw in model_settings.endpoints:
            name = model_settings.name
            planned = StaticReplica(name, "", model_settings.probe, name in warmed)
            replicas.setdefault(_normal(raw), {}).setdefault((name, "", WHOLE), planned)
    ids: dict[str, str] = {}
    for url in replicas:
        place = names.get(url) or url.partition("://")[2] or url
        ids[url if place in ids else place] = url
    return tuple(StaticEndpoint(id, url, tuple(replicas[url].values())) for id, url in ids.items())  # noqa: A001


def merged_endpoints(held: Iterable[tuple[str, StaticReplica]]) -> tuple[StaticEndpoint, ...]:
    """Return the endpoints that have URLs of the form SCHEME://HOST:PORT, each once, with all that they hold."""
    replicas: dict[str, dict[tuple[str, str], StaticReplica]] = {}
    for url, replica in held:
        replicas.setdefault(url, {}).setdefault((replica.model, replica.version), replica)
    ids: dict[str, str] = {}
    for url in replicas:
        place = url.partition("://")[2]
        ids[url if place in ids else place] = url
    return tuple(StaticEndpoint(id, url, tuple(replicas[url].values())) for id, url in ids.items())  # noqa: A001


def _normal(url: str) -> str:
    return url.rstrip("/")


def first_record(endpoint: StaticEndpoint) -> EndpointRecord:
    """Return the record of an endpoint of which nothing else is known: warm where nothing probes it."""
    return EndpointRecord(
        id=endpoint.id,
        address=endpoint.address,
        protocol=protocol_of(endpoint.address),
        static=True,
        replicas=tuple(_first(planned) for planned in endpoint.replicas),
    )


def _first(planned: StaticReplica) -> Replica:
    if planned.probe is not None:
        state, reason = State.COLD, NOT_PROBED_YET
    elif planned.warmup:
        state, reason = State.WARMING, NOT_WARMED_YET
    else:
        state, reason = State.WARM, ""
    proven_at = -inf if planned.warmup else None
    return Replica(
        planned.model,
        planned.version,
        planned.shard,
        planned.shard_count,
        state=state,
        reason=reason,
        proven_at=proven_at,
        group=planned.group,
    )


def next_record(
    endpoint: StaticEndpoint, before: StaticEndpoint | None, record: EndpointRecord | None
) -> EndpointRecord:
    """Return the record of an endpoint under a new configuration.

    What was found there before holds until a probe says something else, also where that is another probe. A model that
    is new there has what the same probe found for another.
    """
    first = first_record(endpoint)
    if before is None or record is None or before.address != endpoint.address:
        return first
    known = {place_of(replica): replica for replica in record.replicas}
    by_probe = {
        planned.probe: known[place_of(planned)]
        for planned in before.replicas
        if planned.probe is not None and place_of(planned) in known
    }
    replicas = []
    for planned, new in zip(endpoint.replicas, first.replicas, strict=True):
        found = None
        if planned.is_found_out:
            found = known.get(place_of(planned))
            if found is None and planned.probe is not None and not planned.warmup:
                found = by_probe.get(planned.probe)
        replicas.append(new if found is None else with_finding(new, found))
    out = replace(first, replicas=tuple(replicas))
    return with_load(out, record) if any(planned.is_found_out for planned in endpoint.replicas) else out


def place_of(one: Replica | StaticReplica) -> tuple[str, str, int]:
    """Return what tells one replica of an endpoint from its others: model, version, shard."""
    return one.model, one.version, one.shard


def with_finding(replica: Replica, found: Replica | Signal) -> Replica:
    """Return ``replica`` with what was found of it, or of another: state, reason, warmth, proof."""
    after = replace(replica, state=found.state, reason=found.reason, warmth=found.warmth)
    if replica.proven_at is None or not isinstance(found, Replica) or found.proven_at is None:
        return after
    return replace(after, proven_at=found.proven_at)


def with_load(record: EndpointRecord, found: Loaded) -> EndpointRecord:
    """Return ``record`` with what probes found of the endpoint's load."""
    return replace(
        record,
        queue_depth=found.queue_depth,
        free_memory_bytes=found.free_memory_bytes,
        total_memory_bytes=found.total_memory_bytes,
        free_memory_ratio=found.free_memory_ratio,
        queue_time_ms=found.queue_time_ms,
    )
