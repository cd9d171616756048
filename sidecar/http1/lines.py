"""A line of requests that wait, and each one's place in it (``admission``)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from router.admission import AdmissionQueue

if TYPE_CHECKING:
    from router.admission import Waiter
    from router.outcomes import Outcome
    from router.retry import Failed
    from router.routes import NoCandidate, Route
    from sidecar.http1.admission import AdmissionPlane
    from sidecar.http1.gates import Permit
    from sidecar.http1.sorting import Asking
    from sidecar.http1.steps import Course


class Caller(Protocol):
    """A request that may wait, whatever protocol it came by."""

    def turn_came(self, ticket: Ticket) -> None:
        """Go on: choose an endpoint. Never raises. Where nobody can be picked after all, it goes on to wait."""

    def turned_away(self, outcome: Outcome, detail: str, retry_after_s: float | None, *, of_its_own: bool) -> None:
        """End it: it waits no more. ``of_its_own``: that says nothing of requests of other classes, tenants, times."""

    def crashed(self, error: Exception) -> None:
        """End it because of an error of warmroute's own."""


class Ticket:
    """A request's place in a line. It stands where the request's timer would: to cancel it is to leave the line.

    ``course`` is set where the request waits in a step, ``none`` says why it waits. ``failed`` is the try before,
    where it waits for one more.
    """

    __slots__ = ("_line", "caller", "course", "failed", "kind", "none", "permit", "waiter")

    def __init__(
        self,
        line: Line,
        caller: Caller,
        asking: Asking,
        none: NoCandidate,
        course: Course | None,
        permit: Permit | None,
        failed: Failed | None,
    ) -> None:
        self._line = line
        self.caller = caller
        self.kind = asking.kind
        self.none = none
        self.course = course
        self.permit = permit
        self.failed = failed
        self.waiter: Waiter

    def cancel(self) -> None:
        """Leave the line: the request has ended otherwise."""
        self._line.left(self)


class Line:
    """What waits on one route. ``full``: for room, else for a replica that may be picked."""

    __slots__ = ("_admission", "full", "queue", "route", "row", "wanted_at")

    def __init__(self, admission: AdmissionPlane, route: Route, row: int, most_tenants: int) -> None:
        self._admission = admission
        self.route = route
        self.row = row
        self.full = False
        self.queue = AdmissionQueue(most_tenants)
        self.wanted_at = -inf

    def left(self, ticket: Ticket) -> None:
        """A request that waits here ended otherwise."""
        if self.queue.withdraw(ticket.waiter):
            self._admission.departed(self, ticket, None)
