"""Endpoints from the configuration: always there; warm, unless a probe says otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from router.model import EndpointGone, EndpointSeen, GoneReason, State
from sidecar.discovery.planned import first_record, next_record
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.discovery.planned import StaticEndpoint
    from sidecar.discovery.source import Emit
    from sidecar.settings import Probe
    from sidecar.upstreams.adapters import SignalAdapter
    from sidecar.upstreams.probes import Ask

FIRST_PROBES_S = 2.0
"""Longest time that the first answers of probes are waited for before what is known goes out all the same."""
SUCCESSOR_PROBES_S = 20.0
"""The same while another sidecar serves, which knows who is warm: longer, and well within what an upgrade may take."""

_log = get_log("probe")


class StaticSource:
    """The configuration's endpoints. ``clock`` gives monotonic seconds; ``ask`` and ``adapter`` make the probes.

    ``first_s`` is the longest time that first answers are waited for; a probe's own timeout is an answer.
    """

    name = "static"

    def __init__(
        self,
        endpoints: tuple[StaticEndpoint, ...],
        ask: Ask,
        adapter: SignalAdapter,
        *,
        clock: Callable[[], float],
        first_s: float = FIRST_PROBES_S,
    ) -> None:
        self._first_s = first_s
        self._ask = ask
        self._adapter = adapter
        self._clock = clock
        self._endpoints = {endpoint.id: endpoint for endpoint in endpoints}
        self._records = {endpoint.id: first_record(endpoint) for endpoint in endpoints}
        self._followed: dict[tuple[str, str, Probe], asyncio.Task[None]] = {}  # by id, address and probe
        self._unanswered: set[tuple[str, str, Probe]] = set()
        self._emit: Emit | None = None
        self._tasks: asyncio.TaskGroup
        self._began_at = 0.0
        self.failures: dict[str, int] = {}
        """Probes by endpoint id that did not find it ready."""

    @property
    def tried(self) -> bool:
        """Whether all endpoints have been emitted, and each was probed once (or that takes too long)."""
        return self.complete and (not self._unanswered or self._clock() - self._began_at >= self._first_s)

    @property
    def complete(self) -> bool:
        """Whether all endpoints have been emitted."""
        return self._emit is not None

    async def run(self, emit: Emit) -> None:
        """Emit all endpoints at once, then each again whenever a probe or a new configuration changes it."""
        now = self._began_at = self._clock()
        for record in self._records.values():
            emit(EndpointSeen(record, now))
        async with asyncio.TaskGroup() as self._tasks:
            self._emit = emit
            self._follow_all()
            self._tasks.create_task(asyncio.Event().wait(), name="static-forever")

    def configure(self, endpoints: tuple[StaticEndpoint, ...]) -> None:
        """Go by another configuration: say what is new, then what is gone. What probes found stays.

        Data processes take out nothing before what replaces it has answered (``sidecar.discovery.members``).
        """
        before, records = self._endpoints, self._records
        self._endpoints = {endpoint.id: endpoint for endpoint in endpoints}
        self._records = {
            id: next_record(endpoint, before.get(id), records.get(id))
            for id, endpoint in self._endpoints.items()  # noqa: A001
        }
        for id in before.keys() - self._endpoints.keys():  # noqa: A001
            self.failures.pop(id, None)
        if self._emit is None:
            return
        now = self._clock()
        for id, record in self._records.items():  # noqa: A001
            if record != records.get(id):
                self._emit(EndpointSeen(record, now))
        for id in before.keys() - self._endpoints.keys():  # noqa: A001
            self._emit(EndpointGone(id, GoneReason.REMOVED, now))
        self._follow_all()

    def _follow_all(self) -> None:
        """Have each probe of each endpoint made, and no other."""
        wanted = {
            (endpoint.id, endpoint.address, replica.probe): None
            for endpoint in self._endpoints.values()
            for replica in endpoint.replicas
            if replica.probe is not None
        }
        for key in self._followed.keys() - wanted.keys():
            self._followed.pop(key).cancel()
            self._unanswered.discard(key)
        for key in wanted:
            if key not in self._followed:
                self._unanswered.add(key)
                self._followed[key] = self._tasks.create_task(self._follow(*key), name=f"probe-{key[0]}")

    async def _follow(self, id: str, address: str, probe: Probe) -> None:  # noqa: A002
        while True:
            signal = self._adapter.read(await self._ask(address, probe.path, probe.timeout_s))
            self._unanswered.discard((id, address, probe))
            if signal.state is not State.WARM:
                self.failures[id] = self.failures.get(id, 0) + 1
            before = self._records[id]
            after = replace(
                before,
                replicas=tuple(
                    replace(replica, state=signal.state, reason=signal.reason) if planned.probe == probe else replica
                    for planned, replica in zip(self._endpoints[id].replicas, before.replicas, strict=True)
                ),
            )
            if after != before and self._emit is not None:
                self._records[id] = after
                self._emit(EndpointSeen(after, self._clock()))
                say = _log.info if signal.state is State.WARM else _log.warning
                say("probe.changed", id=id, path=probe.path, state=signal.state, reason=signal.reason)
            await asyncio.sleep(probe.interval_s)
