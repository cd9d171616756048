"""One request in hand: choosing a worker, sending it there, passing the answer on, and trying again.

Nothing is sent twice that may not be, and never once a byte of an answer went downstream; how requests end stands in
``endings``.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from router.outcomes import OUTCOME_OF, AttemptResult, Outcome
from router.policy import LatencyOf
from router.retry import NOBODY_ELSE, Failed
from router.routes import NoCandidate
from sidecar.faults.injector import counted_as
from sidecar.http1.caller import ANSWERING, IDLE
from sidecar.http1.endings import EndingConnection
from sidecar.http1.events import is_stream
from sidecar.http1.forwarding import VIA, numbered
from sidecar.http1.head import CHUNKED, UNTIL_CLOSE, ResponseHead
from sidecar.http1.parsing import without_fields
from sidecar.http1.reports import asks, take_report
from sidecar.http1.retrying import not_ready_there, retry_after
from sidecar.http1.watch import Watch
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.endpoint import Endpoint
    from router.routes import Attempt, Route
    from sidecar.faults.link import Link
    from sidecar.http1.keys import KeySource
    from sidecar.http1.steps import Course
    from sidecar.upstreams.connection import UpstreamConnection
    from sidecar.upstreams.pool import Upstream

_VIA_END: Final = VIA + b"\r\n"
SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
"""RFC 9110 9.2.1."""
_CUTS: Final = frozenset({AttemptResult.CUT, AttemptResult.STREAM_IDLE, AttemptResult.TRY_TIMEOUT})


def result_of(head: ResponseHead) -> AttemptResult:
    """Return what a whole answer says of its endpoint."""
    if head.status < 400:
        return AttemptResult.SUCCESS
    if head.busy:
        return AttemptResult.BUSY
    if head.overdue:
        return AttemptResult.OVERDUE
    return AttemptResult.CLIENT_ERROR if head.status < 500 else AttemptResult.SERVER_ERROR


def _timed_by_head(attempt: Attempt, head: ResponseHead) -> bool:
    """Return whether the latency of an answer that comes in pieces is that of its first byte."""
    of = attempt.route.policy.latency
    return of is LatencyOf.FIRST_BYTE or (of is LatencyOf.AUTO and is_stream(head.forward))


class ExchangeConnection(EndingConnection):
    """A caller's connection that can carry a request: the ``Exchange`` that an upstream connection reports to."""

    __slots__ = ()

    # --- choosing and sending --------------------------------------------------------------------------------------

    def _dispatch(self, route: Route, tried: Endpoint | None, now: float, failed: Failed | None = None) -> None:
        """Choose a worker and send the request there. Where nobody is left for a retry, what ``failed`` is told."""
        plane = self._plane
        source = self._target.key_source
        key = None if source is None else self._key_from(source)
        attempt = plane.cluster.choose(route, now, plane.rng, tried, key)
        while True:
            if isinstance(attempt, NoCandidate):
                self._nobody_left(attempt, failed)
                return
            self._attempt = attempt
            upstream: Upstream = attempt.endpoint.shell or plane.upstream(attempt.endpoint)
            if plane.faults is not None and self._struck(attempt, upstream, now):
                return
            if self._send(upstream, now):
                return
            self._attempt = None
            attempt = plane.cluster.choose_again(attempt, now, plane.rng, tried, key)

    def _dispatch_later(self, route: Route, tried: Endpoint | None, now: float, failed: Failed | None = None) -> None:
        """Dispatch a request that had to wait for something before, or is sent once more."""
        self._dispatch(route, tried, now, failed)
        if not self.request_done:
            self._wait_for_caller(now)

    def _wait_for_caller(self, now: float) -> None:
        """What there is of the request has gone to the worker; for the rest of it the caller is waited for."""
        attempt = self._attempt
        if attempt is not None and attempt.permits and self._upstream is not None:
            self._plane.cluster.lend(attempt, now)

    def _key_from(self, source: KeySource) -> bytes | None:
        """Return the key that the balancer goes by: what the request's course found, else what stands in its head."""
        watch = self._watch
        course = None if watch is None else watch.course
        return source.of(self._head) if course is None or course.key is None else course.key

    def _nobody_left(self, none: NoCandidate, failed: Failed | None) -> None:
        """Nobody can be picked: say so, or how the attempt before this one ``failed``."""
        if failed is not None:
            self.end_unanswered(failed.outcome, failed.detail + NOBODY_ELSE)
        else:
            self.end_unanswered(none.outcome, none.detail or none.reason.value, none.retry_after_s)

    def _send(self, upstream: Upstream, now: float) -> bool:
        """Send the request on a pooled connection, or have one made; False where no more may be made."""
        plane = self._plane
        seen = self._seen
        head = self._sent_head
        watch = self._watch
        if watch is not None and (watch.told or watch.try_s < inf or watch.course is not None):
            head = self._outgoing(head, self._attempt, now)
            self._clip()
        self._upstream = connection = upstream.checkout(now)
        if connection is None:
            if upstream.full:
                return False
            self._connect(upstream)
            return True
        connection.exchange = self  # UpstreamConnection.begin by hand: this is every request
        connection.transport.write(head + seen)
        if len(seen) > plane.small_bytes or self._write_paused or self._read_paused:
            self._settle_in(connection)
        return True

    def _struck(self, attempt: Attempt, upstream: Upstream, now: float) -> bool:
        """Have an attempt that injected faults strike go over a link of its own; True where it does."""
        plane = self._plane
        self._fault = ""
        if plane.faults is None or not upstream.has_room:
            return False
        head = self._head
        struck = plane.faults.strike(attempt, head.raw, now, plane.rng, trusted=self._peer.trusted)
        if struck is None:
            return False
        self._plain = False
        self._fault = struck.names
        upstream.make_room()
        self._clip()
        self._connect(upstream, struck.links(plane.loop, plane.rng, bodiless=head.method == b"HEAD"))
        return True

    def _connect(self, upstream: Upstream, links: Callable[[UpstreamConnection], Link] | None = None) -> None:
        self._ticket = ticket = self._ticket + 1
        upstream.connect(self, lambda: self._ticket == ticket, links)

    def _settle_in(self, connection: UpstreamConnection) -> None:
        """The request is under way on ``connection``: keep what can be sent again, and let what was paused go on."""
        self.keep_less()
        if self._write_paused:
            connection.pause_reading()
        if self._read_paused and not self._peer_full:
            self._read_on()

    def _most_kept(self) -> int:
        """Return how much of a request that is on its way is worth keeping.

        One that must not be done twice is tried again only where no worker saw it, which is rare once it was sent.
        """
        plane = self._plane
        route = self._target.route
        return plane.replay_bytes if route is not None and route.policy.idempotent else plane.small_bytes

    def keep_less(self) -> None:
        """Keep no more of a request that is on its way than there is use and room for."""
        if self._upstream is not None and len(self._seen) > self._most_kept():
            self._whole = False
            self._seen = b""

    # --- Exchange: what the upstream connection reports --------------------------------------------------------------

    def attached(self, connection: UpstreamConnection) -> None:
        """A connection was made for this request."""
        self._ticket += 1
        self._upstream = connection
        head = self._sent_head
        if self._watch is not None:
            head = self._outgoing(head, self._attempt, self._plane.clock())
        connection.begin(self, head + self._seen)
        self._settle_in(connection)
        if not self.request_done:
            self._wait_for_caller(self._plane.clock())

    def looks_at(self, head: ResponseHead) -> int:
        """Return how much of an error's body is to be looked at. A 429 says all by its status."""
        recogniser = self._plane.recogniser
        if recogniser is None or head.status not in recogniser.statuses or self.method == b"HEAD":
            return 0
        if head.busy and head.status != 503:
            return 0
        return recogniser.look_at_bytes

    def recognise(self, head: ResponseHead, body: bytes) -> bool:
        """Look whether an error is one that means something else than its status."""
        self.take_meaning(self.recognised(head, body))
        return self._meant is not None

    def recognised(self, head: ResponseHead, body: bytes) -> AttemptResult | None:
        """Return what an error says other than its status, None where it says no more."""
        recogniser = self._plane.recogniser
        route = self._target.route
        return None if recogniser is None else recogniser.http(head.status, body, "" if route is None else route.model)

    def take_meaning(self, result: AttemptResult | None) -> None:
        """The answer of the try in hand is taken for this, where it is for anything but its status."""
        attempt = self._attempt
        self._meant = None if result is None or attempt is None else (attempt, result)

    def _meaning_of(self, head: ResponseHead) -> AttemptResult:
        """Return what an answer of the try in hand says of its endpoint, by its text or by its status."""
        meant = self._meant
        if meant is not None and meant[0] is self._attempt:
            return meant[1]
        return result_of(head)

    def set_aside(self, head: ResponseHead) -> bool:
        """Try again elsewhere where the model is not ready here; any other answer is passed on.

        Hedging stands above: see there.
        """
        if self._meant is None or self._meaning_of(head) is not AttemptResult.NOT_READY:
            return False
        return self._not_ready_here(head)

    def _not_ready_here(self, head: ResponseHead) -> bool:
        """The model is not ready at this endpoint: try another one where that is safe and there is one."""
        attempt = self._attempt
        now = self._plane.clock()
        if attempt is None:
            return False
        delay_s = self._delay_of_retry(attempt, AttemptResult.NOT_READY, now, self._tries + 1)
        if delay_s is None:
            return False
        self._leave_answer(attempt, AttemptResult.NOT_READY, head, now)
        self._tries += 1
        self._plain = False
        self._retry_in(delay_s, not_ready_there(attempt), now)
        return True

    def _leave_answer(self, attempt: Attempt, result: AttemptResult, head: ResponseHead, now: float) -> None:
        """Nobody wants the answer of the try in hand: settle that by what the answer says of its endpoint."""
        self._upstream = self._attempt = self._meant = None
        self._peer_full = False
        self._ticket += 1
        self._plane.attempt_ended(attempt, result, now, head.retry_after_s)

    def begin_answer(self, head: ResponseHead) -> bytes:
        """Return the head that goes downstream."""
        out = head.forward
        if self._watch is not None:
            self._head_came(self._watch, head.status)
            if self._target.reports:
                out = self._without_report(out)
            if self._watch.course is not None:
                out = self._course_answered(self._watch.course, head, out)
        if self._upstream is not None:  # more of it is to come
            self._head_at = now = self._plane.clock()
            attempt = self._attempt
            if attempt is not None and attempt.permits:
                timed = _timed_by_head(attempt, head)
                self._plane.answer_began(attempt, self._meaning_of(head), now, timed=timed)
        request = self._head
        self._phase = ANSWERING
        self.active = True
        if not self.request_done or self._plane.draining:
            self._close_after = True
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

    def _without_report(self, forward: bytes) -> bytes:
        """Learn what the worker says of its load; return what of the head goes to a caller who did not ask for that."""
        attempt = self._attempt
        if attempt is None:
            return forward
        left = take_report(self._plane, attempt.endpoint, forward)
        return forward if asks(self._head.forward) else left

    def trailers(self, lines: bytes) -> None:
        """Learn what the worker says of its load behind its answer; the caller gets no trailers."""
        if self._target.reports and self._attempt is not None:
            take_report(self._plane, self._attempt.endpoint, lines)

    def _course_answered(self, course: Course, head: ResponseHead, out: bytes) -> bytes:
        """The answer to a request that needed more than a pick begins; return what of its head goes downstream."""
        return out

    def _course_ended(self, course: Course, head: ResponseHead, now: float) -> None:
        """All of that answer went downstream."""

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
        if not self._plain or head.status >= 400 or plane.draining or attempt is None:
            out = self.begin_answer(head)
            self.sink.write(out + body)
            self.answer_ended(now, head)
            return
        out = head.forward
        if not head.has_request_id:
            out += b"x-request-id: " + (self._request_id or self._head.request_id()) + b"\r\n"
        self._phase = ANSWERING
        self.transport.write(out + _VIA_END + body)
        plane.answered(attempt, self._target.row, now)
        self._attempt = None
        self._watch = None
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
        self._upstream = None
        passed_on_s = 0.0
        if self._head_at:
            passed_on_s = self._passed_on(attempt, row, head, now)
        if head.status < 400 and not self._tries and attempt.started == self._started and not passed_on_s:
            plane.answered(attempt, row, now)
        else:
            result = self._meaning_of(head)
            self._meant = None
            plane.attempt_ended(attempt, result, now, head.retry_after_s, passed_on_s)
            plane.request_ended(row, counted_as(OUTCOME_OF[result], self._fault), now - self._started)
        self._attempt = None
        if self._watch is not None and self._watch.course is not None:
            self._course_ended(self._watch.course, head, now)
        self._next(now)

    def _passed_on(self, attempt: Attempt, row: int, head: ResponseHead, now: float) -> float:
        """An answer that came in pieces is whole. Count its first byte; return what followed and is no latency, s."""
        head_at, self._head_at = self._head_at, 0.0
        self._plane.first_byte(row, head_at - self._started)
        return now - head_at if _timed_by_head(attempt, head) else 0.0

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
        if result is AttemptResult.RESET and broken is not None and not answered and self._send_anew(broken, attempt):
            return
        self._settle(result, now)
        if answered:
            self._cut(OUTCOME_OF[result] if result in _CUTS else Outcome.UPSTREAM_CUT, broken, detail)
            return
        if self._watch is not None and self._hedge_takes_over(self._watch):
            return
        self._tries += 1
        self._plain = False
        delay_s = self._delay_of_retry(attempt, result, now, self._tries)
        if delay_s is not None:
            self._retry_in(delay_s, Failed(attempt.endpoint, OUTCOME_OF[result], detail), now)
        elif self._watch is not None and self._watch.ends_at <= now:
            self.end_unanswered(Outcome.DEADLINE_EXCEEDED, f"{self._watch.limit}; {detail}")
        else:
            self.end_unanswered(OUTCOME_OF[result], detail)

    def _delay_of_retry(self, attempt: Attempt, result: AttemptResult, now: float, tries: int) -> float | None:
        """Return after how long the request is tried again, None where it is not; that is counted."""
        return retry_after(
            self._plane,
            attempt,
            result,
            first=self._head.attempt,
            replayable=self._whole,
            tries=tries,
            now=now,
            left_s=inf if self._watch is None else self._watch.ends_at - now,
        )

    def _retry_in(self, delay_s: float, failed: Failed, now: float) -> None:
        self._sent_head = numbered(self._sent_head, 1 + self._tries)
        self._timer = self._plane.loop.call_later(delay_s, self._retry, failed)
        self._held_until = now + delay_s
        if self.request_done:  # nobody's time runs meanwhile but the request's own
            self._wait_for_head(self._held_until)

    def _send_anew(self, broken: UpstreamConnection, attempt: Attempt) -> bool:
        """Send the request on a new connection where a kept one was closed as it was used; True where that is done.

        Where the worker's kernel took not a byte of it, it was surely not begun. Where the connection was reset, bytes
        lay there that the worker never read; these need not be all of the request, so what is sent anew then must be
        safe to do twice (RFC 9112 9.3.1). A worker that died at its work had read it: its kernel ends the connection
        in order. A new connection that ends is a failure.
        """
        upstream: Upstream = attempt.endpoint.shell
        untaken = broken.untaken_bytes >= len(self._sent_head) + len(self._seen)
        unread = broken.was_reset and self.method in SAFE_METHODS
        if not broken.given_up or not (untaken or unread) or not self._whole or upstream.full:
            return False
        self._plane.count(Scalar.UPSTREAM_STALE_TOTAL)
        self._connect(upstream)
        return True

    def upstream_full(self, *, full: bool) -> None:
        """The worker's side is full, or no longer: read the request's body accordingly."""
        self._peer_full = full
        if full:
            self._pause_reading()
        else:
            self._read_on()

    def _retry(self, failed: Failed) -> None:
        self._timer = None
        now = self._plane.clock()
        if self.request_done:
            self._wait_for_head(now)
        route = self._target.route
        if route is not None:
            try:
                self._dispatch_later(route, failed.endpoint, now, failed)
            except Exception as error:  # noqa: BLE001
                self.crashed(error)

    # --- time -------------------------------------------------------------------------------------------------------

    def _hedge_takes_over(self, watch: Watch) -> bool:
        """The try in hand failed and is settled; True where another one is under way, which is the retry then."""
        return False

    def _head_came(self, watch: Watch, status: int) -> None:
        """The answer begins: no other try is wanted, and how long it was waited for is learned where that counts."""
        watch.stop_hedging()
        self._end_hedge(watch, AttemptResult.OUTRUN)
        route = self._target.route
        if route is not None and watch.asked_at < inf and status < 400 and (not self._tries or watch.hedged):
            self._plane.cluster.waited(route, self._plane.clock() - watch.asked_at)

    def _over(self, now: float) -> bool:
        """End the try or the request where its watch says so; True where one was ended."""
        watch = self._watch
        if watch is None:
            return False
        attempt = self._attempt
        if attempt is not None and self.request_done and now >= attempt.started + watch.try_s:
            if self._phase != ANSWERING:
                if self._upstream is None or not self._upstream.look_no_longer():
                    self._give_up(AttemptResult.TRY_TIMEOUT, watch.try_text)
            elif self._write_paused:  # it is the caller who is slow
                self._drop_upstream()
                self._settle(AttemptResult.CANCELLED, now)
                self._cut(Outcome.CLIENT_TIMEOUT)
            else:
                result = self._stalled(AttemptResult.TRY_TIMEOUT)
                broken = self._drop_upstream()
                self._settle(result, now)
                self._cut(Outcome.UPSTREAM_TIMEOUT, broken, watch.try_text)
            return True
        if now >= watch.ends_at:
            self._end_in_time(watch, now)
            return True
        return False

    def _stalled(self, result: AttemptResult) -> AttemptResult:
        """Return what an answer that does not go on says of its endpoint: for a 4xx no more than its status does."""
        head = None if self._upstream is None else self._upstream.answer
        return result if head is None or not 400 <= head.status < 500 else self._meaning_of(head)

    def _give_up(self, result: AttemptResult, detail: str) -> None:
        """The worker took too long: let go of it and say so."""
        attempt = self._attempt
        name = attempt.endpoint.id + ": " if attempt is not None else ""
        self._drop_upstream()
        if attempt is None:
            self.end_unanswered(Outcome.UPSTREAM_TIMEOUT, detail)
        else:
            self.attempt_failed(result, name + detail)
