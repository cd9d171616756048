"""How attempts and requests end, for the router and for the metrics page: what the plane stands on."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

from router.model import EndpointEjected
from router.outcomes import OUTCOME_INDEX, AttemptResult, Outcome
from sidecar.telemetry.page import (
    BUCKETS_S,
    ENDPOINT_EJECTIONS,
    ENDPOINT_HISTOGRAM,
    FIRST_BYTE_SUM,
    MODEL_FIRST_BYTE,
    MODEL_OUTCOMES,
    Page,
    Scalar,
    bucket,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.cluster import Cluster
    from router.endpoint import Candidate
    from router.model import Event
    from router.routes import Attempt
    from sidecar.faults.injector import Injector
    from sidecar.http1.admission import AdmissionPlane

_RESULT_INDEX: Final = {result: index for index, result in enumerate(AttemptResult)}
_SUM: Final = len(BUCKETS_S) + 1
_OK: Final = OUTCOME_INDEX[Outcome.OK]
_SUCCESS: Final = _RESULT_INDEX[AttemptResult.SUCCESS]
_REQUEST_SUM: Final = MODEL_OUTCOMES + _SUM
_ATTEMPT_SUM: Final = ENDPOINT_HISTOGRAM + _SUM
MOST_TAKEN: Final = 128
"""So many answers of one replica are counted at once, before the tick."""


class Settling:
    """Settles what ended with the router, counts it, and hands on what siblings should hear of because of it."""

    admission: AdmissionPlane  # told of each place that is free while somebody waits

    def __init__(self, cluster: Cluster, page: Page, share: Callable[[tuple[Event, ...]], None]) -> None:
        self.cluster = cluster
        self.page = page
        self.words = page.words
        self.share = share
        self.tunnels = 0  # open now
        self.faults: Injector | None = None  # None: nothing is injected, and nothing under way that was
        self._unsettled: list[tuple[Candidate, int, list[float]]] = []  # what ``settle`` is to count

    def answered(self, attempt: Attempt, row: int, now: float) -> None:
        """Settle the usual case: the first attempt brought a whole answer below 400. The request took as long as it.

        The router's choices know of it at once; it is counted with others at :meth:`settle`. ``row`` is that of the
        model in the metrics page.
        """
        candidate = attempt.candidate
        if candidate.guarded:
            self.attempt_ended(attempt, AttemptResult.SUCCESS, now)
            self.request_ended(row, Outcome.OK, now - attempt.started)
            return
        taken = candidate.taken.get(row)
        if not taken:
            taken = self._begin_to_count(candidate, row)
        taken.append(self.cluster.succeeded(attempt, now))
        if len(taken) >= MOST_TAKEN:
            self.settle(now)

    def _begin_to_count(self, candidate: Candidate, row: int) -> list[float]:
        taken: list[float] = []
        if self.admission.waiting:  # who waits is told of each answer: it is not kept, so that the next comes here too
            self.admission.released(candidate.endpoint)
        else:
            taken = candidate.taken.setdefault(row, taken)
        self._unsettled.append((candidate, row, taken))
        return taken

    def settle(self, now: float) -> None:
        """Count what was answered since the last call: metrics, quantiles, breakers. Each tick, and when it is much.

        Counting many at once costs a third of counting each.
        """
        words = self.words
        for candidate, row, taken in self._unsettled:
            endpoint_row: int = candidate.endpoint.shell.row
            steps = Counter([bisect_left(BUCKETS_S, seconds) for seconds in taken])
            microseconds = int(sum(taken) * 1e6)
            number = len(taken)
            for at in (row + MODEL_OUTCOMES, endpoint_row + ENDPOINT_HISTOGRAM):
                for step, count in steps.items():
                    words[at + step] += count
                words[at + _SUM] += microseconds
            words[row + _OK] += number
            words[endpoint_row + _SUCCESS] += number
            shared = self.cluster.learn(candidate, taken, now)
            taken.clear()
            if shared:
                words[endpoint_row + ENDPOINT_EJECTIONS] += len(shared)
                self.share(shared)
        self._unsettled.clear()

    def attempt_ended(
        self,
        attempt: Attempt,
        result: AttemptResult,
        now: float,
        retry_after_s: float | None = None,
        passed_on_s: float = 0.0,
    ) -> None:
        """Settle one attempt with the router and the metrics; one of the background is counted as such and no more.

        ``passed_on_s``: so much of it, at its end, is no latency: a stream that was passed on as it came.
        """
        if self.admission.waiting:
            self.admission.released(attempt.endpoint)
        if attempt.background:
            self.count(Scalar.BACKGROUND_TOTAL)
            self.cluster.done(attempt, result, now)
            return
        if self._unsettled:  # what went well counts before what did not
            self.settle(now)
        if self.faults is not None:
            self.faults.ended(attempt, result)
        words = self.words
        row = attempt.endpoint.shell.row
        words[row + _RESULT_INDEX[result]] += 1
        seconds = now - attempt.started
        words[row + ENDPOINT_HISTOGRAM + bucket(seconds)] += 1
        words[row + _ATTEMPT_SUM] += int(seconds * 1e6)
        attempt.started += passed_on_s
        shared = self.cluster.done(attempt, result, now, retry_after_s)
        if shared:
            self._tell(shared, row)

    def answer_began(self, attempt: Attempt, result: AttemptResult, now: float, *, timed: bool) -> None:
        """The answer to an attempt that has ``permits`` begins: the router judges by that what it can.

        ``timed``: its latency is that of its first byte.
        """
        if self._unsettled:
            self.settle(now)
        shared = self.cluster.answer_began(attempt, result, now, timed=timed)
        if shared:
            self._tell(shared, attempt.endpoint.shell.row)
            self.admission.changed()

    def _tell(self, shared: tuple[Event, ...], row: int) -> None:
        self.words[row + ENDPOINT_EJECTIONS] += sum(isinstance(event, EndpointEjected) for event in shared)
        self.share(shared)

    def tunnel_began(self, attempt: Attempt, now: float) -> None:
        """An attempt became a tunnel: it stays in flight."""
        self.count(Scalar.TUNNELS_TOTAL)
        self.tunnels += 1
        shared = self.cluster.opened(attempt, now)
        if shared:
            self.share(shared)

    def tunnel_ended(self, attempt: Attempt, result: AttemptResult, opened_s: float) -> None:
        """Release it. It counts as having taken as long as it took to open."""
        self.tunnels -= 1
        words = self.words
        row = attempt.endpoint.shell.row
        words[row + _RESULT_INDEX[result]] += 1
        words[row + ENDPOINT_HISTOGRAM + bucket(opened_s)] += 1
        words[row + _ATTEMPT_SUM] += int(opened_s * 1e6)
        self.cluster.closed(attempt)
        if self.admission.waiting:
            self.admission.released(attempt.endpoint)

    def request_ended(self, row: int, outcome: Outcome, seconds: float) -> None:
        """Count one request."""
        words = self.words
        words[row + OUTCOME_INDEX[outcome]] += 1
        words[row + MODEL_OUTCOMES + bucket(seconds)] += 1
        words[row + _REQUEST_SUM] += int(seconds * 1e6)

    def first_byte(self, row: int, seconds: float) -> None:
        """Count how long a request waited for the head of an answer that came in pieces."""
        words = self.words
        words[row + MODEL_FIRST_BYTE + bucket(seconds)] += 1
        words[row + FIRST_BYTE_SUM] += int(seconds * 1e6)

    def count(self, member: Scalar, by: int = 1) -> None:
        """Add to a counter of this process."""
        self.words[self.page.scalar(member)] += by

    def gauge(self, member: Scalar, value: int) -> None:
        """Set a gauge of this process."""
        self.words[self.page.scalar(member)] = value
