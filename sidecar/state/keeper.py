"""Where everything about the fleet comes together in the control process, and from where it goes out again.

Sources say what endpoints there are, data processes what they saw, operators what they want. The keeper puts it into
the roster and into a cluster of its own (for ``/routes`` and explanations), and feeds it to the data processes.
Synchronous: every method runs to its end on the loop.
"""

from __future__ import annotations

import secrets
import time
from math import inf
from typing import TYPE_CHECKING

from router.model import (
    BreakersHinted,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    FleetMeasured,
    GoneReason,
    LoadsReported,
    PeerObserved,
    PrefixesSeen,
    ReplicaMeasured,
    Tick,
)
from sidecar.channel import AnswerAsked, AnswerKept, GuardsInForce, Hello, Listening, LoadWanted, Ping
from sidecar.faults.configured import changes
from sidecar.faults.signals.altering import Signals, Word
from sidecar.pids import start_ticks
from sidecar.state.feed import Feed
from sidecar.state.guards import Guards
from sidecar.state.memory import KnownName, Remembered
from sidecar.state.processes import DataProcess, Living
from sidecar.state.roster import RECALLED, Roster, heard_messages
from sidecar.state.steering import Steering
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from router.cluster import Cluster
    from router.model import Event
    from router.policy import ModelPolicy
    from router.sketches import Merged
    from sidecar.channel import Channel
    from sidecar.discovery.source import DiscoverySource, Found
    from sidecar.faults.rules import FaultRule
    from sidecar.settings import Fault
    from sidecar.state.drilling import DrillLease
    from sidecar.state.memory import Memory

PING_S = 0.5
MEASURED_ROWS = 48
"""Replicas in one FleetMeasured: what a message holds even where every name and sketch is as long as it may be."""

REMEMBER_S = 1.0
"""The last good view is kept at most this often."""

HEARD_S = 0.1
"""Heartbeats go out together, this often."""

_log = get_log("keeper")


class Keeper:
    """The fleet as the control process keeps it. ``clock`` gives monotonic seconds.

    ``remembered`` is what ``memory`` held at the start. ``runs`` says whether a process lives. ``load_wanted`` hears of
    models that requests wait for and nobody has loaded.
    """

    def __init__(
        self,
        cluster: Cluster,
        channels: Sequence[Channel],
        sources: Sequence[DiscoverySource],
        memory: Memory,
        remembered: Remembered,
        *,
        clock: Callable[[], float],
        models: Iterable[ModelPolicy] = (),
        wall: Callable[[], float] = time.time,
        runs: Callable[[int], bool] = lambda pid: start_ticks(pid) is not None,
    ) -> None:
        self.cluster = cluster
        self.roster = Roster(clock())
        self.feed = Feed(channels, self)
        self.processes = tuple(DataProcess(index) for index in range(len(channels)))
        self.sources = tuple(sources)
        self._clock = clock
        self.guards = Guards(cluster, self.roster, self.processes, self._own, clock)
        self._living = Living(self.processes, runs, clock())
        self._epoch = secrets.token_hex(8)
        self._sequence = 0
        self._heard: dict[str, None] = {}
        self._heard_at = 0.0
        self._heard_due = 0.0
        self._ping_due = 0.0
        self._told_whole = False
        self._expecting: set[int] = set()
        self._measured: set[str] = set()
        self._answered: dict[str, float] = {}
        self.on_answer: Callable[[int, AnswerKept | AnswerAsked], None] = _unheard
        self.latencies: Callable[[], Iterable[Merged]] = tuple
        """All that other sidecars measured, for a process that is new; set by the composition."""
        self._contested = Throttle(10.0)
        self._memory = memory
        self.roster.held.update(remembered.held)
        self.roster.faults.update((rule.id, rule) for rule in remembered.faults)
        self.signals = Signals()
        self.signals.put(remembered.faults, [Word(record, clock(), clock()) for record in remembered.records])
        self._recalled = remembered.records
        self.names = remembered.names
        self._begun_faults = remembered.begun_faults
        self.drill = remembered.drill
        """The drill that had this sidecar last; its time may be over."""
        self.steering = Steering(cluster, models, wall)
        self.steering.restore(remembered.steered)
        for event in self.steering.messages():
            self._own(event)
        self._remember_due = 0.0
        self._unsaved = False
        self.load_wanted: Callable[[str, str], None] = lambda model, version: None

    @property
    def observed(self) -> bool:
        """Whether any endpoint that is there has a latency measured by this sidecar."""
        return bool(self._measured)

    def answered_at(self, id: str) -> float:  # noqa: A002
        """Return when a data process last said that an endpoint answered a request, minus infinity where none did."""
        return self._answered.get(id, -inf)

    @property
    def tried(self) -> bool:
        """Whether every source's first attempt to learn everything is over, first probes included."""
        return all(source.tried for source in self.sources)

    @property
    def complete(self) -> bool:
        """Whether all sources have said everything: what is not in the roster is not there."""
        return all(source.complete for source in self.sources)

    # --- sources ------------------------------------------------------------------------------------------------

    def emit_for(self, source: DiscoverySource) -> Callable[[Found], None]:
        """Return where ``source`` emits to."""
        return lambda event: self.found(source.name, event)

    def found(self, source: str, event: Found) -> None:
        """Take in what a source says of an endpoint, or the store's mode."""
        mine = self.roster.found(source, event)
        if mine is None:
            if isinstance(event, EndpointSeen) and self._contested.admit(self._clock()) is not None:
                _log.warning("endpoint.contested", id=event.record.id, source=source)
            return
        if not isinstance(mine, EndpointsHeard):
            self._unsaved = True
        if not self.signals.rules:
            self._tell(mine)
            return
        if isinstance(mine, EndpointSeen):
            seen = self.signals.seen(mine)
            if seen is not None:
                self._tell(seen)
        elif isinstance(mine, EndpointsHeard):
            records = [word.record for word in map(self.roster.word, mine.ids) if word is not None]
            on_time, *late = self.signals.heard(mine, records)
            if on_time.ids:
                self._tell(on_time)
            for one in late:
                self._pass_on(one)
        else:
            if isinstance(mine, EndpointGone):
                self.signals.gone(mine.id)
            self._tell(mine)

    def _tell(self, event: Found) -> None:
        """Go by what a source says, and tell it: signs of life together."""
        if isinstance(event, EndpointsHeard):
            self._own(event)
            if not self._heard:
                self._heard_at = event.at
            self._heard.update(dict.fromkeys(event.ids))
            return
        if isinstance(event, EndpointGone):
            self._measured.discard(event.id)
            self._answered.pop(event.id, None)
            self.guards.forget(event.id)
            self._heard.pop(event.id, None)
        self._pass_on(event)
        if isinstance(event, EndpointSeen) and event.record.id in self.roster.held:
            self._hold(event.record.id, held=True)  # it may have been away, and be another process now

    def _pass_on(self, event: Found) -> None:
        """Go by an event, and tell it at once."""
        self._own(event)
        self.feed.send(event)

    def _faults_changed(self) -> None:
        """Go by the faults that are in force now: keep them, tell them, and tell endpoints' words as they make them."""
        for id in self.signals.put(self.roster.faults.values(), list(self.roster.words())):  # noqa: A001
            word = self.roster.word(id)
            told = None if word is None else self.signals.told(word)
            if told is not None:
                self._pass_on(EndpointSeen(told.record, told.seen_at))
                self._pass_on(EndpointsHeard((id,), told.heard_at))
        self._remember()
        self.feed.send(self.roster.faults_message())

    def _own(self, event: Event) -> None:
        self.cluster.apply(event, self._clock())
        self.cluster.departed.clear()  # pools and rows of their own only data processes have
        self.cluster.panicked.clear()
        self.cluster.failing.clear()
        self.cluster.half_opened.clear()  # and it is they that send requests there
        if self.cluster.differing:
            self._say_who_differs()

    def _say_who_differs(self) -> None:
        for candidate in self.cluster.differing:
            id, model, version = candidate.endpoint.id, candidate.model, candidate.version  # noqa: A001
            if candidate.inconsistent:
                why = candidate.differs
                _log.error("replica.inconsistent", id=id, model=model, version=version, why=why)
            elif not candidate.gone:
                _log.info("replica.consistent", id=id, model=model, version=version)
        self.cluster.differing.clear()

    def measured(self, rows: Iterable[Merged]) -> None:
        """Take in what other sidecars measured, and pass it on."""
        for message in measured_messages(rows, self._clock()):
            self._own(message)
            self.feed.send(message)

    # --- data processes -----------------------------------------------------------------------------------------

    def snapshot_messages(self) -> list[object]:
        """Return all that a data process must know."""
        self._sequence += 1
        now = self._clock()
        return [
            self._ping(),
            *self.steering.messages(),  # requests may come with the snapshot's end
            *self.roster.snapshot(self._sequence, now, self.signals.told),
            *measured_messages(self.latencies(), now),
        ]

    def from_data(self, index: int, message: object) -> None:
        """Take in what data process ``index`` says."""
        process = self.processes[index]
        process.spoke_at = self._clock()
        if isinstance(message, PeerObserved):
            self._own(message)
            self.steering.observed(message)
            self.feed.send(message, but=index)
            now = self._clock()
            for observed in message.observations:
                if observed.id in self.roster:
                    if any(seen.ewma_ms is not None for seen in observed.seen):
                        self._measured.add(observed.id)
                    if any(seen.successes or seen.others for seen in observed.seen):
                        self._answered[observed.id] = now
        elif isinstance(message, PrefixesSeen):
            self._own(message)
            self.feed.send(message, but=index)
        elif isinstance(message, EndpointEjected):
            self.guards.ejected(message)
            self.feed.send(message, but=index)
            self.guards.broke(message)
        elif isinstance(message, EndpointReturned):
            self.guards.returned(message)
            self.feed.send(message, but=index)
        elif isinstance(message, GuardsInForce):
            self.guards.in_force(process, message)
        elif isinstance(message, AnswerKept | AnswerAsked):
            self.on_answer(index, message)
        elif isinstance(message, Hello):
            self._hello(process, message)
        elif isinstance(message, LoadWanted):
            self.load_wanted(message.model, message.version)
        elif isinstance(message, Listening):
            process.listeners[message.listener] = message
            _log.info(
                "listener.granted",
                data_process=index,
                listener=message.listener,
                address=message.address,
                backlog=message.backlog,
                fastopen_queue=message.fastopen_queue,
            )

    def hinted(self, event: BreakersHinted) -> None:
        """Take in what another sidecar says of its breakers."""
        self._own(event)
        self.feed.send(event)

    def _hello(self, process: DataProcess, hello: Hello) -> None:
        if process.epoch != hello.epoch:
            process.epoch, process.pid = hello.epoch, hello.pid
            process.hellos += 1
            process.listeners.clear()
            process.guards = set(self.roster.ejections)  # the snapshot that it gets will name them
            _log.info("process.hello", data_process=process.index, pid=hello.pid)
        self._expecting.add(process.index)
        self._greet()

    def _greet(self) -> None:
        """Answer those that said hello, as soon as the first attempt to learn everything is over."""
        if self._expecting and self.tried:
            for index in sorted(self._expecting):
                self.feed.send_snapshot(index)
            self._expecting.clear()

    def loads_reported(self, event: LoadsReported) -> None:
        """Take in what endpoints said of their load out of band."""
        there = tuple((id_, report) for id_, report in event.reports if id_ in self.roster)
        records = {id_: word.record for id_, _ in there if (word := self.roster.word(id_)) is not None}
        known = self.signals.reported(LoadsReported(there, event.at), records)
        if known.reports:
            self._own(known)
            self.feed.send(known)

    # --- operators ----------------------------------------------------------------------------------------------

    def hold(self, id: str, *, held: bool) -> None:  # noqa: A002
        """Drain (``held``) or resume an endpoint at this sidecar.

        Raises:
            RosterError: too many are held.
        """
        self.roster.hold(id, held=held)
        self._remember()
        self._hold(id, held=held)

    def _hold(self, id: str, *, held: bool) -> None:  # noqa: A002
        event = EndpointHeld(id, held=held, at=self._clock())
        self._own(event)
        self.feed.send(event)

    def add_fault(self, rule: FaultRule) -> None:
        """Put a fault in force, in place of one with the same id."""
        self.roster.faults[rule.id] = rule
        self._faults_changed()

    def remove_fault(self, id: str) -> bool:  # noqa: A002
        """End a fault; return whether there was one."""
        if self.roster.faults.pop(id, None) is None:
            return False
        self._faults_changed()
        return True

    def lease(self, drill: DrillLease | None) -> None:
        """Let a drill have this sidecar, or none."""
        self.drill = drill
        self._remember()

    def configure_faults(self, faults: Iterable[Fault], most: int) -> None:
        """Begin and end the faults of the configuration, where it is another; at most so many are in force."""
        begin, end, begun = changes(faults, self._begun_faults, self._clock())
        if begun == self._begun_faults:
            return
        self._begun_faults = begun
        for name in end:
            self.roster.faults.pop(name, None)
        for rule in begin:
            if rule.id in self.roster.faults or len(self.roster.faults) < most:
                self.roster.faults[rule.id] = rule
            else:
                _log.warning("fault.refused", fault=rule.id, most=most)
        self._faults_changed()

    def configure(self, models: Iterable[ModelPolicy]) -> None:
        """Take another configuration's word on versions, where it is another."""
        if self.steering.configure(models, self._clock()):
            self.steered()

    def steered(self) -> None:
        """Something is steered otherwise than before: keep it, and tell everybody."""
        self._remember()
        for event in self.steering.messages():
            self._own(event)
            self.feed.send(event)

    def name_names(self, names: tuple[KnownName, ...]) -> None:
        """Keep what names that were looked up stand for."""
        self.names = names
        self._unsaved = True

    def _remember(self) -> None:
        records = tuple(record for record, _, _ in self.roster.records() if not record.static)
        kept = self._recalled if self._recalled and not self._told_whole else records
        steered = tuple(self.steering.records.values())
        held, faults = tuple(self.roster.held), tuple(self.roster.faults.values())
        self._memory.save(Remembered(held, faults, kept, steered, self.names, self._begun_faults, self.drill))
        self._unsaved = False

    def _recall(self) -> None:
        """Go by what an earlier control process knew, where the store does not answer at the start of this one."""
        now = self._clock()
        _log.warning("fleet.recalled", endpoints=len(self._recalled))
        for record in self._recalled:
            if record.id not in self.roster:
                self.found(RECALLED, EndpointSeen(record, now))
        self._recalled = ()

    def _drop_recalled(self) -> None:
        """Everything is known now: what was only recalled is not there any more."""
        self._recalled = ()
        for id in [record.id for record, source, _ in self.roster.records() if source == RECALLED]:  # noqa: A001
            self.found(RECALLED, EndpointGone(id, GoneReason.EXPIRED, self._clock()))

    # --- time ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to feed, on the running loop. Say what is known; nothing is taken away yet."""
        self.feed.start()
        self.feed.send(self._ping())

    def _ping(self) -> Ping:
        return Ping(self._clock(), self._epoch, self.alive)

    @property
    def alive(self) -> tuple[int, ...]:
        """The data processes that limits are divided over, by index; none while that is not known yet."""
        return self._living.indices

    def tick(self) -> None:
        """Let time pass; called about ten times a second."""
        now = self._clock()
        if self._recalled and not self.complete and self.tried:
            self._recall()
        self._greet()
        if not self._told_whole and self.complete and self.tried:  # a snapshot sets those going that only start
            self._told_whole = True
            self._drop_recalled()
            self._heard.clear()
            self.feed.send_snapshot()  # processes that were there before us: what we do not name is gone
        if self._heard and now >= self._heard_due:
            self._heard_due = now + HEARD_S
            heard, self._heard = list(self._heard), {}
            self.feed.send(*heard_messages(heard, self._heard_at))
        if self.roster.expire(now):
            self._faults_changed()
            _log.info("fault.expired", left=len(self.roster.faults))
        if self._unsaved and now >= self._remember_due:
            self._remember_due = now + REMEMBER_S
            self._remember()
        if self._living.look(now) or now >= self._ping_due:
            self._ping_due = now + PING_S
            self.feed.ping(self._ping())
        self._own(Tick())
        if self.steering.tick(now):
            self.steered()


def measured_messages(rows: Iterable[Merged], at: float) -> Iterator[FleetMeasured]:
    """Yield what other sidecars measured in pieces that fit a message."""
    measured = [ReplicaMeasured(*key, sidecars, pairs) for key, pairs, sidecars in rows]
    for start in range(0, len(measured), MEASURED_ROWS):
        yield FleetMeasured(tuple(measured[start : start + MEASURED_ROWS]), at)


def _unheard(index: int, message: AnswerKept | AnswerAsked) -> None:
    """There is no store."""
