"""One call in hand: finding its model, choosing a worker, relaying both ways, and every way it can end.

A call ends with the worker's own status, with one of warmroute's, or with a reset stream; never with a false success.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from router.outcomes import OUTCOME_OF, OUTCOMES, AttemptResult, Outcome
from router.retry import NOBODY_ELSE, Failed
from router.routes import NoCandidate
from sidecar.faults import strike
from sidecar.grpc.health import OWN
from sidecar.grpc.health import answer as answer_for_server
from sidecar.grpc.matching import MESSAGE_HEAD, NOTHING, named_by_message, named_by_metadata, named_fields
from sidecar.grpc.phases import ANSWERING, ENDING, MATCHING, OVER, WAITING
from sidecar.grpc.statuses import Status, encode_message, format_timeout, judge, judge_http, status_of, status_of_http
from sidecar.http1.retrying import retry_after
from sidecar.http2.frames import FRAME_BYTES, Code, name_of
from sidecar.http2.hpack import literal
from sidecar.http2.sending import keep
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    import asyncio

    from router.routes import Attempt
    from sidecar.grpc.downstream import CallerConnection
    from sidecar.grpc.heads import AnswerHead, CallHead
    from sidecar.grpc.plane import GrpcPlane
    from sidecar.grpc.pool import WorkerPool
    from sidecar.grpc.upstream import WorkerConnection
    from sidecar.http1.targets import Target
    from sidecar.http2.hpack import Field
    from sidecar.http2.stream import Stream

RESENDS: Final = 2
"""How often a call that a worker's GOAWAY left out is sent again, to the same worker, unseen by the router."""
AT_ONCE_S: Final = 0.001
"""A request that was whole so soon takes as long as its attempt, for the metrics."""
SOON_S: Final = 0.5
"""A deadline this near gets a timer of its own; the sweep sees to the others until then."""

_SERVICE_FIELD: Final = (1, 0)


class Call:
    """The state of one call. ``down`` is its stream on the caller's connection, ``up`` the one on a worker's."""

    __slots__ = (
        "_attempt",
        "_connection",
        "_deadline",
        "_first_s",
        "_heard",
        "_http",
        "_left",
        "_limit",
        "_match",
        "_own",
        "_partial",
        "_plane",
        "_quiet_since",
        "_request_id",
        "_resends",
        "_seen",
        "_seen_bytes",
        "_started",
        "_target",
        "_timer",
        "_trace",
        "_tries",
        "_unpaid",
        "_upstream",
        "_whole",
        "active",
        "down",
        "head",
        "phase",
        "request_done",
        "up",
        "wanted",
    )

    def __init__(self, connection: CallerConnection, plane: GrpcPlane, head: CallHead, now: float) -> None:
        self._connection: Final = connection
        self._plane: Final = plane
        self.head: Final = head
        self.phase = WAITING
        self.down: Stream
        self.up: Stream | None = None
        self.request_done = False
        self.active = False
        self.wanted = False  # a pool keeps it until it has a connection
        self._target: Target
        self._upstream: WorkerPool | None = None
        self._attempt: Attempt | None = None
        self._match: tuple[int, int] | None = None
        self._own = False  # warmroute answers it itself
        self._started = now
        self._quiet_since = now
        self._deadline = inf if head.timeout_s is None else now + head.timeout_s
        self._limit = ""  # what is over at the deadline, where it is not the caller's own
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._resends = 0
        self._seen: list[bytes] = []  # of the request, to be sent or sent again
        self._seen_bytes = 0
        self._unpaid = 0  # of that, what the caller was not credited for yet
        self._whole = True  # all that was sent is in ``_seen``
        self._first_s = -1.0  # how long the worker took to begin, where the request went on meanwhile
        self._heard = 0  # how many bytes had come from the worker as the call was sent
        self._http = 0  # the answer's HTTP status
        self._left = 0  # of the message that is coming,
        self._partial = b""  # whose head is not whole
        self._request_id = b""
        self._trace = b""

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
        if self._deadline - self._started < SOON_S:
            self._set_timer(self._started)
        self._match = named_fields(asked.path)
        if self._match is None and asked.path in OWN:
            default = plane.resolve("", "", self._connection.default_model)
            if default.route is None or plane.shared.refusing:
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
            self.fail(Outcome.NO_ROUTE, target.why, status=plane.missing(named[0]))
            return
        self._dispatch(plane.clock())

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
        attempt = shared.cluster.choose(route, now, shared.rng, None if failed is None else failed.endpoint)
        if isinstance(attempt, NoCandidate):
            if failed is not None:
                self.fail(failed.outcome, failed.detail + NOBODY_ELSE)
                return
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
        if end:
            self._answer_ended(head)
            return
        self.phase = ANSWERING
        self._seen = []
        self._whole = False
        if not self.request_done and self._attempt is not None:
            self._first_s = max(0.0, self._plane.clock() - self._attempt.started)
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
        if self._first_s >= 0:  # both sides spoke at once: how long they went on says nothing of the worker's speed
            attempt.started = now - self._first_s
        status, pushback_s = -1, None
        if head is not None:
            status, pushback_s = head.grpc_status, head.pushback_s
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
            else:
                result, outcome = judge(status, pushed_back=pushback_s is not None)
            shared.attempt_ended(attempt, result, now, pushback_s)
            self._end(outcome, now)

    def _end(self, outcome: Outcome, now: float) -> None:
        """The last of the answer was handed to the connection: count the request, now or when it has gone out."""
        if self.down.waiting is None or self.phase == OVER:
            self._plane.shared.request_ended(self._target.row, outcome, now - self._started)
            self._over()
        else:
            self.phase = ENDING
            self._plane.ending[self] = outcome

    def flushed(self) -> None:
        """All that waited for the caller has gone out."""
        if self.phase == ENDING:
            outcome = self._plane.ending.pop(self)
            self._plane.shared.request_ended(self._target.row, outcome, self._plane.clock() - self._started)
            self._over()

    def _over(self) -> None:
        self.phase = OVER
        self._seen = []
        if self._own:
            self._plane.watchers.pop(self, None)
        if not self.request_done:  # nobody reads the rest of it (RFC 9113 8.1)
            self._connection.reset(self.down, Code.NO_ERROR)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- failures ----------------------------------------------------------------------------------------------------

    def stream_reset(self, code: int) -> None:
        """The worker reset the stream."""
        self._let_go()
        if code == Code.REFUSED_STREAM and self.phase == WAITING:
            self.attempt_failed(AttemptResult.REFUSED, "it refused the stream")
        else:
            result = AttemptResult.CALL_FAILED
            if code == Code.ENHANCE_YOUR_CALM:
                result = AttemptResult.TURNED_AWAY
            elif self.phase == ANSWERING and code in (Code.CANCEL, Code.REFUSED_STREAM):
                result = AttemptResult.CANCELLED
            self.attempt_failed(result, f"it reset the stream ({name_of(code)})")

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

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """The attempt broke: try again where that is safe, or tell the caller."""
        shared = self._plane.shared
        now = self._plane.clock()
        self._let_go()
        attempt = self._attempt
        if attempt is None:
            return
        detail = f"{attempt.endpoint.id}: {detail}"
        answered = self.phase >= ANSWERING
        self._settle(result, now)
        if answered:
            self.fail(OUTCOME_OF[result] if result is AttemptResult.STREAM_IDLE else Outcome.UPSTREAM_CUT, detail)
            return
        self._tries += 1
        delay_s = retry_after(
            shared,
            attempt,
            result,
            first=self.head.asked.attempt,
            replayable=self._whole,
            tries=self._tries,
            now=now,
            left_s=self._deadline - now,
        )
        if delay_s is None:
            self.fail(OUTCOME_OF[result], detail)
        else:
            failed = Failed(attempt.endpoint, OUTCOME_OF[result], detail)
            self._timer_for(delay_s, lambda: self._retry(failed))

    def _retry(self, failed: Failed) -> None:
        self._timer = None
        now = self._plane.clock()
        self._quiet_since = now
        self._rearm(now)
        self._dispatch(now, failed)

    def fail(
        self, outcome: Outcome, detail: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        """End the call with a status of warmroute's own: trailers alone, or behind what was sent of the answer."""
        spec = OUTCOMES[outcome]
        text = f"{spec.message}: {detail}" if detail else spec.message
        code = status_of(outcome) if status is None else status
        fields: list[Field] = []
        if self.phase < ANSWERING:
            fields += [(b":status", b"200"), (b"content-type", b"application/grpc")]
        fields += [
            (b"grpc-status", b"%d" % code),
            (b"grpc-message", encode_message(text[:1024])),
            (b"warmroute-outcome", outcome.value.encode()),
        ]
        if self.phase < ANSWERING:
            fields.append((b"x-request-id", self._request_id))
        if spec.retry_after:
            wait_s = 1.0 if retry_after_s is None else retry_after_s
            fields.append((b"grpc-retry-pushback-ms", b"%d" % max(1, int(wait_s * 1000))))
        self._conclude(fields, outcome)

    def _refuse(self, status: int) -> None:
        """Answer what is no gRPC call with an HTTP status (as gRPC over HTTP/2 asks for)."""
        outcome = Outcome.NOT_IMPLEMENTED if status == 405 else Outcome.BAD_REQUEST
        fields: list[Field] = [(b":status", b"%d" % status), (b"warmroute-outcome", outcome.value.encode())]
        if status == 405:
            fields.append((b"allow", b"POST"))
        self._conclude(fields, outcome)

    def answer(self, messages: list[bytes], *, end: bool) -> None:
        """Answer as the server that was asked: messages, and the status OK where that is all (``end``)."""
        connection, down = self._connection, self.down
        if self.phase == WAITING:
            fields: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
            connection.send_headers(down, fields, end=False)
            self.phase = ANSWERING
        for message in messages:
            connection.send_data(down, b"\0" + len(message).to_bytes(4, "big") + message, end=False)
        if end:
            self._conclude([(b"grpc-status", b"0")], Outcome.OK)

    def answer_status(self, status: Status, message: str) -> None:
        """Answer as the server that was asked, with a status other than OK."""
        fields: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        fields += [(b"grpc-status", b"%d" % status), (b"grpc-message", encode_message(message))]
        self._conclude(fields, Outcome.OK)

    def leave(self) -> None:
        """End a watch, because warmroute drains."""
        self.fail(Outcome.DRAINING, "")

    def _conclude(self, fields: list[Field], outcome: Outcome) -> None:
        self.down.source = None
        self._connection.send_headers(self.down, fields, end=True)
        self._end(outcome, self._plane.clock())

    # --- other ends --------------------------------------------------------------------------------------------------

    def cancelled(self) -> None:
        """The caller reset the stream, or has gone: stop the worker's work for it."""
        phase = self.phase
        if phase == OVER:
            return
        plane = self._plane
        now = plane.clock()
        if phase < ANSWERING:
            self._connection.given_up(now - self._started)
        plane.ending.pop(self, None)
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.CANCELLED, now)
        plane.shared.request_ended(self._target.row, Outcome.CLIENT_ABORT, now - self._started)
        self._over()

    def crashed(self, error: Exception) -> None:
        """End this call because of an error of warmroute's own; it is reported once, and nothing else is touched."""
        self._plane.shared.loop.call_exception_handler({"message": "a call crashed", "exception": error})
        self.broken()

    def broken(self) -> None:
        """End this call because of an error that was reported."""
        plane = self._plane
        if self.phase == OVER:
            return
        try:
            self._drop_upstream(Code.INTERNAL_ERROR)
            attempt, self._attempt = self._attempt, None
            if attempt is not None and attempt.endpoint.shell is not None:
                plane.shared.attempt_ended(attempt, AttemptResult.CANCELLED, plane.clock())
            elif attempt is not None:  # it is the making of the pool that crashed
                plane.shared.cluster.done(attempt, AttemptResult.CANCELLED, plane.clock())
            self.fail(Outcome.INTERNAL, "")
        except Exception:  # noqa: BLE001  whatever is broken, the connection ends
            self._connection.transport.abort()

    def cut_for_drain(self) -> None:
        """The grace period is over."""
        if self.phase >= ENDING:
            self._connection.reset(self.down, Code.CANCEL)
            self.cancelled()
            return
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.CANCELLED, self._plane.clock())
        self.fail(Outcome.DRAIN_CUT if self.phase == ANSWERING else Outcome.DRAINING, "")

    def _settle(self, result: AttemptResult, now: float) -> None:
        attempt = self._attempt
        if attempt is not None:
            self._attempt = None
            self._plane.shared.attempt_ended(attempt, result, now)

    def _let_go(self) -> Stream | None:
        """Part from the worker's stream, and remember what of the request had not gone out on it: not paid for yet."""
        up, self.up = self.up, None
        self.down.source = None
        if up is not None:
            up.source = None
            self._unpaid += up.waiting_bytes - up.prepaid
        return up

    def _drop_upstream(self, code: Code) -> None:
        """Let go of the worker: of the stream, of the place in a pool's queue, of the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        up = self._let_go()
        if up is not None:
            up.connection.reset(up, code)
        if self.wanted and self._upstream is not None:
            self._upstream.withdraw(self)

    # --- time --------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Look at the call's times, four times a second."""
        phase = self.phase
        target = self._target
        times = target.times
        if now >= self._deadline and phase < ENDING:
            self._too_late()
        elif target.watched and self._attempt is not None and now - self._attempt.began >= times.try_s:
            self._suspect()
            self._drop_upstream(Code.CANCEL)
            self.attempt_failed(AttemptResult.TRY_TIMEOUT, times.try_text)
        elif phase == MATCHING:  # as a whole, however it dribbles
            idle_s = self._plane.shared.timeouts.client_body_idle_s
            if now - self._quiet_since >= idle_s:
                self.fail(Outcome.CLIENT_TIMEOUT, f"no first message in {idle_s} s")
        elif self.active:
            self.active = False
            self._quiet_since = now
        elif phase == WAITING and self.request_done and self._deadline == inf:
            if now - self._quiet_since >= times.response_head_s:
                self._suspect()
                never_sent = self.wanted  # all of the worker's connections were full
                self._drop_upstream(Code.CANCEL)
                result = AttemptResult.CANCELLED if never_sent else AttemptResult.HEAD_TIMEOUT
                self.attempt_failed(result, f"no answer in {times.response_head_s} s")
        elif now - self._quiet_since >= times.stream_idle_s and self not in self._plane.watchers:
            self._stood_still(now)
        if self._timer is None and self._deadline - now < SOON_S and self.phase < ENDING:
            self._set_timer(now)

    def _suspect(self) -> None:
        """The call's time is over: where nothing at all came from the worker, it may not be there any more."""
        up = self.up
        if up is not None and up.connection.received_bytes == self._heard:
            up.connection.suspect()

    def _stood_still(self, now: float) -> None:
        """Nothing moved for ``stream_idle_s``: because of the caller where bytes wait for it, else of the worker."""
        if self.down.waiting is None:
            self._drop_upstream(Code.CANCEL)
            idle_s = self._target.times.stream_idle_s
            self.attempt_failed(AttemptResult.STREAM_IDLE, f"nothing moved for {idle_s} s")
            return
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.CANCELLED, now)
        self._plane.ending.pop(self, None)
        self._connection.reset(self.down, Code.CANCEL)
        self._plane.shared.request_ended(self._target.row, Outcome.CLIENT_TIMEOUT, now - self._started)
        self._over()

    def _timer_for(self, delay_s: float, then: object) -> None:
        """Wait, but not beyond the deadline."""
        if self._timer is not None:
            self._timer.cancel()
        loop = self._plane.shared.loop
        if self._plane.clock() + delay_s >= self._deadline:
            self._set_timer(self._plane.clock())
        else:
            self._timer = loop.call_later(delay_s, self._run, then)

    def _run(self, then: object) -> None:
        self._timer = None
        try:
            then()  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _rearm(self, now: float) -> None:
        if self._deadline - now < SOON_S:
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        self._timer = self._plane.shared.loop.call_later(max(0.0, self._deadline - now), self._run, self._too_late)

    def _too_late(self) -> None:
        """The caller's deadline has passed."""
        if self.phase >= ENDING:
            return
        now = self._plane.clock()
        if self.phase < ANSWERING:
            self._connection.given_up(now - self._started)
        self._suspect()
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.OUTRUN, now)
        limit = self._limit or f"grpc-timeout {self.head.timeout.decode()}"
        self.fail(Outcome.DEADLINE_EXCEEDED, limit)
