"""A caller's connection whose requests go down their model's ladder where they cannot be answered (``router.ladder``).

Each way down is taken before a byte of an answer went downstream, and ends the request exactly once. Another model is
asked only where asking twice is allowed; what is kept is told as it was; and while a route is degraded nothing is kept.
Which step comes when: ``descending``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.ladder import LadderStep
from router.matching import Surface, asks_otherwise
from router.outcomes import OUTCOMES, AttemptResult, Outcome
from sidecar.cache.asking import Asked, asked_of
from sidecar.cache.keeping import DEGRADED, judge, kept, kept_elsewhere
from sidecar.cache.terms import Refused
from sidecar.http1.caller import ANSWERING
from sidecar.http1.descending import Descent
from sidecar.http1.exchange import SAFE_METHODS
from sidecar.http1.forwarding import numbered
from sidecar.http1.head import CHUNKED, UNTIL_CLOSE
from sidecar.http1.hedging import HedgingConnection
from sidecar.http1.keying import within
from sidecar.http1.recorder import Recorder
from sidecar.http1.renaming import reframed, renamed
from sidecar.http1.special import SpecialConnection, without_chunks
from sidecar.http1.versions import fallback_route
from sidecar.telemetry.page import LadderWord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.routes import Attempt
    from sidecar.cache.keeping import Kept
    from sidecar.http1.head import ResponseHead
    from sidecar.http1.ladders import ModelLadder
    from sidecar.http1.plane import Plane
    from sidecar.http1.steps import Course
    from sidecar.http1.targets import Target

_CHUNK_FRAMING: Final = 4
"""Chunks may take so many times what they carry before an answer is not worth keeping what came of it."""


class RequestDescent(Descent):
    """What there is to know of one in HTTP/1.1.

    ``key`` and ``names_version`` are what its course had for its own model; ``head`` is its head as its own model would
    be asked, once it goes to another, and ``reframed``: with its whole body, without chunks.
    """

    __slots__ = ("head", "key", "names_version", "recorder", "reframed")

    def __init__(self, plane: Plane, model: ModelLadder, target: Target, place: str, course: Course) -> None:
        super().__init__(plane, model, target, place)
        self.key: Final = course.key
        self.names_version: Final = course.names_version
        self.head = b""
        self.reframed = False
        self.recorder: Recorder | None = None


class DegradingConnection(SpecialConnection):
    """A caller's connection whose requests may go down a ladder."""

    __slots__ = ()

    @property
    def _descent(self) -> RequestDescent | None:
        """How far down its model's ladder the request in hand has come, None where that has none."""
        course = self._course
        return None if course is None else course.descent

    # --- down -------------------------------------------------------------------------------------------------------

    def begin_on_ladder(self, course: Course, model: ModelLadder, now: float) -> bool:
        """Begin with the step that answers now; True where that is a replica: then the request goes on as any.

        One that asks about the model or sets it up, and is none for it, takes no part: nobody may tell it that all is
        well, or have another model set up.
        """
        target = self._target
        if target.route is None or self._asks_about(model, target):
            return True
        course.descent = descent = RequestDescent(self._plane, model, target, target.route.key, course)
        course.hears.append(self)
        return descent.begin(self, now, whole=self.request_done)

    def _asks_about(self, model: ModelLadder, target: Target) -> bool:
        """Return whether a request asks about its model only (readiness, metadata), or sets it up.

        The former is one in a safe method, but for a GET whose answers are kept by configuration.
        """
        if self.method not in SAFE_METHODS:
            return asks_otherwise(self._head.target)
        terms = model.terms
        if terms is None or target.surface is Surface.V2 or self._head.method not in terms.methods:
            return True
        return not terms.takes_path(self._head.target.partition(b"?")[0])

    def _step_down(self, outcome: Outcome, detail: str, retry_after_s: float | None = None) -> bool:
        """Have a step below answer; False where the request has none, or this end is not one that they stand in for."""
        watch, course, descent = self._watch, self._course, self._descent
        if watch is None or course is None or descent is None or course.over or self._phase >= ANSWERING:
            return False
        return descent.step_down(self, outcome, detail, retry_after_s, callers_own=watch.callers_own)

    def _delay_of_retry(self, attempt: Attempt, result: AttemptResult, now: float, tries: int) -> float | None:
        """Return as any request does, but where a step below answers at once instead."""
        descent = self._descent
        if descent is not None and not descent.retries(attempt, result, now):
            return None
        return super()._delay_of_retry(attempt, result, now, tries)

    # --- what the steps are (Descending) -----------------------------------------------------------------------------

    def tell_kept(self, now: float) -> bool:
        """Answer with what is kept, or wait for the second tier; False where there is nothing."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return False
        keys = self._keys(course, descent, descent.versions())
        answer = descent.model.find(keys, now)
        if answer is None:
            return descent.ask_tier(self, keys, kept_elsewhere)
        self.tell(answer, now)
        return True

    def tell(self, answer: Kept, now: float) -> None:
        """Answer with this."""
        request_id = self._request_id or self._head.request_id()
        self._close_after = close = self._must_close()
        if self._descent is not None:
            self._descent.model.count(LadderWord.BY_CACHE)
        self._tell(answer.tell(now, request_id, close=close), Outcome.DEGRADED_CACHE, now)

    def tell_static(self, now: float) -> bool:
        """Answer with what is declared; False where that is nothing."""
        static = None if self._descent is None else self._descent.model.static
        if static is None:
            return False
        request_id = self._request_id or self._head.request_id()
        self._close_after = close = self._must_close()
        answer = static.tell(request_id, close=close, head_only=self.method == b"HEAD")
        self._tell(answer, Outcome.DEGRADED_STATIC, now)
        return True

    def may_ask(self) -> bool:
        """Return whether another worker may be asked: none began, or twice does no harm; and the body is here."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return False
        route = descent.route
        if route is None or (descent.began and not route.policy.idempotent):
            return False
        return self._whole or (course.body is not None and self.request_done)

    def ask_replicas(self, now: float) -> None:
        """Send the request to the replicas of its own model after all."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return
        if descent.head:
            self._sent_head = descent.head
        if descent.reframed and course.body is not None:
            self._seen = course.body
        course.key = descent.key
        course.names_version = descent.names_version
        self._target = descent.target
        self._go_through(course, now)

    def refuse(self, outcome: Outcome, detail: str, retry_after_s: float | None, *, began: bool) -> None:
        """End the request as one that nobody answered; where a worker may have begun with it, the end says so."""
        status = 502 if began and not OUTCOMES[outcome].answered_here else 0
        self._end_with(outcome, detail, retry_after_s, status=status)

    # --- another model ----------------------------------------------------------------------------------------------

    def fall_back(self, now: float) -> bool:
        """Send the request to the next fallback that can be picked; False where there is none, or it may not be."""
        course, descent = self._course, self._descent
        if course is None or descent is None:
            return False
        model = descent.model
        descent.fell = True
        if descent.late or not self.may_ask():
            descent.unfit = True
            return False
        plane = self._plane
        asked = descent.target
        while descent.next_fallback < len(model.fallbacks):
            name, version = model.fallbacks[descent.next_fallback]
            descent.next_fallback += 1
            route = fallback_route(plane, name, version, now)
            if route is not None:
                route = within(plane.cluster, self._head, self._body_of(course), route)
                descent.unfit = descent.unfit or route is None or route is asked.route
            if route is None or route is asked.route or not plane.cluster.route_is_routable(route, now):
                continue
            if not self._rename(course, descent, name, version):
                descent.unfit = True
                return False
            self._target = target = plane.targets.plain(asked.surface, route)
            target.row = asked.row  # it is a request for the model that was asked
            source = target.key_source
            course.key = None if source is None else source.find(self._head, self._body_of(course))
            descent.entry = f"{name}@{version}".encode() if version else name.encode()
            self._plain = False
            course.mirror = None
            course.names_version = asked.surface is Surface.V2 and not version and route.mixed > 0
            if self._watch is not None:
                self._watch.stop_hedging()
            self._dispatch_later(route, None, now)
            return True
        return False

    def _body_of(self, course: Course) -> bytes | None:
        """Return what the request's body carries, None where it is not all here."""
        if course.body is not None:
            return course.body
        if not self.request_done or not self._whole:
            return None
        return self._seen if self._head.length >= 0 else without_chunks(self._seen)

    def _rename(self, course: Course, descent: RequestDescent, name: str, version: str) -> bool:
        """Make the request one to another model; False where that cannot be."""
        if not descent.head:
            descent.head = self._sent_head
        body = course.body if self.request_done else None
        surface = descent.target.surface
        if not descent.reframed and (not self._whole or (surface is Surface.OPENAI and self.method == b"POST")):
            if body is None:
                return False
            descent.head = reframed(descent.head, len(body))
            descent.reframed = True
        found = renamed(descent.head, surface, body, name, version, self._peer.model_field)
        if found is None:
            return False
        self._sent_head = numbered(found.head, self._head.attempt + self._tries) if self._tries else found.head
        if descent.reframed and body is not None:
            self._seen = body if found.body is None else found.body
        self._whole = True
        if self.request_done:
            self._wait_for_head(self._plane.clock())
        return True

    def whole_request(self) -> tuple[bytes, bytes] | None:
        """Return it as its own model is asked, None also where another one is."""
        descent = self._descent
        if descent is not None and descent.head:
            return None
        return super().whole_request()

    def set_aside(self, head: ResponseHead) -> bool:
        """A worker failed or pushed back: where that is an end that a step below stands in for, and one has an answer.

        Otherwise what the worker says is better than anything that would be said instead.
        """
        if HedgingConnection.set_aside(self, head):
            return True
        course, descent, attempt = self._course, self._descent, self._attempt
        if course is None or descent is None or attempt is None or course.over:
            return False
        result = self._meaning_of(head)
        outcome = _OUTCOMES.get(result)
        if outcome is None or outcome not in descent.model.on or self._phase >= ANSWERING:
            return False
        now = self._plane.clock()
        descent.began = descent.began or result is not AttemptResult.BUSY
        if not self._has_below(course, descent, now):
            return False
        self._leave_answer(attempt, result, head, now)
        self._tries += 1
        self._step_down(outcome, f"{attempt.endpoint.id}: status {head.status}")
        return True

    def _has_below(self, course: Course, descent: RequestDescent, now: float) -> bool:
        model = descent.model
        if model.static is not None:
            return True
        keys = self._keys(course, descent, descent.versions()) if model.answers is not None else Refused.METHOD
        if model.find(keys, now, counted=False) is not None:
            return True
        if not self.may_ask():
            return False
        cluster = self._plane.cluster
        routes = [cluster.route(*entry) for entry in model.fallbacks[descent.next_fallback :]]
        body = self._body_of(course)
        found = [within(cluster, self._head, body, route) for route in routes if route is not None]
        return any(route is not None and cluster.route_is_routable(route, now) for route in found)

    # --- what is kept -----------------------------------------------------------------------------------------------

    def _keys(self, course: Course, descent: RequestDescent, versions: Sequence[str]) -> list[bytes] | Refused:
        """Return what answers of these versions to the request in hand are kept under, or why it has no key."""
        terms = descent.model.terms
        route = descent.target.route
        if terms is None or route is None:
            return Refused.METHOD
        head = self._head
        identity: bytes = self.transport.get_extra_info("peer_identity", b"") if terms.certificates else b""
        trusted = self._peer.trusted
        asked = asked_of(head.method, head.target, head.forward, terms, trusted=trusted, identity=identity)
        if not isinstance(asked, Asked):
            return asked
        if head.upgrade:
            return Refused.PROTOCOL
        if course.body is None or not self.request_done:
            return Refused.BODY
        return asked.keys(route.model, versions, course.body)

    def _course_answered(self, course: Course, head: ResponseHead, out: bytes) -> bytes:
        """An answer begins: the ladder learns of it, a degraded one says that it is, and a good one may be kept."""
        descent = course.descent
        if descent is None:
            return out
        why = self._why_not_kept(descent, head)
        model = descent.model
        counted = head.status < 500 and not head.busy
        descent.answered(self._plane.clock(), f"status {head.status}", good=head.status < 400, counted=counted)
        if descent.step is LadderStep.FALLBACK:
            return b"%s%sfallback\r\nwarmroute-degraded-model: %s\r\n" % (out, DEGRADED, descent.entry)
        terms = descent.model.terms
        attempt = self._attempt
        if terms is not None and attempt is not None:
            descent.version = version = attempt.candidate.version
            if head.status < 400:
                model.last_versions[descent.place] = version
            if why is not None:
                descent.model.refuse(why)
            else:
                framing = 1 if head.length >= 0 else _CHUNK_FRAMING
                most = len(out) + 512 + terms.max_entry_bytes * framing
                self.sink = descent.recorder = Recorder(self.transport, most)
        return out

    def _why_not_kept(self, descent: RequestDescent, head: ResponseHead) -> Refused | None:
        terms = descent.model.terms
        if terms is None or self._head.method not in terms.methods:
            return Refused.METHOD
        if descent.model.degraded(descent.place) or self._plane.tight or self._plane.refusing:
            return Refused.DEGRADED
        if self.old_client:
            return Refused.PROTOCOL
        faults, attempt = self._plane.faults, self._attempt
        if faults is not None and attempt is not None and faults.spoils(attempt):
            return Refused.FAULT
        if not terms.takes_path(self._head.target.partition(b"?")[0]):
            return Refused.PATH
        return judge(head.status, head.forward, head.length, terms)

    def _course_ended(self, course: Course, head: ResponseHead, now: float) -> None:
        """The whole answer went downstream: keep it, now that nobody waits for that."""
        descent = course.descent
        if descent is None or descent.recorder is None:
            return
        recorder, descent.recorder = descent.recorder, None
        self.sink = self.transport
        model, terms = descent.model, descent.model.terms
        keys = self._keys(course, descent, (descent.version,))
        if isinstance(keys, Refused):
            model.refuse(keys)
        elif not recorder.whole:
            model.refuse(Refused.SIZE)
        elif terms is not None and model.renews(keys[0], now):
            body = recorder.body()
            if head.length in (CHUNKED, UNTIL_CLOSE):
                body = without_chunks(body)
            model.keep(keys[0], kept(head.forward, body, now, terms), self._plane.ladders)

    def request_ended(self, course: Course) -> None:
        """The request is over: whatever passed of an answer that did not come whole is not kept."""
        self.sink = self.transport
        descent = course.descent
        if descent is not None:
            descent.over = True
        if descent is not None and descent.recorder is not None:
            descent.recorder = None
            descent.model.refuse(Refused.CUT)


_OUTCOMES: Final = {
    AttemptResult.SERVER_ERROR: Outcome.UPSTREAM_5XX,
    AttemptResult.BUSY: Outcome.UPSTREAM_BUSY,
    AttemptResult.NOT_READY: Outcome.UPSTREAM_BUSY,
}
