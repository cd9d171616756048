"""One call in hand: finding its model, choosing a worker, trying others. What goes both ways: ``relay``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.matching import is_inference_call
from router.outcomes import AttemptResult, Outcome, Reason
from router.retry import NOBODY_ELSE, Failed
from router.routes import NoCandidate
from sidecar.cache.calls import is_one_message
from sidecar.faults.call_link import CallLink
from sidecar.grpc.course import COUNT_BYTES, CallCourse, infers
from sidecar.grpc.degrading import DegradingCall
from sidecar.grpc.health import OWN
from sidecar.grpc.health import answer as answer_for_server
from sidecar.grpc.matching import NOTHING, ONE_MESSAGE, named_by_message, named_by_metadata, named_fields
from sidecar.grpc.mirrors import Original, send_copy
from sidecar.grpc.phases import GATHERING, MATCHING, WAITING
from sidecar.grpc.relay import NO_MESSAGE
from sidecar.grpc.statuses import format_timeout
from sidecar.http1.copying import give_way
from sidecar.http1.descending import goes_down
from sidecar.http1.keying import no_key
from sidecar.http1.retrying import NOT_BEGUN
from sidecar.http2.frames import FRAME_BYTES
from sidecar.http2.hpack import literal
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.routes import Attempt, Route
    from sidecar.faults.injector import Struck
    from sidecar.grpc.course import Needs
    from sidecar.grpc.upstream import WorkerConnection
    from sidecar.http1.keys import KeySource
    from sidecar.http1.lines import Ticket
    from sidecar.http1.targets import Target

RESENDS: Final = 2
"""How often a call that a worker's GOAWAY left out is sent again, to the same worker, unseen by the router."""
_SERVICE_FIELD: Final = (1, 0)


class Call(DegradingCall):
    """One call: what it asks for, and who is asked."""

    __slots__ = ()

    # --- beginning ---------------------------------------------------------------------------------------------------

    def begin(self, *, end: bool) -> None:
        """Find out what the call asks for, and have it answered or carried."""
        head = self.head
        plane = self._plane
        self.request_done = end
        asked = head.asked
        self._request_id = head.request_id or plane.shared.new_request_id()
        self._trace = head.traceparent or plane.shared.new_traceparent()
        if asked.refused:
            self._target = plane.nothing
            self._refuse(asked.refused)
            return
        if asked.oversized:
            self._target = plane.nothing
            self.fail(Outcome.HEAD_TOO_LARGE, f"over {plane.limits.head_bytes} bytes or {plane.limits.fields} fields")
            return
        if head.wrong:
            self._target = plane.nothing
            self.fail(Outcome.BAD_REQUEST, head.wrong)
            return
        if end and asked.path in ONE_MESSAGE:
            self._target = plane.nothing
            self.fail(Outcome.BAD_REQUEST, NO_MESSAGE)
            return
        self._rearm(self._started)
        self._match = named_fields(asked.path)
        if self._match is None and asked.path in OWN:
            default = plane.resolve("", "", self._connection.default_model)
            if plane.route_of(default) is None or plane.shared.refusing:
                self._match, self._own = _SERVICE_FIELD, True
        if self._match is not None:
            self.phase = MATCHING
            self._target = plane.nothing
            if end:
                self._matched(b"")
            return
        self._route(named_by_metadata(asked.model) if asked.model else NOTHING)

    def _route(self, named: tuple[str, str]) -> None:
        plane = self._plane
        self._target = target = plane.resolve(named[0], named[1], self._connection.default_model)
        self.phase = WAITING
        if plane.shared.refusing:
            plane.shared.count(Scalar.OVERLOAD_REFUSED_TOTAL)
            self.fail(Outcome.OVERLOADED, plane.shared.refusing)
            return
        if target.watched and self._started + target.times.total_s < self._deadline:
            self._deadline = self._started + target.times.total_s
            self._limit = target.times.total_text
        if target.route is None:
            needs = plane.needs.get(target)
            if needs is None:
                self.fail(Outcome.NO_ROUTE, target.why, status=plane.missing(named[0]))
                return
            self._course = course = CallCourse(needs, self.head.asked.path)
            if course.waits and not self._has_all(course):
                self._begin_gathering()
            else:
                self._go_on(course)
            return
        if target.route.shards and not self._to_shard(target.route, target.key_source):
            return
        self._dispatch(plane.clock())

    # --- calls that need more than a pick ---------------------------------------------------------------------------

    def _has_all(self, course: CallCourse) -> bool:
        return course.has_all(self._seen, self._seen_bytes, self.head.asked.encoding, done=self.request_done)

    def _begin_gathering(self) -> None:
        """Wait for more of the request. What is kept of it is given back to its caller's window at once."""
        self.phase = GATHERING
        self._quiet_since = self._plane.clock()
        unpaid, self._unpaid = self._unpaid, 0
        self._gather(unpaid)

    def _gather(self, size: int) -> None:
        """Look whether what there is of the request is enough now to go on; ``size`` bytes of it just came."""
        plane, course = self._plane, self._course
        if course is None:
            return
        course.gathered += size
        plane.gathered_bytes += size
        if self._has_all(course):
            plane.gathered_bytes -= course.gathered
            course.gathered = 0
            self._quiet_since = plane.clock()
            self.phase = WAITING
            self._go_on(course)
        elif course.gathered > COUNT_BYTES and plane.gathers_too_much():
            plane.shared.count(Scalar.OVERLOAD_REFUSED_TOTAL)
            self.fail(
                Outcome.OVERLOADED,
                f"{plane.gathered_bytes} bytes are kept of messages that are waited for (limits.model_prefixes_bytes, "
                "or a quarter of overload.memory_bytes, may be)",
            )
        if size:
            self.down.connection.credit(self.down, size)

    def _go_on(self, course: CallCourse) -> None:
        """Find the version and the shard, and have the call carried, or answered by a step of its model's ladder."""
        now = self._plane.clock()
        needs = course.needs
        if course.most and self.request_done and self._seen_bytes <= course.most:
            self._seen = [b"".join(self._seen)]
            course.request = self._seen[0]
        self._target = target = needs.target if needs.split is None else self._of_version(needs, now)
        route = target.route
        if route is None:
            self.fail(Outcome.NO_ROUTE, target.why)
            return
        if route.shards and not self._to_shard(route, target.key_source):
            return
        self._to_class(course, now)
        mirror = needs.mirror
        if mirror is not None and is_inference_call(self.head.asked.path) and self._plane.shared.rng() < mirror.share:
            course.mirror = mirror
        if needs.ladder is None or self._begin_on_ladder(needs.ladder, now):
            self._admit(now)

    def _to_class(self, course: CallCourse, now: float) -> None:
        """Turn to the route of the call's shape class, where its model has such and it is of one."""
        classes, route = course.needs.classes, self._target.route
        if classes is None or route is None:
            return
        shape = classes.class_of(self.head.asked.forward, course.beginning)
        if shape:
            self._target = self._plane.of_class(route, shape, now)

    def _of_version(self, needs: Needs, now: float) -> Target:
        """Return the target of the version that takes the call, where calls of its target are divided over several."""
        plane = self._plane
        split = needs.split
        if split is None:
            return needs.target
        self._split = needs
        key = self._key_from(split.key_source)
        return split.target_for(plane.shared, key, now, plane.shared.targets.plain)

    def _turns_to_other_version(self, failed: Failed, own: Route, now: float) -> bool:
        """Give a call that surely nobody began to another version of its split, where its own has nobody left; once."""
        needs, self._split = self._split, None
        if needs is None or failed.outcome not in NOT_BEGUN:
            return False
        descent = self._descent
        if descent is not None and descent.next_fallback:
            return False
        target = self._of_version(needs, now)
        self._split = None
        route = target.route
        if route is None or route is (own.whole or own.base or own):
            return False
        self._target = target
        if not route.shards or self._to_shard(route, target.key_source):
            if self._course is not None:
                self._to_class(self._course, now)
            self._dispatch(now, failed)
        return True

    def _key_from(self, source: KeySource | None) -> bytes | None:
        """Return the call's key, None where it has none or nothing goes by one."""
        if source is None:
            return None
        course, asked = self._course, self.head.asked
        if course is not None and (source.member or source.affinity is not None) and infers(asked.path):
            if source.affinity is not None:
                return course.blocks(source.affinity, self._seen, asked.encoding)
            return course.key(source.member, self._seen, asked.encoding)
        return source.of_metadata(asked.forward)

    def _to_shard(self, route: Route, source: KeySource | None) -> bool:
        """Turn to the shard that has the call's key; False where it has none, and has ended."""
        key = self._key_from(source)
        if source is None or key is None:
            why = "" if source is None else no_key(route, source)
            where = "the message of ModelInfer" if source is not None and source.member else "its metadata"
            self.fail(Outcome.BAD_REQUEST, f"{why}; a call has its key in {where}")
            return False
        self._target = self._plane.of_shard(route, key)
        return True

    def _admit(self, now: float) -> None:
        """Dispatch a call, or have it wait where its model may have so many in flight."""
        admission = self._plane.shared.admission
        route = self._target.route
        permit = self._permit
        if permit is None:
            self._permit = permit = admission.permit_for(route)
        if route is None or permit is None or permit.held or (route.queued is None and permit.take()):
            self._dispatch(now)
            return
        none = route.queued or permit.gate.full()
        if not self._waits_for(route, none, now):
            self._end_unanswered(none.outcome, none.detail or none.reason.value, none.retry_after_s)

    def _matched(self, data: bytes) -> None:
        """Look at what there is of the first message, and go on where it says enough, or never will."""
        fields = self._match
        if fields is None:
            return
        named = named_by_message(data, fields, self.head.asked.encoding, whole=self.request_done)
        if named is None:
            return
        if self._own:
            self.phase = WAITING
            answer_for_server(self._plane, self, named.model)
            return
        if not named.model and self.head.asked.model:
            named = named_by_metadata(self.head.asked.model)
        self._route(named)

    def _dispatch(self, now: float, failed: Failed | None = None, *, in_turn: bool = False) -> None:
        """Choose a worker and send the call there. Where nobody is left for a retry, what ``failed`` is told.

        A call that waited goes to whoever has room, ``in_turn``: who must not be asked again is out by itself.
        """
        plane = self._plane
        shared = plane.shared
        route = self._target.route
        if route is None:
            return
        source = self._target.key_source
        key = None if source is None else self._key_from(source)  # this is every call
        tried = None if failed is None or in_turn else failed.endpoint
        attempt = shared.cluster.choose(route, now, shared.rng, tried, key)
        if isinstance(attempt, NoCandidate):
            at_limit = attempt.reason is Reason.AT_LIMIT
            if shared.copies and at_limit and give_way(shared, route) and route.queued is None:
                shared.cluster.let_in(route, counted=failed is None)
                self._dispatch(now, failed)
                return
            if failed is not None:
                if self._turns_to_other_version(failed, route, now):
                    return
                if at_limit and (
                    shared.admission.keeps(self, attempt)
                    or (not goes_down(self._descent) and self._waits_for(route, attempt, now, failed))
                ):
                    return
                self._end_unanswered(failed.outcome, failed.detail + NOBODY_ELSE)
                return
            waits = shared.admission.keeps(self, attempt) or (
                not goes_down(self._descent) and self._waits_for(route, attempt, now)
            )
            if not waits:
                self._end_unanswered(attempt.outcome, attempt.detail or attempt.reason.value, attempt.retry_after_s)
            return
        self._attempt = attempt
        self._upstream = upstream = attempt.endpoint.shell or plane.pool(attempt.endpoint)
        if shared.faults is not None and self._struck(attempt, now):
            return
        upstream.submit(self, now)

    # --- injected faults ---------------------------------------------------------------------------------------------

    def _struck(self, attempt: Attempt, now: float) -> bool:
        """Have an attempt that injected faults strike go over a link of its own; False where none does."""
        shared = self._plane.shared
        self._fault = ""
        if shared.faults is None:
            return False
        fields = b"\r\n".join([b"%s: %s" % (field[0], field[1]) for field in self.head.asked.forward])
        head = b"\r\n%s\r\n" % fields
        struck = shared.faults.strike(attempt, head, now, shared.rng, trusted=self._connection.trusted)
        if struck is None:
            return False
        self._fault = struck.names
        self._harm = struck
        self._carry(struck)
        return True

    def _carry(self, struck: Struck) -> None:
        """Send the call over a new link."""
        shared, upstream = self._plane.shared, self._upstream
        if upstream is not None:
            plan = struck.plan(shared.rng, call=True)
            self.attached(CallLink(self, upstream, plan, struck.names, shared.loop))

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _waits_for(self, route: Route, none: NoCandidate, now: float, failed: Failed | None = None) -> bool:
        """Have the call wait where such calls do; False where this is none of them."""
        admission = self._plane.shared.admission
        if not admission.takes(route, none):
            return False
        asking = admission.sorting.of_fields(
            self.head.asked.forward, self._seen_bytes, self._deadline, trusted=self._connection.trusted
        )
        ticket = admission.enter(self, route, none, asking, now, permit=self._permit, failed=failed)
        if ticket is not None:
            self._wait_on(ticket)
        return True

    def _wait_on(self, ticket: Ticket) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = ticket

    def turn_came(self, ticket: Ticket) -> None:
        """Go on with a call that waited; it waits on where nobody can be picked for it after all."""
        self._timer = None
        now = self._plane.clock()
        self._quiet_since = now
        try:
            self._rearm(now)
            self._dispatch(now, ticket.failed, in_turn=True)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)
        if self._plane.shared.admission.kept:
            self._wait_on(ticket)

    def turned_away(self, outcome: Outcome, detail: str, retry_after_s: float | None, *, of_its_own: bool) -> None:
        """End a call that may not wait, or not any longer; what is of its own moves nobody else down."""
        self._timer = None
        if self._descent is not None:
            self._descent.own = of_its_own
        try:
            self._end_unanswered(outcome, detail, retry_after_s)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def attached(self, connection: WorkerConnection | CallLink) -> None:
        """A worker's connection has room, or is stood for by what faults do: send the call on it."""
        head = self.head
        asked = head.asked
        self.up = up = connection.open_stream(self)
        self._heard = connection.received_bytes
        rest = literal(b"x-request-id", self._request_id) + literal(b"traceparent", self._trace)
        if head.timeout:
            rest += literal(b"grpc-timeout", self._remaining(head.timeout))
        rest += literal(b"warmroute-attempt", b"%d" % (asked.attempt + self._tries))
        seen = self._seen
        data = b"" if not seen else seen[0] if len(seen) == 1 else b"".join(seen)
        connection.send_request(up, asked, rest, end=self.request_done and not data)
        up.source = self.down
        self.down.source = up
        if data:
            self._seen = [data]
            up.prepaid = len(data) - self._unpaid  # what is not paid for came last, and goes last
            self._unpaid = 0
            for start in range(0, len(data), FRAME_BYTES):
                last = start + FRAME_BYTES >= len(data)
                part = data if len(data) <= FRAME_BYTES else data[start : start + FRAME_BYTES]
                if connection.send_data(up, part, end=last and self.request_done):
                    connection.pay(up, len(part), self.down)
            self._keep_no_more()
        attempt = self._attempt
        if attempt is not None and attempt.permits and not self.request_done:  # for the rest its caller is waited for
            self._plane.shared.cluster.lend(attempt, self._plane.clock())
        if self.request_done and self._course is not None:
            self._sent_whole(self._course)

    def _sent_whole(self, course: CallCourse) -> None:
        """The call was sent, and all of it: copy it where it is one of those that are, behind this turn's work."""
        policy, course.mirror = course.mirror, None
        attempt = self._attempt
        if policy is None or attempt is None or attempt.candidate.version == policy.version:
            return
        original = None
        if self._whole:
            data = b"".join(self._seen)
            if not is_one_message(data):
                return
            rest = literal(b"x-request-id", self._request_id) + literal(b"traceparent", self._trace)
            rest += literal(b"warmroute-attempt", b"%d" % (self.head.asked.attempt + self._tries))
            original = Original(self.head.asked, rest, data, self._match)
        self._plane.shared.loop.call_soon(send_copy, self._plane, policy, attempt, original)

    def _remaining(self, text: bytes) -> bytes:
        """Return the ``grpc-timeout`` that is left; as it came where no time has passed to speak of."""
        now = self._plane.clock()
        return text if now - self._started < 0.001 else format_timeout(max(0.0, self._deadline - now))

    # --- once more ---------------------------------------------------------------------------------------------------

    def left_out(self, why: str, *, again: bool) -> None:
        """A worker's GOAWAY says that it has not looked at this call.

        ``again``: it may be sent again to the same worker, on another connection.
        """
        self._let_go()
        upstream = self._upstream
        if again and self.phase == WAITING and self._whole and self._resends < RESENDS and upstream is not None:
            self._resends += 1
            self._plane.shared.count(Scalar.GRPC_RESENT_TOTAL)
            harm = self._harm
            if harm is not None and harm.attempt is self._attempt:
                self._carry(harm)
            else:
                upstream.submit(self, self._plane.clock())
        else:
            self.attempt_failed(AttemptResult.REFUSED, why)

    def _retry(self, failed: Failed) -> None:
        self._timer = None
        now = self._plane.clock()
        self._quiet_since = now
        self._rearm(now)
        self._dispatch(now, failed)

    def _withdraw(self) -> None:
        if self.wanted and self._upstream is not None:
            self._upstream.withdraw(self)
