"""Requests whose target alone leads to no route: the JSON body names the model, or warmroute answers itself.

As much of a body as it takes is kept back, within ``limits.model_prefix_bytes``; what follows passes as usual, but is
still read for a second, different ``model``: nobody's guess may decide what the worker reads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.outcomes import Outcome
from sidecar.http1.chunked import ChunkScanner
from sidecar.http1.head import CHUNKED, without_fields
from sidecar.http1.hedging import HedgingConnection
from sidecar.http1.model_field import ModelField, read_whole

if TYPE_CHECKING:
    from sidecar.http1.head import RequestHead
    from sidecar.http1.targets import Target

_CONTENT_TYPE: Final = re.compile(rb"\r\ncontent-type:[ \t]*([^\r]*)", re.IGNORECASE)
_JSON: Final = re.compile(rb"application/(?:[a-z0-9!#$&^_.-]+\+)?json[ \t]*(?:;|\Z)", re.IGNORECASE)
_ENCODED: Final = re.compile(rb"\r\ncontent-encoding:[ \t]*(?!identity[ \t]*\r)", re.IGNORECASE)
_EXPECT: Final = re.compile(rb"\r\nexpect:", re.IGNORECASE)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Look:
    """How far a body that is still coming was looked at. ``pieces`` are kept back of it, ``size`` is their bytes."""

    __slots__ = ("chunks", "field", "pieces", "size", "waiting")

    def __init__(self, *, chunked: bool) -> None:
        self.field = ModelField()
        self.chunks = ChunkScanner(decode=True) if chunked else None
        self.pieces: list[bytes] = []
        self.size = 0
        self.waiting = True  # for the model


class NamingConnection(HedgingConnection):
    """A caller's connection whose requests may name their model in their body."""

    __slots__ = ()

    def _without_route(self, target: Target, now: float) -> None:
        """Take a request whose target alone leads nowhere; what there is of its body stands in ``_seen``."""
        head = self._head
        otherwise = target.otherwise
        if otherwise is None:
            if target.own and head.method in (b"GET", b"HEAD"):
                self._answer_for_server(target.own, target.body, now)
            else:
                self._end_with(Outcome.NO_ROUTE, target.why, code=target.code)
        elif head.method != b"POST" or not _is_json(head):
            self._go_to(otherwise, now)
        elif self.request_done:
            self._named(target, read_whole(self._seen), now)
        else:
            self._look = look = Look(chunked=head.length == CHUNKED)
            seen, self._seen = self._seen, b""
            if seen:
                self._look_on(look, seen)
            elif _EXPECT.search(head.raw):  # the worker that would say so is not known before the body came
                self._sent_head = without_fields(self._sent_head, (b"expect",))
                if not self.old_client:
                    self.transport.write(_CONTINUE)

    def _look_on(self, look: Look, out: bytes) -> bool:
        """Look at more of a body; False where it is to be passed on as usual."""
        field = look.field
        if not field.done:
            field.feed(out if look.chunks is None else look.chunks.feed(out))
        if field.done or self.request_done:
            self._look = None
        if look.waiting:
            look.pieces.append(out)
            look.size += len(out)
            if field.named or field.done or self.request_done:
                look.waiting = False
                self._seen = b"".join(look.pieces)
                look.pieces.clear()
                self._named(self._target, field, self._plane.clock())
            elif look.size > self._plane.limits.model_prefix_bytes:
                self._fail_request(
                    Outcome.BODY_TOO_LARGE,
                    f'no "model" in the first {self._plane.limits.model_prefix_bytes} bytes '
                    "(limits.model_prefix_bytes): put it first, or name the model in the listener's model header",
                )
            return True
        if field.conflict:
            self._refuse_two()
            return True
        return False

    def _named(self, target: Target, field: ModelField, now: float) -> None:
        """The body has said what it says of its model: send it there."""
        if field.conflict:
            self._refuse_two()
        elif field.model:
            self._go_to(self._plane.resolve(self._head.target, self._rules.default_model, field.model), now)
        elif target.otherwise is not None:
            self._go_to(target.otherwise, now)

    def _refuse_two(self) -> None:
        self._fail_request(Outcome.BAD_REQUEST, 'the body names two values for "model"')

    def _go_to(self, target: Target, now: float) -> None:
        """Have the request take the route of another target than its own, or end for want of one."""
        self._target = target
        self._generation = -1  # it is not what the next request's target means
        if target.watched:
            self._end_watch()
            self._start_watch(now)
        if self.request_done:
            self._wait_for_head(now)
        if target.route is None:
            self._without_route(target, now)
        elif self._watch is None or not self._over(now):
            self._dispatch(target.route, None, now)


def _is_json(head: RequestHead) -> bool:
    """Return whether a body is JSON that can be read as it comes."""
    kinds = _CONTENT_TYPE.findall(head.raw)
    return len(kinds) == 1 and _JSON.match(kinds[0]) is not None and _ENCODED.search(head.raw) is None
