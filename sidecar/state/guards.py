"""What is ejected at data processes, quarantined or half open: as it is shown, and as those that start will have it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from router.breaker import Guard, GuardState
from router.evidence import tried_in_all
from router.model import BreakerRule, EjectCause, EndpointEjected, EndpointReturned
from sidecar.state.roster import Guarded, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.cluster import Cluster
    from router.model import Event
    from sidecar.channel import GuardsInForce
    from sidecar.state.processes import DataProcess
    from sidecar.state.roster import Roster


class Guards:
    """Takes in what data processes eject and let in again. ``own`` has the control process's cluster go by an event."""

    def __init__(
        self,
        cluster: Cluster,
        roster: Roster,
        processes: Sequence[DataProcess],
        own: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self.on_ejected: Callable[[EndpointEjected], None] = _nobody
        """Told of each quarantine that a data process has seen, more than once perhaps."""
        self.opened: dict[str, Counter[tuple[str, str, int, BreakerRule]]] = {}  # how often breakers did, by endpoint
        self._cluster = cluster
        self._roster = roster
        self._processes = processes
        self._own = own
        self._clock = clock

    def ejected(self, event: EndpointEjected) -> None:
        """Take in that a data process ejected somebody."""
        self._roster.ejected(event)
        for process in self._processes:  # they will all have it
            process.guards.add(guarded(event))
        self._own_ejection(event)

    def forget(self, id: str) -> None:  # noqa: A002
        """Count no breaker of an endpoint that is gone."""
        self.opened.pop(id, None)

    def broke(self, event: EndpointEjected) -> None:
        """Tell whoever wants to know of an endpoint that is quarantined."""
        if event.cause is EjectCause.QUARANTINE:
            self.on_ejected(event)

    def _own_ejection(self, event: EndpointEjected) -> None:
        """Take in an ejection; count a breaker that opened, once where several processes find the same."""
        endpoint = self._cluster.endpoints.get(event.id)
        offer = (event.model, event.version, event.shard)
        candidate = None if endpoint is None else endpoint.candidates.get(offer)
        breaker = None if candidate is None else candidate.breaker
        is_open = breaker is not None and breaker.state is GuardState.OPEN and event.at < breaker.until
        self._own(event)
        if breaker is not None and event.rule is not None and not is_open and breaker.state is GuardState.OPEN:
            counts = self.opened.setdefault(event.id, Counter())
            counts[(*offer, event.rule)] += 1
            if endpoint is not None:
                for key in [key for key in counts if key[:3] not in endpoint.candidates]:
                    del counts[key]

    def returned(self, event: EndpointReturned) -> None:
        """Take in that somebody is let in again, everywhere."""
        self._roster.returned(event)
        for process in self._processes:
            process.guards.discard(guarded(event))
        self._own(event)

    def _show_trials(self, now: float) -> None:
        """Have explanations show how trials go at the data processes that speak."""
        for event in self._cluster.guards():
            candidate = self._cluster.endpoints[event.id].candidates.get((event.model, event.version, event.shard))
            if candidate is None or event.cause is not EjectCause.BREAKER:
                continue
            told = [one.trials.get(guarded(event)) for one in self._processes if one.speaks(now)]
            known = [each for each in told if each is not None]
            candidate.breaker.elsewhere = None
            if known:
                tried = reduce(tried_in_all, [each[1] for each in known])
                candidate.breaker.elsewhere = (sum([each[0] for each in known]), tried)

    def in_force(self, process: DataProcess, message: GuardsInForce) -> None:
        """Take in what is ejected at a data process; let in what is ejected at none that speaks.

        Siblings have heard of it themselves: this is for the own cluster and for processes that are yet to start.
        """
        now = self._clock()
        if message.first:
            process.guards_named = set()
            process.trials_named = {}
        for event in message.ejected:
            process.guards_named.add(guarded(event))
            if event.tried is not None:
                process.trials_named[guarded(event)] = (event.trials, event.tried)
            endpoint = self._cluster.endpoints.get(event.id)
            if endpoint is None:
                continue
            known = replace(event, at=max(event.at, endpoint.first_seen_at))
            self._own(known)
            self.broke(event)
            guard: Guard = endpoint.quarantine
            if event.cause is not EjectCause.QUARANTINE:
                candidate = endpoint.candidates.get((event.model, event.version, event.shard))
                if candidate is None:
                    continue
                guard = candidate.ejection if event.cause is EjectCause.OUTLIER else candidate.breaker
            if guard.state is not GuardState.CLOSED and known.until > now:  # else it returned while the list came
                self._roster.ejected(known)
        if not message.last:
            return
        process.guards = process.guards_named
        process.trials = process.trials_named
        self._show_trials(now)
        there: set[Guarded] = set()
        for one in self._processes:
            if one.speaks(now):
                there |= one.guards
        for own in self._cluster.guards():
            if guarded(own) not in there:
                self.returned(EndpointReturned(own.id, own.cause, now, own.model, own.version, own.shard))


def _nobody(event: EndpointEjected) -> None:
    """Nobody wants to be told."""
