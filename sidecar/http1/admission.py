"""Requests that wait: for room at an endpoint or for their model, or for a replica that is warm.

Nobody waits while there is room, so this stands where a choice found nobody. A line is what waits on one route; order
and bounds are :class:`router.admission.AdmissionQueue`'s. While a line is there, everybody else on its route is told to
queue too (``Cluster.hold_back``), and whatever ends is told here; without one, nothing on a request's way looks here.

A request that waits has its :class:`Ticket` where its timer would be: whatever ends the request cancels that. One timer
serves the earliest deadline of all lines.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from router.admission import Bounds, Refusal, Waiter
from router.outcomes import Outcome, Reason
from router.policy import OnNoCandidate
from router.retry import NOBODY_ELSE
from sidecar.http1.gates import AdmitStep, Gate, Permit
from sidecar.http1.lines import Caller, Line, Ticket
from sidecar.http1.sorting import Asking, Sorting
from sidecar.settings import Admission, Wait
from sidecar.telemetry.logs import Throttle, get_log
from sidecar.telemetry.page import (
    MODEL_ADMITTED_NOW,
    MODEL_ADMITTED_SHARE,
    MODEL_QUEUE_NOW,
    MODEL_QUEUED,
    MODEL_TURNED_AWAY,
    QUEUED_SUM,
    REFUSAL_WORDS,
    bucket,
)

if TYPE_CHECKING:
    import asyncio

    from router.endpoint import Endpoint
    from router.retry import Failed
    from router.routes import NoCandidate, Route
    from sidecar.http1.plane import Plane
    from sidecar.http1.steps import Course
    from sidecar.http1.targets import Target
    from sidecar.settings import Model

MOST_TURNS: Final = 64
"""Turns at once; then others on the loop have theirs."""
WANT_AGAIN_S: Final = 2.0
"""How often a load is asked for while somebody waits for it: the one who loads counts it once."""
LOG_S: Final = 10.0
CLOCK_S: Final = 0.002
"""How much earlier than asked a timer of the loop may come."""

_EVICTED: Final = frozenset({Refusal.DISPLACED, Refusal.DISPLACED_BY_SHARE, Refusal.TIMEOUT, Refusal.DEADLINE})
_BY_OTHERS: Final = frozenset({Refusal.FULL, Refusal.SHARE, Refusal.DISPLACED, Refusal.DISPLACED_BY_SHARE})
_OVER_SHARE: Final = frozenset({Refusal.SHARE, Refusal.DISPLACED_BY_SHARE})
_WHY: Final = {
    Refusal.FULL: "the queue is full",
    Refusal.SHARE: "the queue is full, and this tenant has more in it than its share",
    Refusal.DEADLINE: "the caller's time would be over before its turn",
    Refusal.SLOW: "its turn would not come in time",
    Refusal.DISPLACED: "a request of a higher class took its place in the queue",
    Refusal.DISPLACED_BY_SHARE: "the queue is full, and this tenant has more in it than its share",
    Refusal.TIMEOUT: "its turn did not come in time",
}
_REFUSAL_INDEX: Final = {refusal: index for index, refusal in enumerate(Refusal)}
_log = get_log("admission")


class AdmissionPlane:
    """All lines and gates of one data process.

    ``waiting``: somebody waits for room, so whatever ends has to be told (:meth:`released`).
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lines: dict[tuple[str, str], Line] = {}  # those in which somebody waits
        self._gates: dict[str, Gate] = {}
        self._rules: dict[str, Wait] = {}
        self._place, self._places = 0, 1
        self._full: set[Line] = set()  # those that wait for room
        self._coming = False  # a look at lines is due in this turn of the loop: at those on these endpoints,
        self._freed: set[Endpoint] = set()
        self._freed_models: set[str] = set()  # at those of these models,
        self._all = False  # or at all of them
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        self._in_turn: Ticket | None = None
        self._kept = False  # who is in turn found nobody, and waits on
        self._generation = -1
        self._throttle = Throttle(LOG_S)
        self._default_wait = Wait()
        self.waiting = False
        self.configure(Admission(), ())

    # --- configuration -------------------------------------------------------------------------------------------

    def configure(self, policy: Admission, models: tuple[Model, ...]) -> None:
        """Go by other settings from now on. What waits goes on to, by those that it found."""
        self.policy = policy
        self.sorting = Sorting(policy)
        self._bounds = Bounds(policy.queue_requests, policy.queue_bytes)
        self._rules = {model.name: model.wait for model in models}
        gates: dict[str, Gate] = {}
        for model in models:
            limit = model.admission.requests
            if limit is not None:
                gate = gates[model.name] = self._gates.get(model.name) or Gate(model.name, limit)
                gate.limit = limit
        for name in self._gates.keys() - gates.keys():
            self._show(name, 0, 0)
        self._gates = gates
        self._share_out()

    def divide(self, place: int, places: int) -> None:
        """Be one of ``places`` processes that limits of the sidecar are divided over, the one at ``place``."""
        if (place, places) != (self._place, self._places):
            self._place, self._places = place, places
            self._share_out()

    def _share_out(self) -> None:
        for gate in self._gates.values():
            part, rest = divmod(gate.limit, self._places)
            gate.share = part + (self._place < rest)
        self.flush()  # the parts of all processes are added up: at once, so that the sum is right
        self.changed()

    def step_of(self, target: Target) -> AdmitStep | None:
        """Return what the requests of a target need: a :class:`sidecar.http1.steps.StepMaker`."""
        permit = self.permit_for(target.route)
        return None if permit is None else AdmitStep(self, permit.gate)

    def permit_for(self, route: Route | None) -> Permit | None:
        """Return what a request on a route has to take first, None where nothing."""
        gate = None if route is None else self._gates.get(route.model)
        return None if gate is None else Permit(self, gate)

    # --- in ------------------------------------------------------------------------------------------------------

    def keeps(self, caller: Caller, none: NoCandidate) -> bool:
        """Return whether a request that found nobody is in its turn, and so goes on to wait where it stands."""
        ticket = self._in_turn
        if ticket is None or ticket.caller is not caller:
            return False
        ticket.none = none
        self._kept = True
        return True

    @property
    def kept(self) -> bool:
        """Whether the request whose turn it is has found nobody."""
        return self._kept

    def takes(self, route: Route, none: NoCandidate) -> bool:
        """Return whether requests wait for what this one did not find."""
        if none.reason is Reason.AT_LIMIT:
            return self.policy.queue_wait_s > 0
        return route.policy.on_no_candidate is not OnNoCandidate.FAIL

    def enter(
        self,
        caller: Caller,
        route: Route,
        none: NoCandidate,
        asking: Asking,
        now: float,
        *,
        course: Course | None = None,
        permit: Permit | None = None,
        failed: Failed | None = None,
    ) -> Ticket | None:
        """Have a request wait; None where it was turned away. It is for the caller to keep the ticket.

        ``course``: it goes on with that in its turn. ``permit`` is what it needs, and gives back as long as it waits.
        ``failed``: it was tried before; that is what it is told where it is turned away.
        Requests of each shape class wait in their model's queue.
        """
        route = route.base or route
        if none.reason is Reason.AT_LIMIT:
            deadline, bounds = now + self.policy.queue_wait_s, self._bounds
        else:
            wait = self._rules.get(route.model, self._default_wait)
            deadline, bounds = now + wait.max_s, Bounds(wait.requests, wait.bytes)
        key = (route.protocol, route.key)
        line = self._lines.get(key)
        if line is None:
            row = self._plane.page.model_row(route.model)
            line = Line(self, route, row, self.policy.tenants)
        ticket = Ticket(line, caller, asking, none, course, permit, failed)
        own = asking.ends_at < deadline
        ticket.waiter = waiter = Waiter(
            ticket,
            rank=asking.rank,
            tenant=asking.tenant,
            bytes_=asking.bytes,
            deadline=asking.ends_at if own else deadline,
            own=own,
            now=now,
        )
        if now + none.warm_in_s > waiter.deadline:  # as soon as that is known, not at the end of the wait
            self._turn_away(line, ticket, Refusal.DEADLINE if own else Refusal.SLOW)
            return None
        verdict = line.queue.offer(waiter, bounds, now)
        if verdict.refusal is None:
            if permit is not None:
                permit.give_back()
            self._plane.words[line.row + MODEL_QUEUE_NOW] += 1
            self._lines[key] = line
            self._hold(line, none)
            self._arm(waiter.deadline, now)
            self._want(line, now)
        for victim, refusal in verdict.displaced:
            self._evict(line, victim, refusal)
        if verdict.refusal is None:
            return ticket
        self._turn_away(line, ticket, verdict.refusal)
        return None

    def _want(self, line: Line, now: float) -> None:
        """Have a model loaded that somebody waits for, where that is what its configuration says."""
        route = line.route
        if route.policy.on_no_candidate is not OnNoCandidate.LAZY:
            return
        if route.queued is None or route.queued.reason is Reason.AT_LIMIT:
            return
        if now >= line.wanted_at + WANT_AGAIN_S:
            line.wanted_at = now
            self._plane.want_load(route.model, route.version)

    # --- out -----------------------------------------------------------------------------------------------------

    def released(self, endpoint: Endpoint) -> None:
        """An attempt ended there: who waits for that goes on in this turn of the loop, after what is under way."""
        self._freed.add(endpoint)
        self._come_soon()

    def given_back(self, model: str) -> None:
        """A model has fewer requests in flight."""
        self._freed_models.add(model)
        self._come_soon()

    def changed(self) -> None:
        """Anything else may be different now: replicas, limits."""
        if self._lines:
            self._all = True
            self._come_soon()

    def _come_soon(self) -> None:
        if not self._coming:
            self._coming = True
            self._plane.loop.call_soon(self._come)

    def _come(self) -> None:
        freed, models, everything = self._freed, self._freed_models, self._all
        self._coming = self._all = False
        self._freed, self._freed_models = set(), set()
        lines = list(self._lines.values()) if everything else self._lines_for(freed, models)
        self._look(lines, self._plane.clock())

    def _lines_for(self, endpoints: set[Endpoint], models: set[str]) -> list[Line]:
        """Return the lines of these models, and those on routes that these endpoints serve."""
        found = {line for line in self._full if line.route.model in models} if models else set[Line]()
        for endpoint in endpoints:
            for candidate in endpoint.candidates.values():
                for route in candidate.routes:
                    line = None if route.queued is None else self._lines.get((route.protocol, route.key))
                    if line is not None:
                        found.add(line)
        return list(found)

    def _look(self, lines: list[Line], now: float) -> None:
        """Let go on whoever can, the highest class first, whatever it waits on."""
        if self._plane.cluster.generation != self._generation:
            self._find_routes()
        order = count()
        heads = [(*_first(line), next(order), line) for line in lines if line.queue.size]
        heapify(heads)
        turns = 0
        while heads:
            line = heads[0][3]
            waiter = line.queue.head()
            if waiter is None or not self._turn(line, waiter, now) or not line.queue.size:
                heappop(heads)
                continue
            heapreplace(heads, (*_first(line), next(order), line))
            turns += 1
            if turns == MOST_TURNS:
                self.changed()
                return

    def tick(self, now: float) -> None:
        """Look at what nobody told of: replicas that became warm, limits that rose. Ten times a second."""
        if self._lines:
            self._look(list(self._lines.values()), now)
            for line in self._lines.values():
                self._want(line, now)

    def _find_routes(self) -> None:
        """Follow the routes where they were made anew."""
        cluster = self._plane.cluster
        self._generation = cluster.generation
        for line in self._lines.values():
            before = line.route
            found = cluster.route(before.model, before.version, before.protocol)
            if found is not None and before.shard is not None:
                found = next((one for one in found.shards if one.shard == before.shard), None)
            if found is not None and found is not before:
                line.route = found
                cluster.hold_back(found, before.queued)
                cluster.hold_back(before, None)

    def _hold(self, line: Line, none: NoCandidate | None) -> None:
        """Have whoever comes told ``none``, because of those who wait; None: nobody does any more."""
        self._plane.cluster.hold_back(line.route, none)
        line.full = none is not None and none.reason is Reason.AT_LIMIT
        if line.full:
            self._full.add(line)
            if not self.waiting:
                self.waiting = True
                self._plane.settle(self._plane.clock())  # each answer is told of from here: Plane._begin_to_count
        else:
            self._full.discard(line)
            self.waiting = bool(self._full)

    def _turn(self, line: Line, waiter: Waiter, now: float) -> bool:
        """Let one request choose; False where it has to wait on."""
        ticket = waiter.item
        assert isinstance(ticket, Ticket)  # noqa: S101  nothing else is offered
        permit = ticket.permit
        cluster = self._plane.cluster
        if permit is not None and not permit.take():
            self._hold(line, permit.gate.full())
            return False
        none = ticket.none
        cluster.let_in(line.route, counted=ticket.course is None)
        self._in_turn, self._kept = ticket, False
        ticket.caller.turn_came(ticket)
        self._in_turn = None
        if self._kept:
            if permit is not None:
                permit.take_back()
            self._hold(line, ticket.none)
            return False
        if line.queue.size > 1:
            self._hold(line, none)
        waited_s = max(0.0, now - waiter.queued_at)
        line.queue.take(waiter, now)
        words = self._plane.words
        words[line.row + MODEL_QUEUED + bucket(waited_s)] += 1
        words[line.row + QUEUED_SUM] += int(waited_s * 1e6)
        self._left_line(line)
        return True

    def departed(self, line: Line, ticket: Ticket, refusal: Refusal | None) -> None:
        """A request is out of its line other than by its turn; None: because it ended otherwise."""
        if refusal is None:
            waiter = ticket.waiter
            over = waiter.own and self._plane.clock() >= waiter.deadline - CLOCK_S
            self._count(line, ticket, Refusal.DEADLINE if over else Refusal.LEFT)
        self._left_line(line)

    def _left_line(self, line: Line) -> None:
        self._plane.words[line.row + MODEL_QUEUE_NOW] -= 1
        if not line.queue.size:
            self._lines.pop((line.route.protocol, line.route.key), None)
            self._hold(line, None)

    def _evict(self, line: Line, waiter: Waiter, refusal: Refusal) -> None:
        ticket = waiter.item
        assert isinstance(ticket, Ticket)  # noqa: S101
        self.departed(line, ticket, refusal)
        self._turn_away(line, ticket, refusal)

    def _turn_away(self, line: Line, ticket: Ticket, refusal: Refusal) -> None:
        self._count(line, ticket, refusal)
        none, waiter = ticket.none, ticket.waiter
        now = self._plane.clock()
        held = self._throttle.admit(now)
        if held is not None:
            _log.warning(
                "request.turned_away",
                model=line.route.key,
                reason=refusal.value,
                waiting=line.queue.size,
                more_since_last=held,
            )
        outcome = none.outcome
        detail = f"{none.detail or none.reason.value}; {_WHY[refusal]}"
        if waiter.waiting or refusal in _EVICTED:
            detail += f" ({max(0.0, now - waiter.queued_at):.3f} s in the queue)"
        if refusal in _OVER_SHARE:
            outcome = Outcome.OVER_SHARE
        elif refusal is Refusal.DEADLINE and now >= waiter.deadline - CLOCK_S:
            outcome = Outcome.DEADLINE_EXCEEDED
        # of a replica that is waited for nobody has more; places and turns in a queue go by class, tenant and time
        told_early = refusal is Refusal.DEADLINE and outcome is not Outcome.DEADLINE_EXCEEDED
        own = none.reason is Reason.AT_LIMIT or told_early or refusal in _BY_OTHERS
        if ticket.failed is not None:
            detail = f"{ticket.failed.detail}{NOBODY_ELSE}: {detail}"
            if outcome is not Outcome.DEADLINE_EXCEEDED:
                outcome = ticket.failed.outcome
        ticket.caller.turned_away(outcome, detail, none.retry_after_s, of_its_own=own)

    def _count(self, line: Line, ticket: Ticket, refusal: Refusal) -> None:
        self._plane.words[line.row + MODEL_TURNED_AWAY + ticket.kind * REFUSAL_WORDS + _REFUSAL_INDEX[refusal]] += 1

    # --- time ----------------------------------------------------------------------------------------------------

    def _arm(self, deadline: float, now: float) -> None:
        if deadline >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = self._plane.loop.call_later(max(0.0, deadline - now), self._expire)

    def _expire(self) -> None:
        """Evict those whose time to wait is over."""
        self._timer = None
        self._due = inf
        now = self._plane.clock()
        for line in list(self._lines.values()):
            for waiter in line.queue.expire(now):
                self._evict(line, waiter, Refusal.DEADLINE if waiter.own else Refusal.TIMEOUT)
        due = min((line.queue.next_deadline() for line in self._lines.values()), default=inf)
        if due < inf:
            self._arm(due, now)

    def flush(self) -> None:
        """Write the gauges of the gates, once a second."""
        for gate in self._gates.values():
            self._show(gate.model, gate.in_flight, gate.share)

    def _show(self, model: str, in_flight: int, share: int) -> None:
        words, row = self._plane.words, self._plane.page.model_row(model)
        words[row + MODEL_ADMITTED_NOW] = in_flight
        words[row + MODEL_ADMITTED_SHARE] = share


def _first(line: Line) -> tuple[int, float]:
    waiter = line.queue.head()
    return (0, inf) if waiter is None else (-waiter.rank, waiter.queued_at)
