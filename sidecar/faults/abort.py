"""An error is answered, and nobody asked."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from sidecar.faults.kind import REQUEST, Kind, Plan

if TYPE_CHECKING:
    from sidecar.faults.rules import FaultRule

DEFAULT_STATUS = 503


def status_of(rule: FaultRule) -> int:
    """Return the HTTP status that a rule answers."""
    return DEFAULT_STATUS if rule.status is None else rule.status


def answer_of(rule: FaultRule) -> bytes:
    """Return the whole answer to an attempt."""
    status = status_of(rule)
    phrase = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "Injected"
    body = f'{{"error":"injected fault {rule.id}"}}'.encode()
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class AbortFault(Kind):
    """The endpoint's error: what any 4xx or 5xx of a worker means to the router, this means."""

    directions = (REQUEST,)
    takes = ("status", "grpc_status")
    grpc = True

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Have the attempt answered."""
        answer = answer_of(rule)
        plan.answer = answer[: answer.index(b"\r\n\r\n") + 4] if plan.bodiless else answer
