"""A call that goes down its model's ladder where it cannot be answered (``sidecar.http1.descending``).

Another model is asked only where asking twice is allowed; what is kept is told as it was, of unary calls alone; and
while a route is degraded nothing is kept. A route over gRPC has a ladder of its own: what is dead there degrades
nothing over HTTP, nor the other way round. The answers that are kept, and their bounds, are one for both.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING

from router.ladder import LadderStep
from router.matching import Surface, is_inference_call
from router.outcomes import OUTCOME_OF, OUTCOMES, AttemptResult, Outcome
from sidecar.cache.asking import Asked as AskedOfCache
from sidecar.cache.calls import asked_of_call, is_one_message, kept_call, kept_call_elsewhere, told_call
from sidecar.cache.terms import Refused
from sidecar.grpc.matching import PROTOCOL
from sidecar.grpc.phases import ANSWERING, WAITING
from sidecar.grpc.relay import CallRelay
from sidecar.grpc.renaming import renamed_message
from sidecar.grpc.statuses import Status, judge, judge_http
from sidecar.http1.descending import Descent
from sidecar.http1.versions import fallback_route
from sidecar.telemetry.page import LadderWord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.retry import Failed
    from router.routes import Attempt, Route
    from sidecar.cache.keeping import Kept
    from sidecar.grpc.course import CallCourse
    from sidecar.grpc.heads import AnswerHead
    from sidecar.http1.keys import KeySource
    from sidecar.http1.ladders import ModelLadder


class DegradingCall(CallRelay):
    """A call that may go down a ladder."""

    __slots__ = ()

    @abstractmethod
    def _dispatch(self, now: float, failed: Failed | None = None) -> None:
        """Choose a worker and send the call there."""

    @abstractmethod
    def _admit(self, now: float) -> None:
        """Dispatch the call, or have it wait where its model has too many in flight."""

    @abstractmethod
    def _key_from(self, source: KeySource | None) -> bytes | None:
        """Return the call's key, None where it has none or nothing goes by one."""

    @property
    def _descent(self) -> Descent | None:
        course = self._course
        return None if course is None else course.descent

    # --- down -------------------------------------------------------------------------------------------------------

    def _begin_on_ladder(self, model: ModelLadder, now: float) -> bool:
        """Begin with the step that answers now; True where that is a replica: then the call goes on as any.

        One that asks about the model, and is none for it, takes no part: nobody may tell it that all is well.
        """
        course, route = self._course, self._target.route
        if course is None or route is None or not is_inference_call(self.head.asked.path):
            return True
        course.descent = descent = Descent(self._plane.shared, model, self._target, f"{route.key} over {PROTOCOL}")
        return descent.begin(self, now, whole=self.request_done)

    def _end_unanswered(self, outcome: Outcome, detail: str, retry_after_s: float | None = None) -> None:
        """No worker has an answer to the call: a step below takes it, or it ends with a status of ours."""
        descent = self._descent
        if (
            descent is None
            or self.phase >= ANSWERING
            or descent.over
            or not descent.step_down(self, outcome, detail, retry_after_s, callers_own=not self._limit)
        ):
            self.fail(outcome, detail, retry_after_s=retry_after_s)

    def _delay_of_retry(self, attempt: Attempt, result: AttemptResult, now: float, tries: int) -> float | None:
        """Return as any request does, but where a step below answers at once instead."""
        descent = self._descent
        if descent is not None and not descent.retries(attempt, result, now):
            return None
        return super()._delay_of_retry(attempt, result, now, tries)

    # --- what the steps are (Descending) -----------------------------------------------------------------------------

    def tell_kept(self, now: float) -> bool:
        """Answer with what is kept, or wait for the second tier; False where there is nothing."""
        descent = self._descent
        if descent is None:
            return False
        keys = self._keys(descent, descent.versions())
        answer = descent.model.find(keys, now)
        if answer is None:
            return descent.ask_tier(self, keys, kept_call_elsewhere)
        self.tell(answer, now)
        return True

    def tell(self, answer: Kept, now: float) -> None:
        """Answer with this."""
        if self._descent is not None:
            self._descent.model.count(LadderWord.BY_CACHE)
        initial, data, trailers = told_call(answer, now, self._request_id)
        self._tell([*initial], data, [*trailers], Outcome.DEGRADED_CACHE)

    def tell_static(self, now: float) -> bool:
        """Answer with what is declared; False where that is for another method, or for HTTP."""
        static = None if self._descent is None else self._descent.model.static_call
        if static is None or static.method != self.head.asked.path:
            return False
        initial = [*static.fields, (b"x-request-id", self._request_id)]
        self._tell(initial, static.data, [(b"grpc-status", b"0")], Outcome.DEGRADED_STATIC)
        return True

    def may_ask(self) -> bool:
        """Return whether its own model may be asked: none began, or twice does no harm; and its request is known."""
        course = self._course
        if course is None or course.descent is None or not self._may_ask_any(course.descent):
            return False
        return not course.renamed or course.data is not None

    def _may_ask_any(self, descent: Descent) -> bool:
        route = descent.route
        if route is None or (descent.began and not route.policy.idempotent):
            return False
        return self._whole and self.phase == WAITING

    def ask_replicas(self, now: float) -> None:
        """Send the call to the replicas of its own model after all."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return
        if course.renamed and course.asked is not None and course.data is not None:
            self.head.asked = course.asked
            self._seen = list(course.data)
            self._seen_bytes = sum([len(data) for data in self._seen])
        descent.entry = b""
        self._target = descent.target
        self._quiet_since = now
        self._rearm(now)
        self._admit(now)

    def refuse(self, outcome: Outcome, detail: str, retry_after_s: float | None, *, began: bool) -> None:
        """End the call as one that nobody answered; where a worker may have begun with it, the end says so."""
        status = Status.UNAVAILABLE if began and not OUTCOMES[outcome].answered_here else None
        self.fail(outcome, detail, status=status, retry_after_s=retry_after_s)

    # --- another model ----------------------------------------------------------------------------------------------

    def fall_back(self, now: float) -> bool:
        """Send the call to the next fallback of its model that can be picked; False where there is none."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return False
        descent.fell = True
        if descent.late or not self._may_ask_any(descent):
            descent.unfit = True
            return False
        plane = self._plane
        shared = plane.shared
        asked = descent.target
        fallbacks = descent.model.fallbacks
        while descent.next_fallback < len(fallbacks):
            name, version = fallbacks[descent.next_fallback]
            descent.next_fallback += 1
            route = fallback_route(shared, name, version, now, PROTOCOL)
            if route is not None:
                route = self._within(route)
                descent.unfit = descent.unfit or route is None or route is asked.route
            if route is None or route is asked.route or not shared.cluster.route_is_routable(route, now):
                continue
            if not self._rename(course, descent, name.encode(), version.encode()):
                descent.unfit = True
                return False
            course.mirror = None
            self._target = target = shared.targets.plain(Surface.PLAIN, route)
            target.row = asked.row  # it is a call for the model that was asked
            self._quiet_since = now
            self._rearm(now)
            self._dispatch(now)
            return True
        return False

    def _within(self, route: Route) -> Route | None:
        """Return a route that the call can be picked for on: a shard's, where each answers for itself."""
        if not route.shards:
            return route
        plane = self._plane
        key = self._key_from(plane.shared.targets.plain(Surface.PLAIN, route).key_source)
        return None if key is None else plane.shared.cluster.shard_route(route, key)

    def _rename(self, course: CallCourse, descent: Descent, name: bytes, version: bytes) -> bool:
        """Have the call name another model, in its first message and its metadata; False where that cannot be."""
        entry = name + b"@" + version if version else name
        if not course.renamed:
            course.asked = self.head.asked
            course.data = list(self._seen) if self.request_done else None
        if self._match is not None:
            data = renamed_message(b"".join(self._seen), self._match, name, version)
            if data is None:
                return False
            self._seen, self._seen_bytes = [data], len(data)
            if self._unpaid:  # what the caller sent is not what goes on: its window is given back here
                self.down.connection.credit(self.down, self._unpaid)
                self._unpaid = 0
        course.renamed = True
        asked = self.head.asked
        if asked.model:
            self.head.asked = changed = copy.copy(asked)
            changed.model = entry
            changed.forward = [
                (field[0], entry) if field[1] == asked.model and field[0] == self._connection.model_field else field
                for field in asked.forward
            ]
        descent.entry = entry
        return True

    # --- what a worker says -----------------------------------------------------------------------------------------

    def _set_aside(self, attempt: Attempt, head: AnswerHead, meant: AttemptResult | None, now: float) -> bool:
        """A worker failed or pushed back: drop that where a step below stands in for such an end, and has an answer.

        Otherwise what the worker says is better than anything that would be said instead.
        """
        descent = self._descent
        if descent is None or descent.over:
            return False
        result, outcome = self._judged(head, meant)
        if outcome not in descent.model.on:
            return False
        descent.began = descent.began or result is not AttemptResult.BUSY
        if not self._has_below(descent, now):
            return False
        self._plane.shared.attempt_ended(attempt, result, now, head.pushback_s)
        self._http = 0  # nothing of this answer counts for the next
        self._first_s = -1.0
        self._tries += 1
        self._end_unanswered(outcome, f"{attempt.endpoint.id}: status {head.grpc_status}")
        return True

    def _judged(self, head: AnswerHead | None, meant: AttemptResult | None) -> tuple[AttemptResult, Outcome]:
        """Return what an answer means for the worker, and for the call."""
        if (head is None or head.grpc_status < 0) and self._http != 200:
            return judge_http(self._http)
        if meant is not None:
            return meant, OUTCOME_OF[meant]
        if head is None:
            return judge(-1, pushed_back=False)
        return judge(head.grpc_status, pushed_back=head.pushback_s is not None)

    def _has_below(self, descent: Descent, now: float) -> bool:
        model = descent.model
        static = model.static_call
        if static is not None and static.method == self.head.asked.path:
            return True
        keys = self._keys(descent, descent.versions()) if model.answers is not None else Refused.PATH
        if model.find(keys, now, counted=False) is not None:
            return True
        if not self._may_ask_any(descent):
            return False
        cluster = self._plane.shared.cluster
        for name, version in model.fallbacks[descent.next_fallback :]:
            route = cluster.route(name, version, PROTOCOL)
            found = None if route is None else self._within(route)
            if found is not None and cluster.route_is_routable(found, now):
                return True
        return False

    # --- what is kept -----------------------------------------------------------------------------------------------

    def _keys(self, descent: Descent, versions: Sequence[str]) -> list[bytes] | Refused:
        """Return what answers of these versions to this call are kept under, or why it has no key."""
        course, terms, route = self._course, descent.model.terms, descent.route
        if course is None or terms is None or route is None:
            return Refused.PATH
        head = course.asked or self.head.asked
        identity: bytes = b""
        if terms.certificates:
            identity = self._connection.transport.get_extra_info("peer_identity", b"")
        trusted = self._connection.trusted
        asked = asked_of_call(head.path, head.forward, terms, trusted=trusted, identity=identity)
        if not isinstance(asked, AskedOfCache):
            return asked
        request = course.request
        if request is None:
            return Refused.BODY
        return asked.keys(route.model, versions, request) if is_one_message(request) else Refused.STREAM

    def _begins(self, head: AnswerHead, *, end: bool) -> AnswerHead:
        """An answer begins: one from a fallback says so, and a good one may be kept."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return head
        if descent.step is LadderStep.FALLBACK:
            told = copy.copy(head)
            entry = descent.entry
            told.forward = [*head.forward, (b"warmroute-degraded", b"fallback"), (b"warmroute-degraded-model", entry)]
            return told
        if not end and descent.model.terms is not None:
            why = self._why_not_kept(course, descent)
            if why is None:
                course.record(head, descent.model.terms.max_entry_bytes)
            else:
                descent.model.refuse(why)
        return head

    def _why_not_kept(self, course: CallCourse, descent: Descent) -> Refused | None:
        terms, shared = descent.model.terms, self._plane.shared
        if terms is None or self.head.asked.path not in terms.calls:
            return Refused.PATH
        if descent.model.degraded(descent.place) or shared.tight or shared.refusing:
            return Refused.DEGRADED
        attempt = self._attempt
        if shared.faults is not None and attempt is not None and shared.faults.spoils(attempt):
            return Refused.FAULT
        if self._http != 200:
            return Refused.STATUS
        return None if course.request is not None else Refused.BODY

    def _answered(self, attempt: Attempt, head: AnswerHead | None, meant: AttemptResult | None, now: float) -> None:
        """A worker's answer is whole: the ladder learns of it, and a good one is kept."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return
        result, outcome = self._judged(head, meant)
        good = result is AttemptResult.SUCCESS
        counted = outcome not in (Outcome.UPSTREAM_5XX, Outcome.UPSTREAM_BUSY)
        status = f"status {self._http}" if head is None else f"status {head.grpc_status}"
        descent.answered(now, status, good=good, counted=counted)
        if descent.step is LadderStep.REPLICA and descent.model.terms is not None:
            version = attempt.candidate.version
            if good:
                descent.model.last_versions[descent.place] = version
            self._keep(course, descent, version, head, now)

    def _keep(
        self, course: CallCourse, descent: Descent, version: str, trailers: AnswerHead | None, now: float
    ) -> None:
        initial, answer = course.initial, course.answer
        course.initial = course.answer = None
        model, terms = descent.model, descent.model.terms
        if initial is None or terms is None:
            return
        if answer is None:
            model.refuse(Refused.SIZE)
            return
        keys = self._keys(descent, (version,))
        if isinstance(keys, Refused):
            model.refuse(keys)
        elif trailers is None:
            model.refuse(Refused.STATUS)
        elif model.renews(keys[0], now):
            kept = kept_call(initial.forward, b"".join(answer), trailers.forward, now, terms)
            model.keep(keys[0], kept, self._plane.shared.ladders)
