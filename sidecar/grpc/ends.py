"""Every way that a call can end, and the times that end it.

A call ends with the worker's own status, with one of warmroute's, or with a reset stream; never with a false success.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, Final

from router.outcomes import OUTCOME_OF, OUTCOMES, AttemptResult, Outcome
from router.retry import Failed
from sidecar.faults.injector import counted_as
from sidecar.grpc.matching import ONE_MESSAGE
from sidecar.grpc.phases import ANSWERING, ENDING, GATHERING, MATCHING, OVER, WAITING
from sidecar.grpc.statuses import Status, encode_message, message_of, status_of
from sidecar.http1.lines import Ticket
from sidecar.http1.retrying import retry_after
from sidecar.http1.transports import unsent
from sidecar.http2.frames import Code, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.routes import Attempt
    from sidecar.faults.injector import Struck
    from sidecar.grpc.course import CallCourse, Needs
    from sidecar.grpc.downstream import CallerConnection
    from sidecar.grpc.heads import CallHead
    from sidecar.grpc.plane import GrpcPlane
    from sidecar.grpc.pool import WorkerPool
    from sidecar.http1.caller import Timer
    from sidecar.http1.gates import Permit
    from sidecar.http1.targets import Target
    from sidecar.http2.hpack import Field
    from sidecar.http2.stream import Stream

SOON_S: Final = 0.5
"""A deadline this near gets a timer of its own; the sweep sees to the others until then."""


class CallEnds(ABC):
    """The state of one call. ``down`` is its stream on the caller's connection, ``up`` the one on a worker's."""

    __slots__ = (
        "_attempt",
        "_connection",
        "_course",
        "_deadline",
        "_fault",
        "_first_s",
        "_harm",
        "_heard",
        "_http",
        "_left",
        "_length",
        "_limit",
        "_match",
        "_own",
        "_partial",
        "_permit",
        "_plane",
        "_quiet_since",
        "_request_id",
        "_resends",
        "_seen",
        "_seen_bytes",
        "_split",
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
        self._course: CallCourse | None = None  # where it needs more than a pick
        self._split: Needs | None = None  # what divides it and others over versions
        self._upstream: WorkerPool | None = None
        self._attempt: Attempt | None = None
        self._match: tuple[int, int] | None = None
        self._own = False  # warmroute answers it itself
        self._started = now
        self._quiet_since = now
        self._deadline = inf if head.timeout_s is None else now + head.timeout_s
        self._limit = ""  # what is over at the deadline, where it is not the caller's own
        self._timer: Timer | None = None
        self._permit: Permit | None = None  # where the model may have so many in flight
        self._tries = 0
        self._resends = 0
        self._seen: list[bytes] = []  # of the request, to be sent or sent again
        self._seen_bytes = 0
        self._unpaid = 0  # of that, what the caller was not credited for yet
        self._whole = True  # all that was sent is in ``_seen``
        self._heard = 0  # how many bytes had come from the worker as the call was sent
        self._first_s = -1.0  # how long the worker took to begin, where the request went on meanwhile
        self._http = 0  # the answer's HTTP status
        self._fault = ""  # the faults that struck the attempt in hand, or the last one
        self._harm: Struck | None = None  # what they did to it
        self._left = -1  # of the message that is coming, -1: none has come yet
        self._length = 0  # of that message, where it came in pieces,
        self._partial = b""  # or what there is of its head
        self._request_id = b""
        self._trace = b""

    # --- what the call itself says ------------------------------------------------------------------------------------

    @abstractmethod
    def _retry(self, failed: Failed) -> None:
        """Send it once more, elsewhere."""

    @abstractmethod
    def _end_unanswered(self, outcome: Outcome, detail: str, retry_after_s: float | None = None) -> None:
        """No worker has an answer to the call: a step below takes it, or it ends with a status of ours."""

    @abstractmethod
    def _withdraw(self) -> None:
        """Wait in no pool's queue any longer."""

    # --- an answer's end ----------------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, now: float) -> None:
        """The last of the answer was handed to the connection: count the request, now or when it has gone out."""
        outcome = counted_as(outcome, self._fault)
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
        if self._permit is not None:
            self._permit.give_back()
        if self._course is not None:
            self._plane.gathered_bytes -= self._course.gathered
            self._course.close()

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

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        """The attempt broke: try again where that is safe, or tell the caller."""
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
        delay_s = self._delay_of_retry(attempt, result, now, self._tries)
        if delay_s is None:
            self._end_unanswered(OUTCOME_OF[result], detail)
        else:
            failed = Failed(attempt.endpoint, OUTCOME_OF[result], detail)
            self._timer_for(delay_s, lambda: self._retry(failed))

    def _delay_of_retry(self, attempt: Attempt, result: AttemptResult, now: float, tries: int) -> float | None:
        """Return after how long the call is tried again, None where it is not; that is counted."""
        return retry_after(
            self._plane.shared,
            attempt,
            result,
            first=self.head.asked.attempt,
            replayable=self._whole,
            tries=tries,
            now=now,
            left_s=self._deadline - now,
        )

    def fail(
        self, outcome: Outcome, detail: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        """End the call with a status of warmroute's own: trailers alone, or behind what was sent of the answer."""
        spec = OUTCOMES[outcome]
        said = message_of(outcome)
        text = f"{said}: {detail}" if detail else said
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

    def _tell(self, initial: list[Field], data: bytes, trailers: list[Field], outcome: Outcome) -> None:
        """Answer with what is here: initial metadata, messages, trailers."""
        self.down.source = None
        self._connection.send_headers(self.down, initial, end=False)
        self.phase = ANSWERING
        self._connection.send_data(self.down, data, end=False)
        self._conclude(trailers, outcome)

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
        self._withdraw()

    # --- time --------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Look at the call's times, four times a second."""
        phase = self.phase
        target = self._target
        times = target.times
        if now >= self._deadline and phase < ENDING:
            self._too_late()
        elif target.watched and self._attempt is not None and now - self._attempt.started >= times.try_s:
            self._suspect()
            if self._awaits_caller():
                self._leave_caller(Outcome.UPSTREAM_TIMEOUT, times.try_text)
            else:
                self._drop_upstream(Code.CANCEL)
                self.attempt_failed(AttemptResult.TRY_TIMEOUT, times.try_text)
        elif phase == MATCHING:  # as a whole, however it dribbles
            idle_s = self._plane.shared.timeouts.client_body_idle_s
            if now - self._quiet_since >= idle_s:
                self.fail(Outcome.CLIENT_TIMEOUT, f"no first message in {idle_s} s")
        elif phase == GATHERING and not self.active:
            idle_s = self._plane.shared.timeouts.client_body_idle_s
            if now - self._quiet_since >= idle_s:
                self.fail(Outcome.CLIENT_TIMEOUT, f"no more of its message in {idle_s} s")
        elif isinstance(self._timer, Ticket):
            pass  # it waits in a queue, which has a time of its own
        elif self.active:
            self.active = False
            self._quiet_since = now
        elif phase == WAITING and self.request_done and self._deadline == inf:
            if now - self._quiet_since >= times.response_head_s:
                self._suspect()
                never_sent = self.wanted  # all of the worker's connections were full
                if not never_sent and self._awaits_caller():
                    self._leave_caller(Outcome.UPSTREAM_TIMEOUT, f"no answer in {times.response_head_s} s")
                    return
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

    def _awaits_caller(self) -> bool:
        """Return whether the worker may be waiting for the caller: for the rest of the request, or any message at all.

        However long that lasts, it says nothing of the worker: else a caller could have any worker put out of use.
        """
        up = self.up
        return up is not None and up.waiting is None and (not self.request_done or self._left < 0)

    def _leave_caller(self, outcome: Outcome, detail: str) -> None:
        """A time is over as the caller was waited for. ``outcome``: what ends a call that owed nothing for certain."""
        self._drop_upstream(Code.CANCEL)
        attempt = self._attempt
        self._settle(AttemptResult.CANCELLED, self._plane.clock())
        if self._left < 0:
            self.fail(Outcome.CLIENT_TIMEOUT, f"{detail}: the caller sent no message")
        elif self._left or self._partial or self.head.asked.path in ONE_MESSAGE:
            self.fail(Outcome.CLIENT_TIMEOUT, f"{detail}: the request did not end")
        else:
            self.fail(outcome, detail if attempt is None else f"{attempt.endpoint.id}: {detail}")

    def _worker_has_all(self) -> bool:
        """Return whether the worker's kernel took all of the request, and nothing of an answer came."""
        up = self.up
        if up is None or self.wanted or self.phase != WAITING or not self.request_done or up.waiting is not None:
            return False
        if self._left < 0:
            return False
        return not unsent(up.connection.transport)

    def _stood_still(self, now: float) -> None:
        """Nothing moved for ``stream_idle_s``: because of the caller where bytes wait for it, else of the worker."""
        if self.down.waiting is None:
            detail = f"nothing moved for {self._target.times.stream_idle_s} s"
            if self._awaits_caller():
                self._suspect()
                self._leave_caller(Outcome.STREAM_IDLE, detail)
            else:
                self._drop_upstream(Code.CANCEL)
                self.attempt_failed(AttemptResult.STREAM_IDLE, detail)
            return
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.CANCELLED, now)
        self._plane.ending.pop(self, None)
        self._connection.reset(self.down, Code.CANCEL)
        self._plane.shared.request_ended(self._target.row, Outcome.CLIENT_TIMEOUT, now - self._started)
        self._over()

    def _timer_for(self, delay_s: float, then: Callable[[], None]) -> None:
        """Wait, but not beyond the deadline."""
        if self._timer is not None:
            self._timer.cancel()
        loop = self._plane.shared.loop
        if self._plane.clock() + delay_s >= self._deadline:
            self._set_timer(self._plane.clock())
        else:
            self._timer = loop.call_later(delay_s, self._run, then)

    def _run(self, then: Callable[[], None]) -> None:
        self._timer = None
        try:
            then()
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
        overdue = self._worker_has_all()
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.OVERDUE if overdue else AttemptResult.OUTRUN, now)
        limit = self._limit or f"grpc-timeout {self.head.timeout.decode()}"
        if self.phase == WAITING:
            self._end_unanswered(Outcome.DEADLINE_EXCEEDED, limit)
        else:
            self.fail(Outcome.DEADLINE_EXCEEDED, limit)
