"""What faults do to a gRPC call: many calls share a connection, so it is the call that is struck, not its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.abort import status_of
from sidecar.faults.kind import delay_s
from sidecar.grpc.statuses import encode_message, status_of_http

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.faults.rules import FaultRule
    from sidecar.http2.hpack import Field


class CallFault:
    """What becomes of one attempt: it waits ``delay_s``, then the first rule that is no delay has its way.

    ``trailers``: these are its answer. ``reset``: its connection breaks. ``lost``: nothing is ever heard of it. Where
    it is none of them, it goes on.
    """

    def __init__(self, rules: Sequence[FaultRule], draw: Callable[[], float]) -> None:
        self.delay_s = sum(delay_s(rule, draw) for rule in rules if rule.kind == "delay")
        self.trailers: list[Field] = []
        last = next((rule for rule in rules if rule.kind != "delay"), None)
        self.reset = last is not None and last.kind == "reset"
        self.lost = last is not None and last.kind == "black_hole"
        if last is not None and last.kind == "abort":
            status = status_of_http(status_of(last)) if last.grpc_status is None else last.grpc_status
            self.trailers = [
                (b":status", b"200"),
                (b"content-type", b"application/grpc"),
                (b"grpc-status", b"%d" % status),
                (b"grpc-message", encode_message(f"injected fault {last.id}")),
            ]
