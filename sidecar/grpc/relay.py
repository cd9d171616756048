"""What goes both ways in a call: the request to a worker, its answer to the caller. How it ends: ``ends``."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from router.outcomes import OUTCOME_OF, AttemptResult, Outcome
from router.policy import LatencyOf
from sidecar.grpc.ends import CallEnds
from sidecar.grpc.matching import MESSAGE_HEAD, ONE_MESSAGE
from sidecar.grpc.phases import ANSWERING, ENDING, GATHERING, MATCHING, WAITING
from sidecar.grpc.statuses import judge, judge_http
from sidecar.http1.reports import take_metadata
from sidecar.http1.retrying import not_ready_there
from sidecar.http2.frames import Code
from sidecar.http2.sending import keep
from sidecar.upstreams.orca import ASK_FIELD

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.routes import Attempt
    from sidecar.grpc.course import CallCourse
    from sidecar.grpc.heads import AnswerHead

AT_ONCE_S: Final = 0.001
"""A request that was whole so soon takes as long as its attempt, for the metrics."""

NO_MESSAGE: Final = "no message, and its method takes one"
MORE_THAN_ONE: Final = "more than one message, and its method takes one"


class CallRelay(CallEnds):
    """Passes on what comes from both sides, and keeps what could have to be sent again."""

    __slots__ = ()

    @abstractmethod
    def _gather(self, size: int) -> None:
        """Look whether what there is of the request is enough now to go on; ``size`` bytes of it just came."""

    @abstractmethod
    def _sent_whole(self, course: CallCourse) -> None:
        """The call was sent, and all of it."""

    @abstractmethod
    def _set_aside(self, attempt: Attempt, head: AnswerHead, meant: AttemptResult | None, now: float) -> bool:
        """Drop an answer that is a status alone, where a step below has a better one; True where it was dropped."""

    @abstractmethod
    def _begins(self, head: AnswerHead, *, end: bool) -> AnswerHead:
        """The answer to a call with a course begins; return its head as it is passed on."""

    @abstractmethod
    def _answered(self, attempt: Attempt, head: AnswerHead | None, meant: AttemptResult | None, now: float) -> None:
        """The answer to a call with a course is whole."""

    @abstractmethod
    def _matched(self, data: bytes) -> None:
        """Look at what there is of the first message, and go on where it says enough, or never will."""

    # --- the request --------------------------------------------------------------------------------------------------

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
        left = self._left
        if (
            left <= 0 and not self._partial and size >= MESSAGE_HEAD
            and int.from_bytes(data[1:5], "big") + MESSAGE_HEAD == size
        ):  # fmt: skip
            if size - MESSAGE_HEAD > self._plane.limits.body_bytes:
                self._too_large(size - MESSAGE_HEAD)
                return
            if left == 0 and self.head.asked.path in ONE_MESSAGE:
                self._end_for(Outcome.BAD_REQUEST, MORE_THAN_ONE)
                return
            self._left = 0
        elif not self._scan(data) or (end and not self._ended_well()):
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
            if end and self._course is not None:
                self._sent_whole(self._course)
            return
        if phase == MATCHING and size and not self._seen_bytes:
            self._quiet_since = self._plane.clock()
        keep(self._seen, data)
        self._seen_bytes += size
        if phase == GATHERING:
            self._gather(size)
            return
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
            if attempt.permits:
                self._plane.shared.cluster.reclaim(attempt, now)

    def _scan(self, data: bytes) -> bool:
        """Follow the messages' heads; False where one is over the limit or too many (the call has ended then)."""
        position, size = 0, len(data)
        while position < size:
            if self._left == 0 and self.head.asked.path in ONE_MESSAGE:
                self._end_for(Outcome.BAD_REQUEST, MORE_THAN_ONE)
                return False
            if self._left > 0:
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
            self._left = self._length = int.from_bytes(head[1:5], "big")
            if self._left > self._plane.limits.body_bytes:
                self._too_large(self._left)
                return False
        return True

    def _ended_well(self) -> bool:
        """Return whether the request ended behind a whole message, or may have none; else the call has ended.

        Such a one is not passed on: some servers (gRPC's own for asyncio) wait for the rest for ever.
        """
        if self._partial:
            why = f"the message was cut: {len(self._partial)} of {MESSAGE_HEAD} bytes of its head"
        elif self._left > 0:
            why = f"the message was cut: {self._length - self._left} of {self._length} bytes"
        elif self._left < 0 and self.head.asked.path in ONE_MESSAGE:
            why = NO_MESSAGE
        else:
            return True
        self._end_for(Outcome.BAD_REQUEST, why)
        return False

    def _too_large(self, size: int) -> None:
        self._end_for(Outcome.BODY_TOO_LARGE, f"a message of {size} bytes, at most {self._plane.limits.body_bytes}")

    def _end_for(self, outcome: Outcome, why: str) -> None:
        """End a call for what its caller sent, which says nothing of the worker."""
        now = self._plane.clock()
        if self.phase < ANSWERING:
            self._connection.given_up(now - self._started)
        self._drop_upstream(Code.CANCEL)
        self._settle(AttemptResult.CANCELLED, now)
        self.fail(outcome, why)

    def _keep_no_more(self) -> None:
        """Drop what was kept of the request where it is too much to be sent again."""
        if self._seen_bytes > self._plane.shared.replay_bytes:
            self._whole = False
            self._seen = []
            self._seen_bytes = 0

    # --- the answer ---------------------------------------------------------------------------------------------------

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
        if self._course is not None and self.phase == WAITING:
            head = self._begins(head, end=end)
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
        attempt = self._attempt
        if attempt is not None and attempt.permits and self._http == 200:
            timed = self._first_s >= 0
            self._plane.shared.answer_began(attempt, AttemptResult.SUCCESS, self._plane.clock(), timed=timed)
        if self._course is not None:
            self._course.add(data)
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
                meant = shared.recogniser.grpc(status, head.message, attempt.candidate.model)
            if meant is AttemptResult.NOT_READY and self.phase == WAITING and self._not_ready_there(attempt, head, now):
                return
            if self._course is not None and self.phase == WAITING and self._set_aside(attempt, head, meant, now):
                return
            if self._target.reports:
                self._learn_load(head, attempt.endpoint)
            if self.phase == WAITING:
                connection.send_answer_end(down, head, self._request_id)
            else:
                connection.send_headers(down, head.forward, end=True)
        if self._course is not None:
            self._answered(attempt, head, meant, now)
        at_once = not self._fault and 0.0 <= attempt.started - self._started < AT_ONCE_S
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
        delay_s = self._delay_of_retry(attempt, AttemptResult.NOT_READY, now, self._tries + 1)
        if delay_s is None:
            return False
        self._plane.shared.attempt_ended(attempt, AttemptResult.NOT_READY, now, head.pushback_s)
        self._http = 0  # nothing of this answer counts for the next
        self._first_s = -1.0
        self._tries += 1
        self._timer_for(delay_s, lambda: self._retry(not_ready_there(attempt)))
        return True

    def _learn_load(self, head: AnswerHead, endpoint: Endpoint) -> None:
        """Learn what the worker says of its load; a caller gets it who asked for it."""
        left = take_metadata(self._plane.shared, endpoint, head.forward)
        if not any(field[0] == ASK_FIELD for field in self.head.asked.forward):
            head.forward = left
