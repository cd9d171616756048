"""A caller's connection whose requests may wait in a queue (``admission``)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from router.outcomes import Outcome, Reason
from sidecar.http1.copying import give_way
from sidecar.http1.degrading import DegradingConnection
from sidecar.http1.descending import goes_down
from sidecar.http1.gates import Permit

if TYPE_CHECKING:
    from router.retry import Failed
    from router.routes import NoCandidate, Route
    from sidecar.http1.lines import Ticket
    from sidecar.http1.steps import Course


class QueueingConnection(DegradingConnection):
    """A caller's connection whose requests may wait.

    No more of a request's body is read while it waits, so what is kept of it is known as it begins to.
    """

    __slots__ = ()

    def _nobody_left(self, none: NoCandidate, failed: Failed | None) -> None:
        route = self._target.route
        if route is not None and (failed is None or none.reason is Reason.AT_LIMIT):
            plane = self._plane
            if plane.copies and none.reason is Reason.AT_LIMIT and give_way(plane, route) and route.queued is None:
                tried = None if failed is None else failed.endpoint
                plane.cluster.let_in(route, counted=failed is None)
                self._dispatch_later(route, tried, plane.clock(), failed)
                return  # else it waits behind those who wait already, for one of whom there is room now
            admission = plane.admission
            if admission.keeps(self, none):
                return
            if admission.takes(route, none) and not goes_down(self._descent):
                self.queue_for(route, none, None, self._plane.clock(), failed)
                return
        super()._nobody_left(none, failed)

    def queue_for(
        self, route: Route, none: NoCandidate, course: Course | None, now: float, failed: Failed | None = None
    ) -> None:
        """Have the request in hand wait for ``route``; ``course``: it goes on with its steps then."""
        admission = self._plane.admission
        watch = self._watch
        if not admission.takes(route, none):
            super()._nobody_left(none, failed)
            return
        asking = admission.sorting.of_head(
            self._head.raw,
            len(self._sent_head) + len(self._seen),
            inf if watch is None else watch.ends_at,
            trusted=self._peer.trusted,
        )
        self._plain = False
        if not self.request_done:
            self._pause_reading()
        under_way = self._course
        permit = None
        if under_way is not None:
            permit = next((one for one in under_way.hears if isinstance(one, Permit)), None)
        ticket = admission.enter(self, route, none, asking, now, course=course, permit=permit, failed=failed)
        if ticket is not None:
            self._wait_on(ticket)

    def _wait_on(self, ticket: Ticket) -> None:
        self._timer = ticket
        self._held_until = ticket.waiter.deadline
        if self._watch is not None:
            self._watch.stop_hedging()
        self._wait_for_head(self._held_until)

    def turn_came(self, ticket: Ticket) -> None:
        """Go on with a request that waited; it waits on where nobody can be picked for it after all."""
        self._timer = None
        course, ticket.course = ticket.course, None
        if course is not None:
            self.proceed(course)
        else:
            self._choose_in_turn(ticket.failed)
        if self._plane.admission.kept:
            self._wait_on(ticket)

    def _choose_in_turn(self, failed: Failed | None) -> None:
        """Choose among all. Who must not be asked again is out by itself; nobody waits behind one who may not go."""
        route = self._target.route
        now = self._plane.clock()
        if route is None:
            return
        try:
            if self.request_done:  # the worker's time begins when it is asked
                self._wait_for_head(now)
                if self._watch is not None and failed is None:
                    self._arm_hedge(self._watch, now)
            self._dispatch_later(route, None, now, failed)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def turned_away(self, outcome: Outcome, detail: str, retry_after_s: float | None, *, of_its_own: bool) -> None:
        """End a request that may not wait, or not any longer; what is of its own moves nobody else down."""
        self._timer = None
        descent = self._descent
        if descent is not None:
            descent.own = of_its_own
        try:
            self.end_unanswered(outcome, detail, retry_after_s)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)
