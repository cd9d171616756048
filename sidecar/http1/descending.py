"""One request on its way down its model's ladder (``router.ladder``), whatever protocol it came in.

What a step does with the request is its connection's (:class:`Descending`); which step comes next, what that says of
the route, and what is told at the end is the same for all, and stands here. What a request cannot use for reasons of
its own says nothing of a step, so it moves nothing; nor does a lack of room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from router.ladder import LadderStep
from router.model import State
from router.outcomes import OUTCOME_OF, Outcome
from router.versions import versions_asked
from sidecar.cache.keeping import Kept
from sidecar.cache.terms import Refused
from sidecar.http1.ladders import NOT_STARTED
from sidecar.telemetry.ladder_words import BY_STEP
from sidecar.telemetry.page import LadderWord

if TYPE_CHECKING:
    from router.outcomes import AttemptResult
    from router.routes import Attempt, Route
    from sidecar.http1.ladders import ModelLadder
    from sidecar.http1.plane import Plane
    from sidecar.http1.shared_answers import Reader
    from sidecar.http1.targets import Target


class Descending(Protocol):
    """Whoever has a request in hand that goes down, and can do what the steps are."""

    def fall_back(self, now: float) -> bool:
        """Send the request to the next fallback that can be picked; False where there is none, or it may not be."""

    def tell_kept(self, now: float) -> bool:
        """Answer with what is kept, or wait for the second tier; False where there is nothing."""

    def tell(self, answer: Kept, now: float) -> None:
        """Answer with this."""

    def tell_static(self, now: float) -> bool:
        """Answer with what is declared; False where that is nothing for this request."""

    def may_ask(self) -> bool:
        """Return whether another worker may be asked: none began, or twice does no harm; and the request is here."""

    def ask_replicas(self, now: float) -> None:
        """Send the request to the replicas of its own model after all."""

    def refuse(self, outcome: Outcome, detail: str, retry_after_s: float | None, *, began: bool) -> None:
        """End the request as one that nobody answered; ``began``: a worker may have begun with it."""

    def crashed(self, error: Exception) -> None:
        """Report an error of warmroute's own, and end the request."""


class Descent:
    """How far down its model's ladder one request has come.

    ``target`` is what it asked for, ``place`` the name of its route here, ``step`` where it is. ``tried``: replicas of
    its model were asked; ``fell``: its fallbacks were. ``last``: one of these is, as nobody else had an answer.
    ``began``: a worker may have begun with it; ``end`` and ``detail`` are how that failed then. ``late``: its time is
    over, nobody is asked any more. ``why`` is how it failed first, ``cause`` how at the step where it is. ``unfit``: a
    fallback was left out for reasons of the request's own. ``own``: it was turned away for such, where it waited.
    ``entry`` is the fallback that it was sent to. ``version`` is the one whose answer passes. ``over``: the request is.
    """

    __slots__ = (
        "_plane",
        "began",
        "cause",
        "detail",
        "end",
        "entry",
        "fell",
        "last",
        "late",
        "model",
        "next_fallback",
        "over",
        "overloaded",
        "own",
        "place",
        "retry_after_s",
        "step",
        "target",
        "tried",
        "unfit",
        "version",
        "why",
    )

    def __init__(self, plane: Plane, model: ModelLadder, target: Target, place: str) -> None:
        self._plane: Final = plane
        self.model: Final = model
        self.target: Final = target
        self.place: Final = place
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
        self.version = ""
        self.over = False

    @property
    def route(self) -> Route | None:
        """The route that was asked for."""
        return self.target.route

    def retries(self, attempt: Attempt, result: AttemptResult, now: float) -> bool:
        """Return whether a retry may be waited for; where nobody else is there for it, a step below answers at once."""
        return OUTCOME_OF[result] not in self.model.on or self._plane.cluster.has_others(attempt, now)

    # --- down -------------------------------------------------------------------------------------------------------

    def begin(self, by: Descending, now: float, *, whole: bool) -> bool:
        """Begin with the step that answers now; True where that is a replica: then the request goes on as any."""
        step = self.model.begin(self.place, now, whole=whole)
        if step is LadderStep.REPLICA:
            self.tried = True
            return True
        self.why = f"{self.place} is degraded"
        self.go_down(by, step, now)
        return False

    def step_down(
        self, by: Descending, outcome: Outcome, detail: str, retry_after_s: float | None, *, callers_own: bool
    ) -> bool:
        """Have a step below answer; False where this end is not one that they stand in for.

        ``callers_own``: the time that is over is the caller's.
        """
        model = self.model
        if outcome not in model.on:
            return False
        now = self._plane.clock()
        if not self.why:
            self.why = detail
            self.retry_after_s = retry_after_s
            self.overloaded = outcome is Outcome.OVERLOADED
        self.cause = outcome.value
        if outcome is Outcome.DEADLINE_EXCEEDED:
            self.late = True
        if outcome not in NOT_STARTED and outcome is not Outcome.UPSTREAM_BUSY:
            self.began = True
            self.end = outcome
            self.detail = detail
        step = self.step
        own = self.own or outcome in _OF_ITS_OWN or (outcome is Outcome.DEADLINE_EXCEEDED and callers_own)
        self.own = False
        if step is not LadderStep.FALLBACK or not by.fall_back(now):
            model.failed(
                self.place,
                step,
                now,
                self.cause,
                certain=outcome is Outcome.NO_CANDIDATE and not (step is LadderStep.FALLBACK and self.unfit),
                of_its_own=own,
            )
            self.go_down(by, LadderStep.REFUSE if self.last else model.below(step), now)
        return True

    def go_down(self, by: Descending, step: LadderStep, now: float) -> None:
        """Try a step and those below, in order, until one takes the request; the last takes any."""
        model = self.model
        while True:
            self.step = step
            if step is LadderStep.FALLBACK:
                if by.fall_back(now):
                    return
                cause = self.cause or "no fallback can be asked"
                model.failed(self.place, step, now, cause, certain=not self.unfit, of_its_own=self.unfit)
            elif step is LadderStep.CACHE:
                if by.tell_kept(now):
                    return
            elif step is LadderStep.STATIC:
                if by.tell_static(now):
                    model.count(LadderWord.BY_STATIC)
                    return
            elif step is LadderStep.REFUSE:
                self._last_resort(by, now)
                return
            step = model.below(step)

    def _last_resort(self, by: Descending, now: float) -> None:
        """No step from where it began has an answer: ask those above all the same, the nearest first; else refuse."""
        model = self.model
        if not self.late and not self.fell and model.fallbacks:
            self.last = True
            self.step = LadderStep.FALLBACK
            if by.fall_back(now):
                return
        if not self.late and not self.tried and by.may_ask():
            self.tried = self.last = True
            self.step = LadderStep.REPLICA
            by.ask_replicas(now)
            return
        model.count(LadderWord.REFUSALS)
        if self.end is not Outcome.NO_CANDIDATE:  # what is told must not sound as if nobody had begun
            by.refuse(self.end, self.detail + _NO_ANSWER, None, began=True)
            return
        outcome = Outcome.OVERLOADED if self.overloaded else Outcome.NO_CANDIDATE
        by.refuse(outcome, self.why + _NO_ANSWER, self.retry_after_s, began=False)

    # --- what is kept -----------------------------------------------------------------------------------------------

    def versions(self) -> tuple[str, ...]:
        """Return the versions of its model whose answers the request may be told."""
        route = self.target.route
        if route is None:
            return ()
        warm = {one.version for one in route.candidates if one.replica.state is State.WARM}
        return versions_asked(route.serve, route.version, warm, self.model.last_versions.get(self.place))

    def ask_tier(self, by: Descending, keys: list[bytes] | Refused, read: Reader) -> bool:
        """Ask the second tier for what this process has not; True where the request waits for that now."""
        model, ladders = self.model, self._plane.ladders
        policy, terms = model.shared, model.terms
        if ladders is None or ladders.tier is None or policy is None or terms is None or self.late:
            return False
        if isinstance(keys, Refused) or not keys:
            return False
        asked = ladders.tier.ask(policy, terms, keys[0], lambda found: self._tier_answered(by, found), read)
        if not asked:
            model.count(LadderWord.SHARED_DROPPED)
        return asked

    def _tier_answered(self, by: Descending, found: Kept | Refused | None) -> None:
        """The second tier has an answer, or none, or one that may not be told, or did not say in time."""
        model = self.model
        told = isinstance(found, Kept)
        other = LadderWord.SHARED_MISSES if found is None else LadderWord.SHARED_REFUSED
        model.count(LadderWord.SHARED_HITS if told else other)
        if self.over or self.step is not LadderStep.CACHE:
            return
        try:
            now = self._plane.clock()
            if isinstance(found, Kept):
                by.tell(found, now)
            else:
                self.go_down(by, model.below(LadderStep.CACHE), now)
        except Exception as error:  # noqa: BLE001
            by.crashed(error)

    # --- an answer --------------------------------------------------------------------------------------------------

    def answered(self, now: float, status: str, *, good: bool, counted: bool) -> None:
        """A worker answered at the step where the request is.

        Args:
            now: the time.
            status: what it said, for the log.
            good: as one does where all is well.
            counted: it stands for the model, good or not: neither an error of the worker's nor back-pressure.
        """
        model, step = self.model, self.step
        if counted:
            model.count(BY_STEP[step])
        if good:
            model.succeeded(self.place, step, now)
        elif model.degraded(self.place):  # a trial that proves nothing: the next one looks elsewhere
            model.failed(self.place, step, now, status, of_its_own=True)


def goes_down(descent: Descent | None) -> bool:
    """Return whether a request waits for no room: its route is degraded, or it is with another model."""
    return descent is not None and (descent.step is not LadderStep.REPLICA or descent.model.degraded(descent.place))


_NO_ANSWER: Final = "; no step of the ladder has an answer"
_OF_ITS_OWN: Final = frozenset({Outcome.UPSTREAM_5XX, Outcome.UPSTREAM_BUSY, Outcome.OVERLOADED})
"""Ends that move their own request, and nobody else's. A caller can bring about what a worker answers by what it asks;
and who finds no room is decided by class, tenant and time, while there will be room again with the next answer."""
