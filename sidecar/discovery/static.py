"""Endpoints from the configuration: always there; warm, unless a probe says otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router.model import EndpointRecord, EndpointSeen, Replica, State
from router.urls import protocol_of
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.discovery.source import Emit
    from sidecar.settings import Probe, Settings
    from sidecar.upstreams.adapters import SignalAdapter
    from sidecar.upstreams.probes import Ask

NOT_PROBED_YET = "not probed yet"

_log = get_log("probe")


@dataclass(frozen=True, slots=True)
class StaticReplica:
    """One model on one static endpoint, and how its readiness is found out (None: it counts as warm)."""

    model: str
    version: str
    probe: Probe | None


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """One endpoint of the configuration, merged from every place that names its URL."""

    id: str
    address: str
    replicas: tuple[StaticReplica, ...]


def static_endpoints(settings: Settings) -> tuple[StaticEndpoint, ...]:
    """Return the endpoints that ``settings`` names, each URL once.

    The id is the endpoint's ``name``, else the URL's HOST:PORT; all of ``unix:/PATH``, or of a URL whose HOST:PORT is
    another's already. A model may be named at the endpoint and the endpoint at the model: where both do, the endpoint's
    own probe counts.
    """
    names: dict[str, str] = {}
    replicas: dict[str, dict[tuple[str, str], StaticReplica]] = {}
    for endpoint in settings.endpoints:
        url = _normal(endpoint.url)
        names[url] = endpoint.name or names.get(url, "")
        held = replicas.setdefault(url, {})
        for entry in endpoint.models:
            model, _, version = entry.partition("@")
            held[model, version] = StaticReplica(model, version, endpoint.probe)
    for model_settings in settings.models:
        for raw in model_settings.endpoints:
            key = (model_settings.name, "")
            replica = StaticReplica(model_settings.name, "", model_settings.probe)
            replicas.setdefault(_normal(raw), {}).setdefault(key, replica)
    ids: dict[str, str] = {}
    for url in replicas:
        place = names.get(url) or url.partition("://")[2] or url
        ids[url if place in ids else place] = url
    return tuple(StaticEndpoint(id, url, tuple(replicas[url].values())) for id, url in ids.items())  # noqa: A001


def _normal(url: str) -> str:
    return url.rstrip("/")


class StaticSource:
    """The configuration's endpoints. ``clock`` gives monotonic seconds; ``ask`` and ``adapter`` make the probes."""

    name = "static"

    def __init__(
        self,
        endpoints: tuple[StaticEndpoint, ...],
        ask: Ask,
        adapter: SignalAdapter,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._adapter = adapter
        self._clock = clock
        self._endpoints = {endpoint.id: endpoint for endpoint in endpoints}
        self._records = {endpoint.id: _first_record(endpoint) for endpoint in endpoints}
        self._complete = False
        self.failures: dict[str, int] = {}
        """Probes by endpoint id that did not find it ready."""

    @property
    def tried(self) -> bool:
        """The same as ``complete``."""
        return self._complete

    @property
    def complete(self) -> bool:
        """Whether all endpoints have been emitted."""
        return self._complete

    async def run(self, emit: Emit) -> None:
        """Emit all endpoints at once, then each again whenever a probe changes it."""
        now = self._clock()
        for record in self._records.values():
            emit(EndpointSeen(record, now))
        self._complete = True
        async with asyncio.TaskGroup() as tasks:
            for endpoint in self._endpoints.values():
                for probe in {replica.probe: None for replica in endpoint.replicas if replica.probe is not None}:
                    tasks.create_task(self._follow(endpoint, probe, emit), name=f"probe-{endpoint.id}")
            tasks.create_task(asyncio.Event().wait(), name="static-forever")

    async def _follow(self, endpoint: StaticEndpoint, probe: Probe, emit: Emit) -> None:
        while True:
            signal = self._adapter.read(await self._ask(endpoint.address, probe.path, probe.timeout_s))
            if signal.state is not State.WARM:
                self.failures[endpoint.id] = self.failures.get(endpoint.id, 0) + 1
            before = self._records[endpoint.id]
            after = replace(
                before,
                replicas=tuple(
                    replace(replica, state=signal.state, reason=signal.reason) if planned.probe == probe else replica
                    for planned, replica in zip(endpoint.replicas, before.replicas, strict=True)
                ),
            )
            if after != before:
                self._records[endpoint.id] = after
                emit(EndpointSeen(after, self._clock()))
                say = _log.info if signal.state is State.WARM else _log.warning
                say("probe.changed", id=endpoint.id, path=probe.path, state=signal.state, reason=signal.reason)
            await asyncio.sleep(probe.interval_s)


def _first_record(endpoint: StaticEndpoint) -> EndpointRecord:
    return EndpointRecord(
        id=endpoint.id,
        address=endpoint.address,
        protocol=protocol_of(endpoint.address),
        static=True,
        replicas=tuple(
            Replica(planned.model, planned.version)
            if planned.probe is None
            else Replica(planned.model, planned.version, state=State.COLD, reason=NOT_PROBED_YET)
            for planned in endpoint.replicas
        ),
    )
