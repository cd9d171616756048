"""One request in hand: choosing a worker, sending it there, passing the answer on, and every way it can end.

A request is answered whole, refused with an error body, or cut. It is never finished falsely: once a byte of the answer
went downstream, nothing but the rest of that answer or the end of the connection follows.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from router.matching import Surface
from router.outcomes import OUTCOMES, AttemptResult, Outcome
from router.retry import RetryDenied
from router.routes import NoCandidate
from sidecar.faults import strike
from sidecar.http1.answers import error_answer, own_answer
from sidecar.http1.caller import ANSWERING, BODY, CLOSED, IDLE, LINGER_S, LINGERING, TUNNEL
from sidecar.http1.events import error_event
from sidecar.http1.forwarding import VIA, numbered
from sidecar.http1.head import CHUNKED, UNTIL_CLOSE, ResponseHead, without_fields
from sidecar.http1.targets import NO_MODEL
from sidecar.http1.tunnel import TunnelConnection
from sidecar.http1.watch import Watch
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.routes import Route
    from sidecar.upstreams.connection import UpstreamConnection
    from sidecar.upstreams.pool import Upstream

_OUTCOME_OF: Final[dict[AttemptResult, Outcome]] = {
    AttemptResult.CONNECT_REFUSED: Outcome.CONNECT_FAILED,
    AttemptResult.CONNECT_TIMEOUT: Outcome.CONNECT_TIMEOUT,
    AttemptResult.RESET: Outcome.UPSTREAM_RESET,
    AttemptResult.PROTOCOL: Outcome.UPSTREAM_PROTOCOL,
    AttemptResult.HEAD_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    AttemptResult.CUT: Outcome.UPSTREAM_CUT,
    AttemptResult.STREAM_IDLE: Outcome.STREAM_IDLE,
    AttemptResult.CANCELLED: Outcome.OVERLOADED,
    AttemptResult.TRY_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
}

_VIA_END: Final = VIA + b"\r\n"
_CUTS: Final = frozenset({AttemptResult.CUT, AttemptResult.STREAM_IDLE, AttemptResult.TRY_TIMEOUT})


class ExchangeConnection(TunnelConnection):
    """A caller's connection that can carry a request: the ``Exchange`` that an upstream connection reports to."""

    __slots__ = ()

    # --- choosing and sending --------------------------------------------------------------------------------------

    def _dispatch(self, route: Route, tried: Endpoint | None, now: float) -> None:
        """Choose a worker and send the request there."""
        plane = self._plane
        attempt = plane.cluster.choose(route, now, plane.rng, tried)
        while True:
            if isinstance(attempt, NoCandidate):
                self._end_with(attempt.outcome, attempt.detail or attempt.reason.value, attempt.retry_after_s)
                return
            self._attempt = attempt
            upstream: Upstream = attempt.endpoint.shell or plane.upstream(attempt.endpoint)
            if (plane.faults and self._struck(upstream, route, now)) or self._send(upstream, now):
                return
            self._attempt = None
            attempt = plane.cluster.choose_again(attempt, now, plane.rng, tried)

    def _send(self, upstream: Upstream, now: float) -> bool:
        """Send the request on a pooled connection, or have one made; False where no more may be made."""
        plane = self._plane
        seen = self._seen
        if self._watch is None:
            head = self._sent_head
        else:
            head = self._timed(self._sent_head, now)
            self._clip()
        self._upstream = connection = upstream.send(self, head + seen, now)
        if connection is None:
            if upstream.full:
                return False
            self._connect(upstream)
        elif len(seen) > plane.replay_bytes or self._write_paused or self._read_paused:
            self._settle_in(connection)
        return True

    def _send_late(self, upstream: Upstream, now: float) -> None:
        """Send a request that a fault held back; elsewhere, where the endpoint has no connection left by now."""
        attempt, route = self._attempt, self._target.route
        if not self._send(upstream, now) and attempt is not None and route is not None:
            self._settle(AttemptResult.CANCELLED, now)
            self._dispatch(route, attempt.endpoint, now)

    def _struck(self, upstream: Upstream, route: Route, now: float) -> bool:
        """Let an injected fault have its way with the attempt; True where it took it over."""
        plane = self._plane
        action = strike(plane.faults, route.model, upstream.id, now, plane.rng)
        if action is None:
            return False
        plane.count(Scalar.FAULTS_INJECTED_TOTAL)
        if action.status:
            self._settle(AttemptResult.CANCELLED, now)
            self._end_with(Outcome.FAULT, "", status=action.status)
        else:
            if self.request_done:
                self._wait_for_head(now + action.delay_s)
            self._timer = plane.loop.call_later(action.delay_s, self._held_back, upstream)
        return True

    def _held_back(self, upstream: Upstream) -> None:
        """An injected delay is over."""
        self._timer = None
        now = self._plane.clock()
        if self._attempt is not None:
            self._attempt.started = now
        if self.request_done:  # the worker's time begins when it is asked
            self._wait_for_head(now)
        try:
            self._send_late(upstream, now)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _connect(self, upstream: Upstream) -> None:
        self._ticket = ticket = self._ticket + 1
        upstream.connect(self, lambda: self._ticket == ticket)

    def _settle_in(self, connection: UpstreamConnection) -> None:
        """The request is under way on ``connection``: keep what can be sent again, and let what was paused go on."""
        if len(self._seen) > self._plane.replay_bytes:
            self._whole = False
            self._seen = b""
        if self._write_paused:
            connection.pause_reading()
        if self._read_paused and not self._peer_full:
            self._read_on()

    # --- Exchange: what the upstream connection reports --------------------------------------------------------------

    def attached(self, connection: UpstreamConnection) -> None:
        """A connection was made for this request."""
        self._ticket += 1
        self._upstream = connection
        head = self._sent_head if self._watch is None else self._timed(self._sent_head, self._plane.clock())
        connection.begin(self, head + self._seen)
        self._settle_in(connection)

    def begin_answer(self, head: ResponseHead) -> bytes:
        """Return the head that goes downstream."""
        if self._watch is not None:
            self._head_came(self._watch, head.status)
        request = self._head
        self._phase = ANSWERING
        self.active = True
        if not self.request_done or self._plane.draining:
            self._close_after = True
        out = head.forward
        length = head.length
        if not head.has_request_id:
            out += b"x-request-id: " + (self._request_id or self._head.request_id()) + b"\r\n"
        if length == UNTIL_CLOSE:
            if request.minor == 1:
                out += b"Transfer-Encoding: chunked\r\n"
            else:
                self._close_after = True
        elif length <= 0 and request.minor == 0:  # a head without a body may speak of chunks, too: HEAD, 304
            out = without_fields(out, (b"transfer-encoding",))
            if length == CHUNKED:
                self._close_after = True
        if self._close_after:
            return out + VIA + b"Connection: close\r\n\r\n"
        if request.minor == 0:
            return out + VIA + b"Connection: keep-alive\r\n\r\n"
        return out + _VIA_END

    def interim(self, head: ResponseHead) -> None:
        """Pass a 1xx on to callers that know them (RFC 9110 15.2); it is no byte of the answer."""
        self._body_at = 0.0  # it may have waited for this (100, RFC 9110 10.1.1) with its body
        if not self.old_client:
            self.transport.write(head.forward + b"\r\n")

    def whole_answer(self, now: float, head: ResponseHead, body: bytes) -> None:
        """Head and body came in one piece, as most do: send and settle them in one step where nothing is special."""
        plane = self._plane
        attempt = self._attempt
        self._upstream = None
        if (
            attempt is None
            or self._close_after
            or self._tries
            or self._watch is not None
            or self.old_client
            or head.status >= 400
            or plane.draining
            or not self.request_done
            or attempt.started != self._started
        ):
            self.transport.write(self.begin_answer(head) + body)
            self.answer_ended(now, head)
            return
        out = head.forward
        if not head.has_request_id:
            out += b"x-request-id: " + (self._request_id or self._head.request_id()) + b"\r\n"
        self._phase = ANSWERING
        self.transport.write(out + _VIA_END + body)
        plane.answered(attempt, self._target.row, now)
        self._attempt = None
        if self._buffer or self._write_paused or self._read_paused:
            self._next(now)
            return
        self._seen = b""
        self._phase = IDLE
        self.deadline = now + plane.keep_alive_s

    def answer_ended(self, now: float, head: ResponseHead) -> None:
        """The whole answer went downstream: count it, and go on to what is pipelined behind it."""
        plane = self._plane
        attempt = self._attempt
        row = self._target.row
        if attempt is None:
            return
        status = head.status
        self._upstream = None
        if status < 400 and not self._tries and attempt.started == self._started:
            plane.answered(attempt, row, now)
        else:
            if status < 400:
                result, outcome = AttemptResult.SUCCESS, Outcome.OK
            elif head.busy:
                result, outcome = AttemptResult.BUSY, Outcome.UPSTREAM_BUSY
            elif status < 500:
                result, outcome = AttemptResult.CLIENT_ERROR, Outcome.UPSTREAM_4XX
            else:
                result, outcome = AttemptResult.SERVER_ERROR, Outcome.UPSTREAM_5XX
            plane.attempt_ended(attempt, result, now, head.retry_after_s)
            plane.request_ended(row, outcome, now - self._started)
        self._attempt = None
        self._next(now)

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """The attempt broke: try again where that is safe, tell the caller, or cut."""
        plane = self._plane
        now = plane.clock()
        broken, self._upstream = self._upstream, None
        self._peer_full = False  # that was the connection which is gone
        self._ticket += 1
        attempt = self._attempt
        answered = self._phase == ANSWERING
        if attempt is None:
            return
        self._settle(result, now)
        if answered:
            self._cut(_OUTCOME_OF[result] if result in _CUTS else Outcome.UPSTREAM_CUT, broken, detail)
            return
        if self._watch is not None and self._hedge_takes_over(self._watch):
            return
        self._tries += 1
        left_s = inf if self._watch is None else self._watch.ends_at - now
        if result is not AttemptResult.CANCELLED and self._head.attempt == 1:  # else a proxy before us tries again
            verdict = plane.cluster.retry(
                attempt,
                result,
                answered=False,
                replayable=self._whole,
                tries=self._tries,
                now=now,
                rng=plane.rng,
                left_s=left_s,
            )
            if verdict.allowed:
                plane.count(Scalar.RETRIES_TOTAL)
                self._sent_head = numbered(self._sent_head, 1 + self._tries)
                self._timer = plane.loop.call_later(verdict.delay_s, self._retry, attempt.endpoint)
                if self.request_done:  # nobody's time runs meanwhile but the request's own
                    self._wait_for_head(now + verdict.delay_s)
                return
            if verdict.denied is RetryDenied.BUDGET:
                plane.count(Scalar.RETRIES_DENIED_TOTAL)
        if self._watch is not None and left_s <= 0:
            self._end_with(Outcome.DEADLINE_EXCEEDED, f"{self._watch.limit}; {detail}")
        else:
            self._end_with(_OUTCOME_OF[result], detail)

    def upstream_full(self, *, full: bool) -> None:
        """The worker's side is full, or no longer: read the request's body accordingly."""
        self._peer_full = full
        if full:
            self._pause_reading()
        else:
            self._read_on()

    def crashed(self, error: Exception) -> None:
        """End this connection because of an error of warmroute's own. It is reported once; nothing else is touched."""
        plane = self._plane
        now = plane.clock()
        plane.loop.call_exception_handler({"message": "a connection crashed", "exception": error, "protocol": self})
        phase = self._phase
        try:
            attempt, self._attempt = self._attempt, None
            if attempt is not None and phase == TUNNEL:
                plane.tunnel_ended(attempt, AttemptResult.CANCELLED, self._opened_s)
            elif attempt is not None and attempt.endpoint.shell is not None:
                plane.attempt_ended(attempt, AttemptResult.CANCELLED, now)
            elif attempt is not None:  # it is the making of the pool that crashed
                plane.cluster.done(attempt, AttemptResult.CANCELLED, now)
            self._drop_upstream()
            if phase >= LINGERING:
                self.transport.abort()
            elif phase >= ANSWERING:
                self._cut(Outcome.INTERNAL)
            elif phase >= BODY:
                self._end_with(Outcome.INTERNAL, "")
            else:  # before anything is known of the request
                plane.request_ended(plane.page.model_row(NO_MODEL), Outcome.INTERNAL, 0.0)
                self._say(error_answer(Surface.PLAIN, Outcome.INTERNAL, close=True))
                self._linger()
        except Exception:  # noqa: BLE001  whatever is broken, the connection ends
            self.transport.abort()

    def _retry(self, tried: Endpoint) -> None:
        self._timer = None
        now = self._plane.clock()
        if self.request_done:
            self._wait_for_head(now)
        route = self._target.route
        if route is not None:
            try:
                self._dispatch(route, tried, now)
            except Exception as error:  # noqa: BLE001
                self.crashed(error)

    # --- time -------------------------------------------------------------------------------------------------------

    def _start_watch(self, now: float) -> None:
        """The request has limits of its own: from its model, or from its caller."""
        plane = self._plane
        self._watch = watch = Watch(self._target.times, self._head.timeout_ms, self._started)
        if watch.told:
            watch.timer = plane.loop.call_later(watch.ends_at - now, self._time_over)
        if self.request_done:
            self._arm_hedge(watch, now)
        self._clip()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._end_hedge(self._watch, AttemptResult.CANCELLED)
            self._watch.close()
            self._watch = None

    def _arm_hedge(self, watch: Watch, now: float) -> None:
        """The request is whole. Hedging stands above (see ``hedging``): what concerns it here are these two hooks."""

    def _hedge_takes_over(self, watch: Watch) -> bool:
        """The try in hand failed and is settled; True where another one is under way, which is the retry then."""
        return False

    def _end_hedge(self, watch: Watch, result: AttemptResult) -> None:
        """Cancel a second try, and settle it where it still runs beside the first."""
        hedge = watch.hedge
        if hedge is not None:
            watch.hedge = None
            hedge.cancel()
            if not hedge.promoted:
                self._plane.attempt_ended(hedge.attempt, result, self._plane.clock())

    def _head_came(self, watch: Watch, status: int) -> None:
        """The answer begins: no other try is wanted, and how long it was waited for is learned where that counts."""
        watch.stop_hedging()
        self._end_hedge(watch, AttemptResult.OUTRUN)
        route = self._target.route
        if route is not None and watch.asked_at < inf and status < 400 and (not self._tries or watch.hedged):
            self._plane.cluster.waited(route, self._plane.clock() - watch.asked_at)

    def _timed(self, head: bytes, now: float) -> bytes:
        """Return a head to send with what is left of the caller's time."""
        watch = self._watch
        return head[:-2] + watch.told_field(now) if watch is not None and watch.told else head

    def _wait_for_head(self, since: float) -> None:
        """The worker has the whole request: its time runs."""
        self.deadline = since + self._target.times.response_head_s
        if self._watch is not None:
            self._clip()

    def _clip(self) -> None:
        """Have the sweep look no later than the watch says."""
        watch = self._watch
        if watch is None:
            return
        self.deadline = min(self.deadline, watch.ends_at)
        attempt = self._attempt
        if attempt is not None and self.request_done:
            self.deadline = min(self.deadline, attempt.started + watch.try_s)

    def _over(self, now: float) -> bool:
        """End the try or the request where its watch says so; True where one was ended."""
        watch = self._watch
        if watch is None:
            return False
        attempt = self._attempt
        if attempt is not None and self.request_done and now >= attempt.started + watch.try_s:
            if self._phase != ANSWERING:
                self._give_up(AttemptResult.TRY_TIMEOUT, watch.try_text)
            elif self._write_paused:  # it is the caller who is slow
                self._drop_upstream()
                self._settle(AttemptResult.CANCELLED, now)
                self._cut(Outcome.CLIENT_TIMEOUT)
            else:
                broken = self._drop_upstream()
                self._settle(AttemptResult.TRY_TIMEOUT, now)
                self._cut(Outcome.UPSTREAM_TIMEOUT, broken, watch.try_text)
            return True
        if now >= watch.ends_at:
            self._end_in_time(watch, now)
            return True
        return False

    def _end_in_time(self, watch: Watch, now: float) -> None:
        """The request's time is over: drop the worker's connection; an answer that had begun is cut."""
        broken = self._drop_upstream()
        self._end_hedge(watch, AttemptResult.OUTRUN)
        # how long it was waited for says something of a worker that had all of the request, and whose answer was read
        waited = self.request_done and not self._write_paused
        self._settle(AttemptResult.OUTRUN if waited else AttemptResult.CANCELLED, now)
        if self._phase == ANSWERING:
            self._cut(Outcome.DEADLINE_EXCEEDED, broken, watch.limit)
        else:
            self._end_with(Outcome.DEADLINE_EXCEEDED, watch.limit)

    def _time_over(self) -> None:
        """The caller's time is over, to the millisecond."""
        watch = self._watch
        if watch is None:
            return
        watch.timer = None
        try:
            self._end_in_time(watch, self._plane.clock())
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    # --- endings ----------------------------------------------------------------------------------------------------

    def _settle(self, result: AttemptResult, now: float) -> None:
        attempt = self._attempt
        if attempt is not None:
            self._attempt = None
            if self._phase == TUNNEL:
                self._plane.tunnel_ended(attempt, result, self._opened_s)
            else:
                self._plane.attempt_ended(attempt, result, now)

    def _drop_upstream(self) -> UpstreamConnection | None:
        """Cancel what is under way: the timer, the connecting, the upstream request. Return whom that was asked."""
        self._ticket += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dropped, self._upstream = self._upstream, None
        if dropped is not None:
            dropped.drop()
        if self._watch is not None and self._watch.hedge is not None and self._watch.hedge.promoted:
            self._watch.hedge.cancel()
            self._watch.hedge = None
        return dropped

    def _abandon(self) -> None:
        """The caller went away in the middle: stop the worker's work for it."""
        plane = self._plane
        now = plane.clock()
        self._drop_upstream()
        self._settle(AttemptResult.CANCELLED, now)
        plane.request_ended(self._target.row, Outcome.CLIENT_ABORT, now - self._started)
        self._end_watch()
        self._phase = CLOSED
        self.deadline = now + LINGER_S
        self._unflushed = 0
        self._scanner = None
        self._look = None
        self._seen = b""

    def _fail_request(self, outcome: Outcome, detail: str) -> None:
        """The request's body turned out bad: stop the worker, then answer or cut."""
        self._drop_upstream()
        self._settle(AttemptResult.CANCELLED, self._plane.clock())
        if self._phase == ANSWERING:
            self._cut(outcome)
        else:
            self._end_with(outcome, detail)

    def _end_with(
        self, outcome: Outcome, detail: str, retry_after_s: float | None = None, *, status: int = 0, code: str = ""
    ) -> None:
        """End the request with an answer of warmroute's own."""
        plane = self._plane
        head = self._head
        target = self._target
        now = plane.clock()
        close = (
            OUTCOMES[outcome].close
            or self.last
            or not self.request_done
            or not head.keep_alive
            or plane.draining
            or head.minor == 0
        )
        self._close_after = close
        self._say(
            error_answer(
                target.surface,
                outcome,
                detail,
                request_id=self._request_id or head.request_id(),
                retry_after_s=retry_after_s,
                close=close,
                head_only=head.method == b"HEAD",
                status=status,
                code=code,
            )
        )
        plane.request_ended(target.row, outcome, now - self._started)
        self._next(now)

    def _answer_for_server(self, path: bytes, body: bytes, now: float) -> None:
        """Answer what clients ask a server as a whole (V2: metadata, live, ready; OpenAI: its models)."""
        plane = self._plane
        if path.endswith(b"/ready"):
            if plane.leaving:
                self._end_with(Outcome.DRAINING, "")
                return
            if not plane.cluster.routable(now):
                self._end_with(Outcome.NO_CANDIDATE, "no model has a replica that can be picked")
                return
        self._close_after = (
            self.last or plane.draining or not self.request_done or not self._head.keep_alive or self.old_client
        )
        self._say(
            own_answer(
                body,
                request_id=self._request_id or self._head.request_id(),
                close=self._close_after,
                head_only=self.method == b"HEAD",
            )
        )
        plane.request_ended(self._target.row, Outcome.OK, now - self._started)
        self._next(now)

    def _next(self, now: float) -> None:
        """The request is over: close, or read the next one."""
        self._end_watch()
        self._seen = b""
        self._scanner = None
        self._look = None
        self.active = False
        self._peer_full = False
        if self._close_after or self._plane.draining:
            if self.request_done and not self._buffer:
                self._phase = LINGERING
                self.deadline = now + LINGER_S
                self._unflushed = 0
                self.transport.close()
            else:
                self._linger()
            return
        self._phase = IDLE
        self.deadline = now + self._plane.keep_alive_s
        if self._write_paused:  # answers pile up: no further request is taken before the caller reads
            self._pause_reading()
            return
        if self._read_paused:
            self._read_on()
        if self._buffer:
            self._plane.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Read what was pipelined behind the last request."""
        if self._phase == IDLE and self._buffer and not self._write_paused:
            self.data_received(b"")

    def _cut(self, outcome: Outcome, broken: UpstreamConnection | None = None, detail: str = "") -> None:
        """End an answer that had begun, so that nobody can take it for a whole one.

        A caller of OpenAI's surface is told why in an event, where ``broken`` has just passed on a whole one to it.
        """
        plane = self._plane
        if (
            broken is not None
            and self._target.surface is Surface.OPENAI
            and not self.old_client
            and not self.transport.is_closing()
            and broken.between_events()
        ):
            self._say(error_event(outcome, detail))
        plane.request_ended(self._target.row, outcome, plane.clock() - self._started)
        self._end_watch()
        self._phase = LINGERING
        self._buffer = b""
        self._seen = b""
        self._scanner = None
        self._look = None
        self._unflushed = 0
        self.active = False
        self.deadline = plane.clock() + LINGER_S
        self._hang_up()

    def _give_up(self, result: AttemptResult, detail: str) -> None:
        """The worker took too long: let go of it and say so."""
        attempt = self._attempt
        name = attempt.endpoint.id + ": " if attempt is not None else ""
        self._drop_upstream()
        if attempt is None:
            self._end_with(Outcome.UPSTREAM_TIMEOUT, detail)
        else:
            self.attempt_failed(result, name + detail)
