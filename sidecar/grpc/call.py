"""One call in hand: finding its model, choosing a worker, relaying both ways. How it ends: ``ends``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from router.matching import Surface
from router.outcomes import OUTCOME_OF, AttemptResult, Outcome
from router.policy import LatencyOf
from router.retry import NOBODY_ELSE, Failed
from router.routes import NoCandidate
from sidecar.faults import strike
from sidecar.grpc.ends import CallEnds
from sidecar.grpc.health import OWN
from sidecar.grpc.health import answer as answer_for_server
from sidecar.grpc.matching import MESSAGE_HEAD, NOTHING, PROTOCOL, named_by_message, named_by_metadata, named_fields
from sidecar.grpc.phases import ANSWERING, ENDING, MATCHING, WAITING
from sidecar.grpc.renaming import renamed_message
from sidecar.grpc.statuses import format_timeout, judge, judge_http, status_of_http
from sidecar.http1.keying import no_key
from sidecar.http1.ladders import NOT_STARTED
from sidecar.http1.reports import take_metadata
from sidecar.http1.versions import is_split
from sidecar.http2.frames import FRAME_BYTES, Code
from sidecar.http2.hpack import literal
from sidecar.http2.sending import keep
from sidecar.telemetry.page import LadderWord, Scalar
from sidecar.upstreams.orca import ASK_FIELD

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.routes import Attempt, Route
    from sidecar.grpc.heads import AnswerHead
    from sidecar.grpc.upstream import WorkerConnection
    from sidecar.http1.keys import KeySource
    from sidecar.http1.lines import Ticket
    from sidecar.http1.targets import Target

RESENDS: Final = 2
"""How often a call that a worker's GOAWAY left out is sent again, to the same worker, unseen by the router."""
AT_ONCE_S: Final = 0.001
"""A request that was whole so soon takes as long as its attempt, for the metrics."""
_SERVICE_FIELD: Final = (1, 0)


class Call(CallEnds):
    """One call: what it asks for, and what goes both ways."""

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
        special = None
        if target.route is None:
            special = target.special
            target = self._of_version(target, plane.clock())
            if special is not None and target.route is None:
                self._target = target = special.target
        if target.route is None:
            self.fail(Outcome.NO_ROUTE, target.why, status=plane.missing(named[0]))
            return
        if target.route.shards and not self._to_shard(target.route, target.key_source):
            return
        if special is None:
            self._dispatch(plane.clock())
        else:
            self._admit(plane.clock())

    def _of_version(self, target: Target, now: float) -> Target:
        """Return the target of the version that takes the call, where calls of its target are divided over several."""
        plane = self._plane
        split = plane.splits.get(target)
        if split is not None:
            source = split.key_source
            key = None if source is None else source.of_metadata(self.head.asked.forward)
            self._target = target = split.target_for(plane.shared, key, now, plane.plain)
        return target

    def _to_shard(self, route: Route, source: KeySource | None) -> bool:
        """Turn to the shard that has the call's key; False where it has none, and has ended."""
        key = None if source is None else source.of_metadata(self.head.asked.forward)
        if source is None or key is None:
            why = "" if source is None else no_key(route, source)
            self.fail(Outcome.BAD_REQUEST, f"{why}; a call has its key in its metadata")
            return False
        self._target = self._plane.of_shard(route, key)
        return True

    def _admit(self, now: float) -> None:
        """Dispatch a call whose model may have so many in flight, or have it wait."""
        admission = self._plane.shared.admission
        route = self._target.route
        self._permit = permit = admission.permit_for(route)
        if route is None or permit is None or (route.queued is None and permit.take()):
            self._dispatch(now)
            return
        none = route.queued or permit.gate.full()
        if not self._waits_for(route, none, now):
            self.fail(none.outcome, none.detail or none.reason.value, retry_after_s=none.retry_after_s)

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

    def _dispatch(self, now: float, failed: Failed | None = None) -> None:
        """Choose a worker and send the call there. Where nobody is left for a retry, what ``failed`` is told."""
        plane = self._plane
        shared = plane.shared
        route = self._target.route
        if route is None:
            return
        source = self._target.key_source
        key = None if source is None else source.of_metadata(self.head.asked.forward)
        attempt = shared.cluster.choose(route, now, shared.rng, None if failed is None else failed.endpoint, key)
        if isinstance(attempt, NoCandidate):
            if failed is not None:
                if not self._fall_back(failed.outcome):
                    self.fail(failed.outcome, failed.detail + NOBODY_ELSE)
                return
            waits = shared.admission.keeps(self, attempt) or (not self._entry and self._waits_for(route, attempt, now))
            if not waits and not self._fall_back(attempt.outcome):
                self.fail(attempt.outcome, attempt.detail or attempt.reason.value, retry_after_s=attempt.retry_after_s)
            return
        self._attempt = attempt
        self._upstream = upstream = attempt.endpoint.shell or plane.pool(attempt.endpoint)
        if shared.faults:
            action = strike(shared.faults, route.model, upstream.id, now, shared.rng)
            if action is not None:
                shared.count(Scalar.FAULTS_INJECTED_TOTAL)
                if action.status:
                    self._settle(AttemptResult.CANCELLED, now)
                    self.fail(Outcome.FAULT, "", status=status_of_http(action.status))
                else:
                    self._timer_for(action.delay_s, self._held_back)
                return
        upstream.submit(self, now)

    # --- another model -----------------------------------------------------------------------------------------------

    def _fall_back(self, outcome: Outcome) -> bool:
        """Send the call to the next fallback of its model that can be picked; False where there is none.

        Each call goes down by itself: there is no state, as there is over HTTP, and nothing below.
        """
        plane = self._plane
        shared = plane.shared
        asked = self._target
        ladder = None if shared.ladders is None or asked.route is None else shared.ladders.of_row(asked.row)
        if ladder is None or asked.route is None or outcome not in ladder.on:
            return False
        if not self._whole or self.phase != WAITING:
            return False
        if outcome not in NOT_STARTED and not ladder.idempotent:
            return False
        now = plane.clock()
        while self._fallen < len(ladder.fallbacks):
            name, version = ladder.fallbacks[self._fallen]
            self._fallen += 1
            route = shared.cluster.route(name, version, PROTOCOL)
            if is_split(route) and route is not None:
                route = shared.cluster.version_of(route, now, shared.rng).route
            if route is None or route is asked.route or not shared.cluster.route_is_routable(route, now):
                continue
            if not self._rename(name.encode(), version.encode()):
                return False
            self._target = target = plane.plain(Surface.PLAIN, route)
            target.row = asked.row  # it is a call for the model that was asked
            self._quiet_since = now
            self._rearm(now)
            self._dispatch(now)
            return True
        return False

    def _rename(self, name: bytes, version: bytes) -> bool:
        """Have the call name another model, in its first message and its metadata; False where that cannot be."""
        entry = name + b"@" + version if version else name
        if self._match is not None:
            data = renamed_message(b"".join(self._seen), self._match, name, version)
            if data is None:
                return False
            self._seen, self._seen_bytes = [data], len(data)
            if self._unpaid:  # what the caller sent is not what goes on: its window is given back here
                self.down.connection.credit(self.down, self._unpaid)
                self._unpaid = 0
        asked = self.head.asked
        if asked.model:
            self.head.asked = changed = copy.copy(asked)
            changed.model = entry
            changed.forward = [
                (field[0], entry) if field[1] == asked.model and field[0] == self._connection.model_field else field
                for field in asked.forward
            ]
        self._entry = entry
        return True

    def _told(self, head: AnswerHead) -> AnswerHead:
        """Return the head of an answer that says whose it is."""
        shared = self._plane.shared
        ladder = None if shared.ladders is None else shared.ladders.of_row(self._target.row)
        if ladder is not None:
            ladder.count(LadderWord.BY_FALLBACK)
        told = copy.copy(head)
        told.forward = [*head.forward, (b"warmroute-degraded", b"fallback"), (b"warmroute-degraded-model", self._entry)]
        return told

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _waits_for(self, route: Route, none: NoCandidate, now: float) -> bool:
        """Have the call wait where such calls do; False where this is none of them."""
        admission = self._plane.shared.admission
        if not admission.takes(route, none):
            return False
        asking = admission.sorting.of_fields(
            self.head.asked.forward, self._seen_bytes, self._deadline, trusted=self._connection.trusted
        )
        ticket = admission.enter(self, route, none, asking, now, permit=self._permit)
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
            self._dispatch(now)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)
        if self._plane.shared.admission.kept:
            self._wait_on(ticket)

    def turned_away(self, outcome: Outcome, detail: str, retry_after_s: float | None) -> None:
        """End a call that may not wait, or not any longer."""
        self._timer = None
        try:
            if not self._fall_back(outcome):
                self.fail(outcome, detail, retry_after_s=retry_after_s)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _held_back(self) -> None:
        """An injected delay is over."""
        self._timer = None
        attempt, upstream = self._attempt, self._upstream
        if attempt is not None and upstream is not None:
            now = self._plane.clock()
            attempt.started = now
            self._rearm(now)
            upstream.submit(self, now)

    def attached(self, connection: WorkerConnection) -> None:
        """A worker's connection has room: send the call on it."""
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

    def _remaining(self, text: bytes) -> bytes:
        """Return the ``grpc-timeout`` that is left; as it came where no time has passed to speak of."""
        now = self._plane.clock()
        return text if now - self._started < 0.001 else format_timeout(max(0.0, self._deadline - now))

    def _keep_no_more(self) -> None:
        """Drop what was kept of the request where it is too much to be sent again."""
        if self._seen_bytes > self._plane.shared.replay_bytes:
            self._whole = False
            self._seen = []
            self._seen_bytes = 0

    # --- the request -------------------------------------------------------------------------------------------------

    def request_data(self, data: bytes, *, end: bool) -> None:
        """More of the request: pass it on, and keep it while it is small enough to be sent again."""
        self.active = True
        phase = self.phase
        if end:
            self._request_ended()
        if phase >= ENDING:
            self.down.connection.credit(self.down, len(data))
            return
        size = len(data)
        if (
            self._left == 0 and not self._partial and size >= MESSAGE_HEAD
            and int.from_bytes(data[1:5], "big") + MESSAGE_HEAD == size
        ):  # fmt: skip
            if size - MESSAGE_HEAD > self._plane.limits.body_bytes:
                self._too_large(size - MESSAGE_HEAD)
                return
        elif not self._scan(data):
            return
        up = self.up
        if up is not None:
            if self._whole and phase == WAITING:
                keep(self._seen, data)
                self._seen_bytes += size
                if self._seen_bytes > self._plane.shared.replay_bytes:
                    self._keep_no_more()
            if up.connection.send_data(up, data, end=end):
                self.down.connection.credit(self.down, size)
            return
        if phase == MATCHING and size and not self._seen_bytes:
            self._quiet_since = self._plane.clock()
        keep(self._seen, data)
        self._seen_bytes += size
        self._unpaid += size
        if phase == MATCHING:
            if len(self._seen) > 1:
                self._seen = [b"".join(self._seen)]
            self._matched(self._seen[0])

    def request_trailers(self) -> None:
        """The request ended with trailers: gRPC has none there, so they are dropped."""
        self.request_data(b"", end=True)

    def _request_ended(self) -> None:
        self.request_done = True
        attempt = self._attempt
        self._quiet_since = now = self._plane.clock()
        if attempt is not None and self.phase == WAITING:
            attempt.started = now  # how long the caller took to send is not the worker's time

    def _scan(self, data: bytes) -> bool:
        """Follow the messages' heads; False where one is over the limit (the call has ended then)."""
        position, size = 0, len(data)
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
                continue
            head = self._partial + data[position : position + MESSAGE_HEAD - len(self._partial)]
            position += len(head) - len(self._partial)
            if len(head) < MESSAGE_HEAD:
                self._partial = head
                break
            self._partial = b""
            self._left = int.from_bytes(head[1:5], "big")
            if self._left > self._plane.limits.body_bytes:
                self._too_large(self._left)
                return False
        return True

    def _too_large(self, size: int) -> None:
        if self.phase < ANSWERING:
            self._connection.given_up(self._plane.clock() - self._started)
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.CANCELLED, self._plane.clock())
        self.fail(Outcome.BODY_TOO_LARGE, f"a message of {size} bytes, at most {self._plane.limits.body_bytes}")

    # --- the answer --------------------------------------------------------------------------------------------------

    def answer_head(self, head: AnswerHead, *, end: bool) -> None:
        """A header block of the worker's: initial metadata, trailers, or both in one."""
        self.active = True
        if head.malformed or (not end and self.phase == ANSWERING) or (self.phase == WAITING) is (head.status == 0):
            self._drop_upstream(Code.PROTOCOL_ERROR)
            result = AttemptResult.CALL_FAILED if head.oversized else AttemptResult.PROTOCOL
            self.attempt_failed(result, head.malformed or "header blocks out of order")
            return
        if 0 < head.status < 200:
            if end:
                self._drop_upstream(Code.PROTOCOL_ERROR)
                self.attempt_failed(AttemptResult.PROTOCOL, "an interim answer that ends the stream")
            return
        self._http = self._http or head.status
        if self._entry and self.phase == WAITING:
            head = self._told(head)
        if end:
            self._answer_ended(head)
            return
        self.phase = ANSWERING
        self._seen = []
        self._whole = False
        attempt = self._attempt
        if attempt is not None and (not self.request_done or attempt.route.policy.latency is LatencyOf.FIRST_BYTE):
            self._first_s = max(0.0, self._plane.clock() - attempt.started)
        self._connection.send_answer_head(self.down, head, self._request_id)

    def answer_data(self, data: bytes, *, end: bool) -> None:
        """More of the answer."""
        self.active = True
        up = self.up
        if self.phase != ANSWERING or up is None:
            self._drop_upstream(Code.PROTOCOL_ERROR)
            self.attempt_failed(AttemptResult.PROTOCOL, "DATA before a head")
            return
        if end and self._http != 200:  # no gRPC at all, so its end is the answer's
            self._connection.send_data(self.down, data, end=True)
            self._answer_ended(None)
            return
        if data and self._connection.send_data(self.down, data, end=False):
            up.connection.credit(up, len(data))
        if end:
            self._drop_upstream(Code.NO_ERROR)
            self.attempt_failed(AttemptResult.CUT, "the answer ended without a status")

    def _answer_ended(self, head: AnswerHead | None) -> None:
        """The worker gave its status: count it, and pass it on. None: the answer was passed on, and was no gRPC."""
        shared = self._plane.shared
        attempt = self._attempt
        if attempt is None:
            return
        now = self._plane.clock()
        down, connection = self.down, self._connection
        up = self._let_go()
        if up is not None and not up.local_done:  # it answered before the request's end: nobody reads the rest
            up.connection.reset(up, Code.NO_ERROR)
        self._attempt = None
        if self._first_s >= 0:  # both sides spoke at once, or a stream: how long they went on is no matter of speed
            attempt.started = now - self._first_s
        status, pushback_s = -1, None
        meant: AttemptResult | None = None
        if head is not None:
            status, pushback_s = head.grpc_status, head.pushback_s
            if status > 0 and shared.recogniser is not None:
                meant = shared.recogniser.grpc(status, head.message)
            if meant is AttemptResult.NOT_READY and self.phase == WAITING and self._not_ready_there(attempt, head, now):
                return
            if self._target.reports:
                self._learn_load(head, attempt.endpoint)
            if self.phase == WAITING:
                connection.send_answer_end(down, head, self._request_id)
            else:
                connection.send_headers(down, head.forward, end=True)
        at_once = 0.0 <= attempt.started - self._started < AT_ONCE_S
        if status == 0 and at_once and not self._tries and down.waiting is None:
            shared.answered(attempt, self._target.row, now)
            self._over()
        else:
            if status < 0 and self._http != 200:
                result, outcome = judge_http(self._http)
            elif meant is not None:
                result, outcome = meant, OUTCOME_OF[meant]
            else:
                result, outcome = judge(status, pushed_back=pushback_s is not None)
            shared.attempt_ended(attempt, result, now, pushback_s)
            self._end(outcome, now)

    def _not_ready_there(self, attempt: Attempt, head: AnswerHead, now: float) -> bool:
        """The model is not ready at this endpoint: try another one where that is safe and there is one."""
        shared = self._plane.shared
        if not shared.cluster.has_others(attempt, now):
            return False
        delay_s = self._delay_of_retry(attempt, AttemptResult.NOT_READY, now, self._tries + 1)
        if delay_s is None:
            return False
        shared.attempt_ended(attempt, AttemptResult.NOT_READY, now, head.pushback_s)
        self._http = 0  # nothing of this answer counts for the next
        self._first_s = -1.0
        self._tries += 1
        failed = Failed(attempt.endpoint, Outcome.NO_CANDIDATE, f"{attempt.endpoint.id}: the model is not ready there")
        self._timer_for(delay_s, lambda: self._retry(failed))
        return True

    def _learn_load(self, head: AnswerHead, endpoint: Endpoint) -> None:
        """Learn what the worker says of its load; a caller gets it who asked for it."""
        left = take_metadata(self._plane.shared, endpoint, head.forward)
        if not any(field[0] == ASK_FIELD for field in self.head.asked.forward):
            head.forward = left

    def left_out(self, why: str, *, again: bool) -> None:
        """A worker's GOAWAY says that it has not looked at this call.

        ``again``: it may be sent again to the same worker, on another connection.
        """
        self._let_go()
        upstream = self._upstream
        if again and self.phase == WAITING and self._whole and self._resends < RESENDS and upstream is not None:
            self._resends += 1
            self._plane.shared.count(Scalar.GRPC_RESENT_TOTAL)
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
