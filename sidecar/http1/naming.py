"""Requests whose target alone leads to no route: the JSON body names the model, or warmroute answers itself.

As much of a body as it takes is kept back, within ``limits.model_prefix_bytes``; what follows passes as usual, but is
still read for a second, different ``model``: nobody's guess may decide what the worker reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.outcomes import Outcome
from sidecar.http1.look import Look
from sidecar.http1.model_field import MAX_MEMBERS, MAX_REST_BYTES, MAX_TIMES, ModelField, read_whole
from sidecar.http1.queueing import QueueingConnection
from sidecar.http1.renaming import is_json

if TYPE_CHECKING:
    from sidecar.http1.targets import Target


class NamingConnection(QueueingConnection):
    """A caller's connection whose requests may name their model in their body."""

    __slots__ = ()

    def _without_route(self, target: Target, now: float) -> None:
        """Take a request whose target alone leads nowhere; what there is of its body stands in ``_seen``."""
        head = self._head
        otherwise = target.otherwise
        scanner = self._scanner
        if otherwise is None:
            self._leads_on(target, now)
        elif head.method != b"POST" or not is_json(head.forward):
            self._go_to(otherwise, now)
        elif self.request_done:
            self._named(target, read_whole(self._seen), now)
        else:
            if scanner is not None:
                scanner.copy = []
            self._look = look = Look(None if scanner is None else scanner.copy)
            self._resume_reading()  # what was pipelined before may have stopped it
            seen, self._seen = self._seen, b""
            if seen:
                self._look_on(look, seen)
            else:
                self._invite_body()

    def _look_on(self, look: Look, out: bytes) -> bool:
        """Look at more of a body; False where it is to be passed on as usual."""
        field = look.field
        look.feed(out)
        if field.kept_bytes > MAX_REST_BYTES:
            self._fail_request(
                Outcome.BODY_TOO_LARGE,
                f'over {MAX_MEMBERS} members, and over {MAX_REST_BYTES} bytes behind them where "model" might stand: '
                "name the model in the listener's model header",
            )
            return True
        if self.request_done:
            field.finish()
        if field.done:
            if look.course is None:
                self._look = None
            if self._scanner is not None:
                self._scanner.copy = None
        if look.waiting:
            look.kept += out
            if field.named or field.done:
                look.waiting = False
                self._seen = bytes(look.kept)
                look.kept.clear()
                self._named(self._target, field, self._plane.clock())
            elif len(look.kept) > self._plane.limits.model_prefix_bytes:
                self._fail_request(
                    Outcome.BODY_TOO_LARGE,
                    f'no "model" in the first {self._plane.limits.model_prefix_bytes} bytes '
                    "(limits.model_prefix_bytes): put it first, or name the model in the listener's model header",
                )
            elif look.much:
                self._look_at_all_kept()
            return True
        if field.conflict or field.unreadable:
            self._refuse_body(field)
            return True
        course = look.course
        return course is not None and self._gather(look, course, out)

    def _named(self, target: Target, field: ModelField, now: float) -> None:
        """The body has said what it says of its model: send it there. It is not looked at again."""
        if field.conflict or field.unreadable:
            self._refuse_body(field)
        elif field.model:
            self._go_to(self._plane.resolve(self._head.target, self._rules.default_model, field.model), now)
        elif target.otherwise is not None:
            self._go_to(target.otherwise, now)

    def _refuse_body(self, field: ModelField) -> None:
        self._fail_request(
            Outcome.BAD_REQUEST,
            f'the body names two values for "model", or one over {MAX_TIMES} times'
            if field.conflict
            else f'over {MAX_MEMBERS} members, and no plain JSON behind them where "model" might stand: '
            "name the model in the listener's model header",
        )

    def _leads_on(self, target: Target, now: float) -> None:
        """Take a request whose target has no route, whatever its body says."""
        special = target.special
        if special is None:
            self._nowhere(target, now)
        else:
            self._begin_special(special, now)

    def _nowhere(self, target: Target, now: float) -> None:
        """Answer a request that no worker is asked for, whatever its body says."""
        if target.own and self._head.method in (b"GET", b"HEAD"):
            self._answer_for_server(target.own, target.body, now)
        else:
            self._end_with(Outcome.NO_ROUTE, target.why, code=target.code)

    def _go_to(self, target: Target, now: float) -> None:
        """Have the request take the route of another target than its own, or end for want of one."""
        self._target = target
        if target.watched:
            self._end_watch()
            self._start_watch(now)
        if self.request_done:
            self._wait_for_head(now)
        if target.route is None:
            self._leads_on(target, now)
        elif self._watch is None or not self._over(now):
            self._dispatch_later(target.route, None, now)
