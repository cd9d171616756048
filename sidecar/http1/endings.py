"""How a request in hand ends: with an answer of warmroute's own, cut, abandoned, or because its time is over.

It is never finished falsely: once a byte of an answer went downstream, nothing but the rest of that answer or the end
of the connection follows. Every ending counts the request once and releases what it had in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.matching import Surface
from router.outcomes import OUTCOMES, AttemptResult, Outcome
from sidecar.faults.injector import counted_as
from sidecar.http1.answers import error_answer, own_answer
from sidecar.http1.caller import ANSWERING, BODY, CLOSED, IDLE, LINGER_S, LINGERING, TUNNEL, WAITING
from sidecar.http1.events import error_event
from sidecar.http1.reports import asking
from sidecar.http1.targets import NO_MODEL
from sidecar.http1.transports import unsent
from sidecar.http1.tunnel import TunnelConnection
from sidecar.http1.versions import with_version
from sidecar.http1.watch import Watch

if TYPE_CHECKING:
    from router.routes import Attempt
    from sidecar.http1.steps import Course
    from sidecar.upstreams.connection import UpstreamConnection


class EndingConnection(TunnelConnection):
    """A caller's connection whose request has its times and its ends."""

    __slots__ = ()

    # --- time -------------------------------------------------------------------------------------------------------

    def _start_watch(self, now: float, course: Course | None = None) -> None:
        """The request has limits of its own: from its model, or from its caller; or a ``course``."""
        plane = self._plane
        target = self._target
        times = target.times
        if target.reports:
            self._plain = False
            self._sent_head = asking(self._sent_head)
        if self._head.timeout_ms < 0 and not target.hedges and course is None:
            calm = self._calm
            if calm is None or calm.times is not times:
                self._calm = calm = Watch(times, -1, self._started, calm=True)
            else:
                calm.ends_at = self._started + times.total_s
            self._watch = calm
            if calm.ends_at < self.deadline:
                self.deadline = calm.ends_at
            return
        self._plain = False
        self._watch = watch = Watch(times, self._head.timeout_ms, self._started)
        watch.course = course
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

    def _end_hedge(self, watch: Watch, result: AttemptResult) -> None:
        """Cancel a second try, and settle it where it still runs beside the first."""
        hedge = watch.hedge
        if hedge is not None:
            watch.hedge = None
            hedge.cancel()
            if not hedge.promoted:
                self._plane.attempt_ended(hedge.attempt, result, self._plane.clock())

    def _outgoing(self, head: bytes, attempt: Attempt | None, now: float) -> bytes:
        """Return a head as it goes to an attempt's endpoint: what is left of the caller's time, perhaps the version."""
        watch = self._watch
        if watch is None:
            return head
        course = watch.course
        if course is not None and course.names_version and attempt is not None:
            head = with_version(head, attempt.candidate)
        return head[:-2] + watch.told_field(now) if watch.told else head

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

    def _end_in_time(self, watch: Watch, now: float) -> None:
        """The request's time is over: drop the worker's connection; an answer that had begun is cut."""
        asked = self._upstream
        # how long it was waited for says something of a worker that had all of the request, and whose answer was read
        result = AttemptResult.CANCELLED
        if self.request_done and not self._write_paused:
            result = AttemptResult.OUTRUN
            if self._phase == WAITING and asked is not None and not asked.looking and not unsent(asked.transport):
                result = AttemptResult.OVERDUE
        broken = self._drop_upstream()
        self._end_hedge(watch, AttemptResult.OUTRUN)
        self._settle(result, now)
        if self._phase == ANSWERING:
            self._cut(Outcome.DEADLINE_EXCEEDED, broken, watch.limit)
        else:
            self.end_unanswered(Outcome.DEADLINE_EXCEEDED, watch.limit)

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

    def _step_down(self, outcome: Outcome, detail: str, retry_after_s: float | None = None) -> bool:
        """A request is about to end with an answer of warmroute's own; True where a step below takes it instead.

        Ladders stand above: see ``degrading``.
        """
        return False

    def end_unanswered(self, outcome: Outcome, detail: str, retry_after_s: float | None = None) -> None:
        """No worker has an answer to the request: a step below takes it, or it ends with one of warmroute's own."""
        if not self._step_down(outcome, detail, retry_after_s):
            self._end_with(outcome, detail, retry_after_s)

    def _must_close(self) -> bool:
        """Return whether an answer of warmroute's own is the last on its connection."""
        head = self._head
        return self.last or not self.request_done or not head.keep_alive or self._plane.draining or head.minor == 0

    def _tell(self, answer: bytes, outcome: Outcome, now: float) -> None:
        """End the request with an answer that is here."""
        self._say(answer)
        self._plane.request_ended(self._target.row, counted_as(outcome, self._fault), now - self._started)
        self._next(now)

    def _end_with(
        self, outcome: Outcome, detail: str, retry_after_s: float | None = None, *, status: int = 0, code: str = ""
    ) -> None:
        """End the request with an answer of warmroute's own."""
        head = self._head
        now = self._plane.clock()
        self._close_after = close = OUTCOMES[outcome].close or self._must_close()
        answer = error_answer(
            self._target.surface,
            outcome,
            detail,
            request_id=self._request_id or head.request_id(),
            retry_after_s=retry_after_s,
            close=close,
            head_only=head.method == b"HEAD",
            status=status,
            code=code,
        )
        self._tell(answer, outcome, now)

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
        self._close_after = close = self._must_close()
        request_id = self._request_id or self._head.request_id()
        answer = own_answer(body, request_id=request_id, close=close, head_only=self.method == b"HEAD")
        self._tell(answer, Outcome.OK, now)

    def _next(self, now: float) -> None:
        """The request is over: close, or read the next one."""
        self._end_watch()
        self._seen = b""
        self._fault = ""
        self._scanner = None
        self._look = None
        self.active = False
        self._peer_full = False
        if self._close_after:  # and the caller was told so
            if self.request_done and not self._buffer:
                self._close()
            else:
                self._linger()
            return
        self._phase = IDLE
        self.deadline = now + min(self._plane.keep_alive_s, self.rest_s)
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
        plane.request_ended(self._target.row, counted_as(outcome, self._fault), plane.clock() - self._started)
        self._end_watch()
        self._phase = LINGERING
        self._buffer = b""
        self._seen = b""
        self._scanner = None
        self._look = None
        self.active = False
        self.deadline = plane.clock() + LINGER_S
        self._hang_up()

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
