"""Simulated proxies: processes that run a law each, and tell their siblings what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.model import BreakerRule, EndpointEjected, EndpointRecord, EndpointSeen, EndpointsHeard, Event
from router.outcomes import AttemptResult
from tests.sim.workers import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from tests.sim.laws import Law, Pick
    from tests.sim.measures import Measures
    from tests.sim.timeline import Timeline
    from tests.sim.workers import Worker

TICK_S = 0.1
OBSERVE_S = 1.0
CHANNEL_S = 0.002
"""How long a word takes from one process of a sidecar to the next."""


class Request:
    """What a caller asked, and the attempt that is made for it now."""

    __slots__ = ("came", "model", "pick", "process", "tried", "tries")

    def __init__(self, process: Process, model: str, came: float) -> None:
        self.process = process
        self.model = model
        self.came = came
        self.tries = 0
        self.pick: Pick | None = None
        self.tried: Pick | None = None


class Process:
    """One process of a proxy, which decides for itself."""

    def __init__(self, law: Law, workers: Mapping[str, Worker], timeline: Timeline, measures: Measures) -> None:
        self.law = law
        self.siblings: list[Process] = []
        self.on_ejected: Callable[[str], None] | None = None
        self._workers = workers
        self._timeline = timeline
        self._measures = measures

    def begin(self, model: str) -> None:
        """Take a request that has arrived."""
        self._measures.came()
        self._attempt(Request(self, model, self._timeline.now))

    def _attempt(self, request: Request) -> None:
        now = self._timeline.now
        pick = self.law.choose(request.model, now, request.tried)
        if pick is None:
            self._measures.failed(request.came)
            return
        id_ = pick.endpoint.id
        request.pick = pick
        request.tries += 1
        self._measures.picked(id_, now)
        self._workers[id_].arrive(Job(request.model, request, self._ended))

    def _ended(self, job: Job, result: AttemptResult) -> None:
        request = job.owner
        assert isinstance(request, Request)
        assert request.pick is not None
        now = self._timeline.now
        pick, law = request.pick, self.law
        events = law.done(pick, result, now)
        if events:
            self._share(events)
        if result is AttemptResult.SUCCESS:
            self._measures.answered(request.came, now)
            return
        after_s = law.retry(pick, result, request.tries, now)
        if after_s is None:
            self._measures.failed(request.came)
            return
        request.tried = pick
        self._timeline.at(now + after_s, self._attempt, request)

    def _share(self, events: Sequence[Event]) -> None:
        for event in events:
            for sibling in self.siblings:
                self._timeline.at(self._timeline.now + CHANNEL_S, sibling.take, event)
            if self.on_ejected is None or not isinstance(event, EndpointEjected):
                continue
            if event.rule is not BreakerRule.SURGE:  # one that is merely slow answers, and has nothing to prove
                self.on_ejected(event.id)

    def take(self, event: Event) -> None:
        """Have the law learn of an event."""
        self.law.take(event, self._timeline.now)

    def tick(self, now: float) -> None:
        """Do what is done ten times a second."""
        self._share(self.law.tick(now))

    def observe(self, index: int, now: float) -> None:
        """Tell siblings what was seen in the last second."""
        self._share(self.law.observe(index, now))


class Sidecar:
    """The processes of one proxy, and its one view of the shared state."""

    def __init__(self, processes: Sequence[Process], timeline: Timeline, rng: Random) -> None:
        self.processes = processes
        self._timeline = timeline
        self._records: dict[str, EndpointRecord] = {}
        for index, process in enumerate(processes):
            process.siblings = [each for each in processes if each is not process]
            timeline.every(TICK_S, process.tick, rng.random() * TICK_S)
            timeline.every(
                OBSERVE_S,
                lambda now, process=process, index=index: process.observe(index, now),  # type: ignore[misc]
                rng.random() * OBSERVE_S,
            )

    def on_ejected(self, call: Callable[[str], None]) -> None:
        """Have ``call(id)`` happen where a process ejects an endpoint."""
        for process in self.processes:
            process.on_ejected = call

    def take(self, event: Event) -> None:
        """Pass an event to every process."""
        now = self._timeline.now
        for process in self.processes:
            process.law.take(event, now)

    def arrived(self, record: EndpointRecord) -> None:
        """Take a report; one that says nothing new is a heartbeat."""
        last = self._records.get(record.id)
        now = self._timeline.now
        self._records[record.id] = record
        if last is not None and _same(last, record):
            self.take(EndpointsHeard((record.id,), now))
        else:
            self.take(EndpointSeen(record, now))

    def checked(self, id_: str, passed: bool, *, proven: bool = False) -> None:
        """Pass on what a check says, or a warm-up request has ``proven``."""
        for process in self.processes:
            process.law.checked(id_, passed, self._timeline.now, proven=proven)


def _same(one: EndpointRecord, other: EndpointRecord) -> bool:
    """Return whether nothing but time has passed between two records."""
    return (
        one.epoch == other.epoch
        and one.free_memory_bytes == other.free_memory_bytes
        and one.queue_depth == other.queue_depth
        and [each.state for each in one.replicas] == [each.state for each in other.replicas]
    )
