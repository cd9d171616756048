"""A caller's connection whose requests go down their model's ladder where they cannot be answered (``router.ladder``).

Each way down is taken before a byte of an answer went downstream, and ends the request exactly once. Another model is
asked only where asking twice is allowed; what is kept is told as it was; and while a route is degraded nothing is kept.
What a request cannot use for reasons of its own says nothing of a step, so it moves nothing; nor does a lack of room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.ladder import LadderStep
from router.matching import Surface
from router.model import State
from router.outcomes import OUTCOME_OF, OUTCOMES, AttemptResult, Outcome
from router.versions import versions_asked
from sidecar.cache.asking import Asked, asked_of
from sidecar.cache.keeping import DEGRADED, Kept, judge, kept
from sidecar.cache.terms import Refused
from sidecar.http1.caller import ANSWERING
from sidecar.http1.exchange import SAFE_METHODS
from sidecar.http1.forwarding import numbered
from sidecar.http1.head import CHUNKED, UNTIL_CLOSE
from sidecar.http1.hedging import HedgingConnection
from sidecar.http1.keying import within
from sidecar.http1.ladders import NOT_STARTED
from sidecar.http1.renaming import reframed, renamed
from sidecar.http1.special import SpecialConnection, without_chunks
from sidecar.http1.versions import fallback_route
from sidecar.telemetry.ladder_words import BY_STEP
from sidecar.telemetry.page import LadderWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.routes import Attempt
    from sidecar.http1.head import ResponseHead
    from sidecar.http1.ladders import ModelLadder
    from sidecar.http1.steps import Course
    from sidecar.http1.targets import Target
    from sidecar.upstreams.connection import Sink

_CHUNK_FRAMING: Final = 4
"""Chunks may take so many times what they carry before an answer is not worth keeping what came of it."""


class Recorder:
    """Stands in front of a caller's transport while an answer passes that may be kept.

    ``whole``: no more came than is kept. Pieces are passed on first, as they come.
    """

    __slots__ = ("_left", "_pieces", "_sink", "whole")

    def __init__(self, sink: Sink, most_bytes: int) -> None:
        self._sink: Final = sink
        self._left = most_bytes
        self._pieces: list[bytes] = []
        self.whole = True

    def write(self, data: bytes) -> None:
        """Pass a piece on."""
        self._sink.write(data)
        self._keep(data)

    def writelines(self, list_of_data: Iterable[bytes | memoryview]) -> None:
        """Pass several on."""
        pieces = list(list_of_data)
        self._sink.writelines(pieces)
        for piece in pieces:
            self._keep(bytes(piece))

    def _keep(self, data: bytes) -> None:
        if self.whole:
            self._left -= len(data)
            if self._left < 0:
                self.whole = False
                self._pieces.clear()
            else:
                self._pieces.append(data)

    def body(self) -> bytes:
        """Return what came behind the head."""
        return b"".join(self._pieces).partition(b"\r\n\r\n")[2]


class Descent:
    """How far down its model's ladder one request has come.

    ``target`` is what it asked for, ``place`` the key of its route, ``step`` where it is. ``tried``: replicas of its
    model were asked; ``fell``: its fallbacks were. ``last``: one of these is, as nobody else had an answer. ``began``:
    a worker may have begun with it; ``end`` and ``detail`` are how that failed then. ``late``: its time is over, nobody
    is asked any more. ``why`` is how it failed first, ``cause`` how at the step where it is. ``unfit``: a fallback was
    left out for reasons of the request's own. ``own``: it was turned away for such, where it waited. ``entry`` is the
    fallback that it was sent to. ``key`` and ``names_version`` are what its course had for its own model. ``version``
    is the one whose answer passes.
    """

    __slots__ = (
        "began",
        "cause",
        "detail",
        "end",
        "entry",
        "fell",
        "head",
        "key",
        "last",
        "late",
        "model",
        "names_version",
        "next_fallback",
        "overloaded",
        "own",
        "place",
        "recorder",
        "reframed",
        "retry_after_s",
        "step",
        "target",
        "tried",
        "unfit",
        "version",
        "why",
    )

    def __init__(self, model: ModelLadder, target: Target, place: str, course: Course) -> None:
        self.model: Final = model
        self.target: Final = target
        self.place: Final = place
        self.key: Final = course.key
        self.names_version: Final = course.names_version
        self.step = LadderStep.REPLICA
        self.tried = False
        self.fell = False
        self.began = False
        self.end = Outcome.NO_CANDIDATE
        self.detail = ""
        self.last = False
        self.late = False
        self.why = ""
        self.cause = ""
        self.unfit = False
        self.own = False
        self.overloaded = False
        self.retry_after_s: float | None = None
        self.next_fallback = 0
        self.entry = b""
        self.head = b""  # as its own model would be asked, once it goes to another
        self.reframed = False  # and with its whole body, without chunks
        self.recorder: Recorder | None = None
        self.version = ""


class DegradingConnection(SpecialConnection):
    """A caller's connection whose requests may go down a ladder."""

    __slots__ = ()

    @property
    def _descent(self) -> Descent | None:
        """How far down its model's ladder the request in hand has come, None where that has none."""
        course = self._course
        return None if course is None else course.descent

    # --- down -------------------------------------------------------------------------------------------------------

    def begin_on_ladder(self, course: Course, model: ModelLadder, now: float) -> bool:
        """Begin with the step that answers now; True where that is a replica: then the request goes on as any.

        One that asks about the model, and is none for it, takes no part: nobody may tell it that all is well.
        """
        target = self._target
        if target.route is None or self._asks_about(model, target):
            return True
        place = target.route.key
        course.descent = descent = Descent(model, target, place, course)
        course.hears.append(self)
        step = model.begin(place, now, whole=self.request_done)
        if step is LadderStep.REPLICA:
            descent.tried = True
            return True
        descent.why = f"{place} is degraded"
        self._go_down(course, descent, step, now)
        return False

    def _asks_about(self, model: ModelLadder, target: Target) -> bool:
        """Return whether a request asks about its model only: readiness, metadata.

        That is one in a safe method, but for a GET whose answers are kept by configuration.
        """
        if self.method not in SAFE_METHODS:
            return False
        terms = model.terms
        if terms is None or target.surface is Surface.V2 or self._head.method not in terms.methods:
            return True
        return not terms.takes_path(self._head.target.partition(b"?")[0])

    def _step_down(self, outcome: Outcome, detail: str, retry_after_s: float | None = None) -> bool:
        """Have a step below answer; False where the request has none, or this end is not one that they stand in for."""
        watch, course, descent = self._watch, self._course, self._descent
        if watch is None or course is None or descent is None or course.over or self._phase >= ANSWERING:
            return False
        if outcome not in descent.model.on:
            return False
        now = self._plane.clock()
        if not descent.why:
            descent.why = detail
            descent.retry_after_s = retry_after_s
            descent.overloaded = outcome is Outcome.OVERLOADED
        descent.cause = outcome.value
        if outcome is Outcome.DEADLINE_EXCEEDED:
            descent.late = True
        if outcome not in NOT_STARTED and outcome is not Outcome.UPSTREAM_BUSY:
            descent.began = True
            descent.end = outcome
            descent.detail = detail
        step = descent.step
        own = descent.own or outcome in _OF_ITS_OWN or (outcome is Outcome.DEADLINE_EXCEEDED and watch.callers_own)
        descent.own = False
        if step is not LadderStep.FALLBACK or not self._fall_back(course, descent, now):
            descent.model.failed(
                descent.place,
                step,
                now,
                descent.cause,
                certain=outcome is Outcome.NO_CANDIDATE and not (step is LadderStep.FALLBACK and descent.unfit),
                of_its_own=own,
            )
            self._go_down(course, descent, LadderStep.REFUSE if descent.last else descent.model.below(step), now)
        return True

    def _delay_of_retry(self, attempt: Attempt, result: AttemptResult, now: float, tries: int) -> float | None:
        """Wait for no retry where nobody else is there for it: a step below answers at once."""
        descent = self._descent
        if (
            descent is not None
            and OUTCOME_OF[result] in descent.model.on
            and not self._plane.cluster.has_others(attempt, now)
        ):
            return None
        return super()._delay_of_retry(attempt, result, now, tries)

    def _go_down(self, course: Course, descent: Descent, step: LadderStep, now: float) -> None:
        """Try a step and those below, in order, until one takes the request; the last takes any."""
        model = descent.model
        while True:
            descent.step = step
            if step is LadderStep.FALLBACK:
                if self._fall_back(course, descent, now):
                    return
                unfit = descent.unfit
                cause = descent.cause or "no fallback can be asked"
                model.failed(descent.place, step, now, cause, certain=not unfit, of_its_own=unfit)
            elif step is LadderStep.CACHE:
                answer = self._find_kept(course, descent, now)
                if answer is not None:
                    self._tell_kept(descent, answer, now)
                    return
                if self._ask_shared(course, descent):
                    return
            elif step is LadderStep.STATIC and model.static is not None:
                request_id = self._request_id or self._head.request_id()
                self._close_after = close = self._must_close()
                model.count(LadderWord.BY_STATIC)
                static = model.static.tell(request_id, close=close, head_only=self.method == b"HEAD")
                self._tell(static, Outcome.DEGRADED_STATIC, now)
                return
            elif step is LadderStep.REFUSE:
                self._last_resort(course, descent, now)
                return
            step = model.below(step)

    def _last_resort(self, course: Course, descent: Descent, now: float) -> None:
        """No step from where it began has an answer: ask those above all the same, the nearest first; else refuse."""
        model = descent.model
        if not descent.late and not descent.fell and model.fallbacks:
            descent.last = True
            descent.step = LadderStep.FALLBACK
            if self._fall_back(course, descent, now):
                return
        if not descent.late and not descent.tried and self._may_ask(course, descent):
            descent.tried = descent.last = True
            descent.step = LadderStep.REPLICA
            if descent.head:
                self._sent_head = descent.head
            if descent.reframed and course.body is not None:
                self._seen = course.body
            course.key = descent.key
            course.names_version = descent.names_version
            self._target = descent.target
            self._go_through(course, now)
            return
        model.count(LadderWord.REFUSALS)
        if descent.end is not Outcome.NO_CANDIDATE:  # what is told must not sound as if nobody had begun
            status = 0 if OUTCOMES[descent.end].answered_here else 502
            self._end_with(descent.end, descent.detail + _NO_ANSWER, status=status)
            return
        outcome = Outcome.OVERLOADED if descent.overloaded else Outcome.NO_CANDIDATE
        self._end_with(outcome, descent.why + _NO_ANSWER, descent.retry_after_s)

    def _tell_kept(self, descent: Descent, answer: Kept, now: float) -> None:
        request_id = self._request_id or self._head.request_id()
        self._close_after = close = self._must_close()
        descent.model.count(LadderWord.BY_CACHE)
        self._tell(answer.tell(now, request_id, close=close), Outcome.DEGRADED_CACHE, now)

    def _ask_shared(self, course: Course, descent: Descent) -> bool:
        """Ask the second tier for what this process has not; True where the request waits for that now."""
        ladders = self._plane.ladders
        policy, terms = descent.model.shared, descent.model.terms
        if ladders is None or ladders.tier is None or policy is None or terms is None or descent.late:
            return False
        keys = self._keys(course, descent, self._versions_asked(descent))
        if isinstance(keys, Refused) or not keys:
            return False
        asked = ladders.tier.ask(policy, terms, keys[0], lambda found: self._shared_answered(course, descent, found))
        if not asked:
            descent.model.count(LadderWord.SHARED_DROPPED)
        return asked

    def _shared_answered(self, course: Course, descent: Descent, found: Kept | Refused | None) -> None:
        """The second tier has an answer, or none, or one that may not be told, or did not say in time."""
        model = descent.model
        now = self._plane.clock()
        told = isinstance(found, Kept)
        other = LadderWord.SHARED_MISSES if found is None else LadderWord.SHARED_REFUSED
        model.count(LadderWord.SHARED_HITS if told else other)
        if course.over:
            return
        try:
            if not isinstance(found, Kept):
                self._go_down(course, descent, model.below(LadderStep.CACHE), now)
            else:
                self._tell_kept(descent, found, now)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _goes_down(self) -> bool:
        """Return whether the request waits for no room: its route is degraded, or it is with another model."""
        descent = self._descent
        return descent is not None and (descent.step is not LadderStep.REPLICA or descent.model.degraded(descent.place))

    # --- another model ----------------------------------------------------------------------------------------------

    def _may_ask(self, course: Course, descent: Descent) -> bool:
        """Return whether another worker may be asked: none began, or twice does no harm; and the body is here."""
        route = descent.target.route
        if route is None or (descent.began and not route.policy.idempotent):
            return False
        return self._whole or (course.body is not None and self.request_done)

    def _fall_back(self, course: Course, descent: Descent, now: float) -> bool:
        """Send the request to the next fallback that can be picked; False where there is none, or it may not be."""
        model = descent.model
        descent.fell = True
        if descent.late or not self._may_ask(course, descent):
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

    def _rename(self, course: Course, descent: Descent, name: str, version: str) -> bool:
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

    def _has_below(self, course: Course, descent: Descent, now: float) -> bool:
        model = descent.model
        if model.static is not None:
            return True
        if model.answers is not None and self._find_kept(course, descent, now, counted=False) is not None:
            return True
        if not self._may_ask(course, descent):
            return False
        cluster = self._plane.cluster
        routes = [cluster.route(*entry) for entry in model.fallbacks[descent.next_fallback :]]
        body = self._body_of(course)
        found = [within(cluster, self._head, body, route) for route in routes if route is not None]
        return any(route is not None and cluster.route_is_routable(route, now) for route in found)

    # --- what is kept -----------------------------------------------------------------------------------------------

    def _find_kept(self, course: Course, descent: Descent, now: float, *, counted: bool = True) -> Kept | None:
        """Return what is kept for a request like this one."""
        model = descent.model
        if model.answers is None:
            return None
        keys = self._keys(course, descent, self._versions_asked(descent))
        if isinstance(keys, Refused):
            if counted:
                model.refuse(keys)
            return None
        for key in keys:
            answer = model.answers.find(key, now)
            if answer is not None:
                return answer
        if counted:
            model.count(LadderWord.MISSES)
        return None

    def _versions_asked(self, descent: Descent) -> tuple[str, ...]:
        """Return the versions of its model whose answers the request in hand may be told."""
        route = descent.target.route
        if route is None:
            return ()
        warm = {one.version for one in route.candidates if one.replica.state is State.WARM}
        return versions_asked(route.serve, route.version, warm, descent.model.last_versions.get(descent.place))

    def _keys(self, course: Course, descent: Descent, versions: Sequence[str]) -> list[bytes] | Refused:
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
        model, step = descent.model, descent.step
        if head.status < 500 and not head.busy:
            model.count(BY_STEP[step])
        if head.status < 400:
            model.succeeded(descent.place, step, self._plane.clock())
        elif model.degraded(descent.place):  # a trial that proves nothing: the next one looks elsewhere
            model.failed(descent.place, step, self._plane.clock(), f"status {head.status}", of_its_own=True)
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

    def _why_not_kept(self, descent: Descent, head: ResponseHead) -> Refused | None:
        terms = descent.model.terms
        if terms is None or self._head.method not in terms.methods:
            return Refused.METHOD
        if descent.model.degraded(descent.place) or self._plane.tight or self._plane.refusing:
            return Refused.DEGRADED
        if self.old_client:
            return Refused.PROTOCOL
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
        model = descent.model
        terms, answers = model.terms, model.answers
        keys = self._keys(course, descent, (descent.version,))
        if isinstance(keys, Refused):
            model.refuse(keys)
        elif not recorder.whole:
            model.refuse(Refused.SIZE)
        elif terms is not None and answers is not None and answers.renews(keys[0], now):
            body = recorder.body()
            if head.length in (CHUNKED, UNTIL_CLOSE):
                body = without_chunks(body)
            answer = kept(head.forward, body, now, terms)
            if isinstance(answer, Refused):
                model.refuse(answer)
            elif answers.keep(keys[0], answer):
                model.count(LadderWord.FILLS)
                ladders = self._plane.ladders
                if ladders is not None and ladders.tier is not None and model.shared is not None:
                    sent = ladders.tier.fill(model.shared, keys[0], answer)
                    model.count(LadderWord.SHARED_FILLS if sent else LadderWord.SHARED_DROPPED)

    def request_ended(self, course: Course) -> None:
        """The request is over: whatever passed of an answer that did not come whole is not kept."""
        self.sink = self.transport
        descent = course.descent
        if descent is not None and descent.recorder is not None:
            descent.recorder = None
            descent.model.refuse(Refused.CUT)


_NO_ANSWER: Final = "; no step of the ladder has an answer"
_OF_ITS_OWN: Final = frozenset({Outcome.UPSTREAM_5XX, Outcome.UPSTREAM_BUSY, Outcome.OVERLOADED})
"""Ends that move their own request, and nobody else's. A caller can bring about what a worker answers by what it asks;
and who finds no room is decided by class, tenant and time, while there will be room again with the next answer."""
_OUTCOMES: Final = {
    AttemptResult.SERVER_ERROR: Outcome.UPSTREAM_5XX,
    AttemptResult.BUSY: Outcome.UPSTREAM_BUSY,
    AttemptResult.NOT_READY: Outcome.UPSTREAM_BUSY,
}
