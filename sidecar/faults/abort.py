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


def answer_of(rule: FaultRule, *, bodiless: bool) -> bytes:
    """Return the whole answer to an attempt over HTTP/1.1; its head alone where it is ``bodiless``."""
    status = status_of(rule)
    phrase = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "Injected"
    body = f'{{"error":"injected fault {rule.id}"}}'.encode()
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() if bodiless else head.encode() + body


class AbortFault(Kind):
    """The endpoint's error: what any 4xx or 5xx of a worker means to the router, this means."""

    directions = (REQUEST,)
    takes = ("status", "grpc_status")

    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Have the attempt answered."""
        plan.abort = rule
