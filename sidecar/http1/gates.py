"""How much of one model may be in flight, and the step of its requests that sees to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from router.outcomes import Reason
from router.routes import NoCandidate
from sidecar.http1.steps import ADMITTED

if TYPE_CHECKING:
    from sidecar.http1.admission import AdmissionPlane
    from sidecar.http1.queueing import QueueingConnection
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course


WHOLE_BYTES: Final = 1 << 20
"""How long a body is waited for before its request takes a place; a longer one takes it when so much is here."""


class Gate:
    """How much of one model may be in flight. ``limit`` is the whole sidecar's, ``share`` this process's part of it."""

    __slots__ = ("in_flight", "limit", "model", "share")

    def __init__(self, model: str, limit: int) -> None:
        self.model = model
        self.limit = limit
        self.share = limit
        self.in_flight = 0

    def full(self) -> NoCandidate:
        """Say that it is."""
        return NoCandidate(
            Reason.AT_LIMIT,
            1.0,
            f"{self.model}: {self.in_flight} requests are in flight, of {self.share} that may be in this process "
            f"(models[].admission.requests: {self.limit})",
        )


class Permit:
    """One request's place within its model's limit. It is given back where the request waits, and when it ends."""

    __slots__ = ("_admission", "gate", "held")

    def __init__(self, admission: AdmissionPlane, gate: Gate) -> None:
        self._admission = admission
        self.gate = gate
        self.held = False

    def take(self) -> bool:
        """Take the place where there is one."""
        gate = self.gate
        if gate.in_flight >= gate.share:
            return False
        gate.in_flight += 1
        self.held = True
        return True

    def give_back(self) -> None:
        """Let others have it."""
        if self.held:
            self.take_back()
            if self._admission.waiting:
                self._admission.given_back(self.gate.model)

    def take_back(self) -> None:
        """Have it as if it had never been taken."""
        if self.held:
            self.held = False
            self.gate.in_flight -= 1

    def request_ended(self, course: Course) -> None:
        """The request is over."""
        self.give_back()


class AdmitStep:
    """The step of requests whose model may have so many in flight.

    Bodies of up to ``WHOLE_BYTES`` are here before it is taken, so that callers who send slowly hold nobody's place.
    """

    def __init__(self, admission: AdmissionPlane, gate: Gate) -> None:
        self.rank = ADMITTED
        self.body_bytes = WHOLE_BYTES
        self._admission = admission
        self._gate = gate

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Let the request pass where there is room and nobody waits, else have it wait."""
        permit = Permit(self._admission, self._gate)
        course.hears.append(permit)
        route = caller.target.route
        if route is None:
            return True
        if route.queued is None and permit.take():
            return True
        cast("QueueingConnection", caller).queue_for(route, route.queued or self._gate.full(), course, now)
        return False
