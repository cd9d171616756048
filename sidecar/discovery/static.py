"""Endpoints from the configuration: always there; warm, unless a probe says otherwise.

Probes run here alone, once per sidecar however many data processes it has, at a bounded rate and each at its own times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from router.model import EndpointGone, EndpointSeen, GoneReason, State
from router.urls import protocol_of
from sidecar.discovery.planned import first_record, next_record, with_finding, with_load
from sidecar.discovery.probing import Probing, merged, worth_telling
from sidecar.telemetry.logs import get_log
from sidecar.upstreams.pace import Pace
from sidecar.upstreams.probes import GRPC

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.model import EndpointRecord
    from sidecar.discovery.planned import StaticEndpoint
    from sidecar.discovery.probing import Round
    from sidecar.discovery.source import Emit
    from sidecar.settings import Probe
    from sidecar.upstreams.adapters import Load
    from sidecar.upstreams.probes import Ask

FIRST_PROBES_S = 2.0
"""Longest time that the first answers of probes are waited for before what is known goes out all the same."""
SUCCESSOR_PROBES_S = 20.0
"""The same while another sidecar serves, which knows who is warm: longer, and well within what an upgrade may take."""

JITTER = 0.1
"""Share by which the time between two probes is longer or shorter at random, so that sidecars do not ask in step."""
PROBES_PER_S = 500.0

_log = get_log("probe")

Key = tuple[str, str, "Probe"]
"""What is followed: endpoint id, address, probe."""


class StaticSource:
    """The configuration's endpoints. ``clock`` gives monotonic seconds, ``rng`` spreads the probes that ``ask`` makes.

    ``first_s`` is the longest time that first answers are waited for; a probe's own timeout is an answer.
    """

    name = "static"

    def __init__(
        self,
        endpoints: tuple[StaticEndpoint, ...],
        ask: Ask,
        *,
        clock: Callable[[], float],
        rng: Callable[[], float] = lambda: 0.5,
        first_s: float = FIRST_PROBES_S,
        probes_per_s: float = PROBES_PER_S,
    ) -> None:
        self._first_s = first_s
        self._ask = ask
        self._clock = clock
        self._rng = rng
        self.pace = Pace(probes_per_s)
        self._endpoints = {endpoint.id: endpoint for endpoint in endpoints}
        self._records = {endpoint.id: first_record(endpoint) for endpoint in endpoints}
        self._followed: dict[Key, asyncio.Task[None]] = {}
        self._unanswered: set[Key] = set()
        self._loads: dict[Key, Load] = {}
        self._emit: Emit | None = None
        self._tasks: asyncio.TaskGroup
        self._began_at = 0.0
        self.failures: dict[str, int] = {}
        """Probes by endpoint id that did not find it ready."""
        self.refused: Counter[str] = Counter()
        """Values in what endpoints said that were no use, by reason."""

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

    def configure(self, endpoints: tuple[StaticEndpoint, ...], probes_per_s: float = PROBES_PER_S) -> None:
        """Go by another configuration: say what is new, then what is gone. What probes found stays.

        Data processes take out nothing before what replaces it has answered (``sidecar.discovery.members``).
        """
        self.pace.configure(probes_per_s)
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
        wanted: dict[Key, None] = {
            (endpoint.id, endpoint.address, replica.probe): None
            for endpoint in self._endpoints.values()
            for replica in endpoint.replicas
            if replica.probe is not None
        }
        for key in self._followed.keys() - wanted.keys():
            self._followed.pop(key).cancel()
            self._unanswered.discard(key)
            self._loads.pop(key, None)
        for key in wanted:
            if key not in self._followed:
                self._unanswered.add(key)
                self._followed[key] = self._tasks.create_task(self._follow(*key), name=f"probe-{key[0]}")

    async def _follow(self, id: str, address: str, probe: Probe) -> None:  # noqa: A002
        key = (id, address, probe)
        probing = Probing(probe, grpc=protocol_of(address) == GRPC)
        spread_s = probe.interval_s * self._rng()  # they all began at once
        while True:
            replicas = self._endpoints[id].replicas
            held = list(dict.fromkeys((one.model, one.version) for one in replicas if one.probe == probe))
            questions = probing.questions(held, self._clock())
            late_s = self.pace.book(len(questions), self._clock())
            if late_s:
                await asyncio.sleep(late_s)
            answers = await self._ask(address, questions, probe.timeout_s)
            found = probing.take(held, dict(zip(questions, answers, strict=True)), self._clock())
            if not found.signals:
                _log.info("probe.recognised", id=id, kind=found.kind)
                continue
            self._unanswered.discard(key)
            self._take(key, found)
            now = self._clock()
            next_s = probing.next_s(now, hurry=self.pace.spare(now))
            await asyncio.sleep(min(spread_s, next_s) * (1.0 - JITTER + 2 * JITTER * self._rng()))
            spread_s = inf

    def _take(self, key: Key, found: Round) -> None:
        """Take in what a probe found, and emit the endpoint where that changes it."""
        id, _, probe = key  # noqa: A001
        self.refused.update(found.refused)
        if any(signal.state is not State.WARM for signal in found.signals.values()):
            self.failures[id] = self.failures.get(id, 0) + 1
        before = self._records[id]
        replicas = []
        for planned, replica in zip(self._endpoints[id].replicas, before.replicas, strict=True):
            signal = found.signals.get((planned.model, planned.version)) if planned.probe == probe else None
            if signal is not None:
                replica = with_finding(replica, signal)
            replicas.append(replica)
        after = replace(before, replicas=tuple(replicas))
        self._loads[key] = found.load
        load = merged(self._loads[one] for one in self._followed if one[0] == id and one in self._loads)
        if worth_telling(before, load):
            after = with_load(after, load)
        if after == before or self._emit is None:
            return
        self._records[id] = after
        self._emit(EndpointSeen(after, self._clock()))
        self._say(before, after, found)

    @staticmethod
    def _say(before: EndpointRecord, after: EndpointRecord, found: Round) -> None:
        """Log each way in which replicas became ready or ceased to be, once."""
        said = set()
        for old, new in zip(before.replicas, after.replicas, strict=True):
            if (old.state, old.reason) == (new.state, new.reason) or (new.state, new.reason) in said:
                continue
            said.add((new.state, new.reason))
            say = _log.info if new.state is State.WARM else _log.warning
            say("probe.changed", id=after.id, kind=found.kind, state=new.state, reason=new.reason)
