"""One replica that warm-up requests are to prove: which to send when, and what their answers come to. Pure.

A class of requests is proven by answers that are good, whole and in time, as many in a row as its ``count`` asks for.
What is late proves nothing, and the next one follows at once: the late one may well have been the load.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from router.model import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.settings import Warmup, WarmupRequest
    from sidecar.upstreams.adapters import Answer

NOT_WARMED_YET: Final = "not warmed up yet"
"""What reasons begin with while nothing but late answers came and nothing is known of the replica from before."""
RETURNED: Final = "ready again, but not warmed up since"
MEMBER: Final = "another shard of its group was out; not warmed up since"
BROKE: Final = "its connections broke; not warmed up since"
CLOSED: Final = "it closed the watched connection; not warmed up since"

SHORTEN_RATIO: Final = 0.2
"""Share by which the time to the next try is shorter at random, so that sidecars do not ask in step."""
_STEPS: Final = 32


@dataclass(slots=True, eq=False)
class ShapeClass:
    """What is known of one shape class: since when it is proven, and how its requests fare.

    ``granted``: it is not, but served before it was asked for, and goes on until an answer is wrong or missing.
    """

    request: WarmupRequest
    required: bool
    proven_at: float = -inf
    run: int = 0  # answers in a row that were good and in time
    late: int = 0
    failed: int = 0
    under_way: bool = False
    due_at: float = -inf
    reason: str = ""  # why the last one proved nothing; empty where it did
    granted: bool = False


class Proving:
    """The warm-up of one model on one endpoint. Times are monotonic seconds; ``rng`` spreads tries.

    A proof counts while it was begun after :attr:`void_before`. One begun before :attr:`doubt_before` still counts, but
    is to be renewed at once, and one that is only old (:attr:`stale_before`) too; both stand through answers that come
    late, which a worker gives as well that is cool or busy.
    """

    def __init__(self, plan: Warmup, rng: Callable[[], float]) -> None:
        self._rng = rng
        self._plan = plan
        self.classes: dict[str, ShapeClass] = _classes(plan)
        self.ready = False
        self.void_before = -inf
        self.doubt_before = -inf
        self.stale_before = -inf
        self._why = NOT_WARMED_YET

    def configure(self, plan: Warmup) -> None:
        """Go by another plan; a class whose request is the same stays proven, and who is warm goes on."""
        before, self._plan = self.classes, plan
        warm = self.warm
        self.classes = _classes(plan)
        for name, one in self.classes.items():
            known = before.get(name)
            if known is not None and known.request == one.request:
                one.proven_at = known.proven_at
        if warm:
            self.grant()

    def grant(self) -> None:
        """Have it count as warm though it is not proven yet: it serves, by what was asked of it before."""
        for one in self.classes.values():
            one.granted = one.required and not self._is_proven(one)

    # --- what happens to the replica -----------------------------------------------------------------------------

    def told(self, *, ready: bool, now: float, why: str = RETURNED) -> None:
        """Take whether it is ready, with all that answers together with it. One that was not is to be proven again.

        ``why`` is what is said of it then.
        """
        if self.ready and not ready and self._known:
            self._void(now, why)
        self.ready = ready

    def broke(self, at: float) -> bool:
        """Take that its connections broke at ``at``; True where proofs from before had counted, or may have come."""
        return self._void(at, BROKE)

    def closed(self, at: float) -> bool:
        """Take that the watched connection ended at ``at``; the same."""
        return self._void(at, CLOSED)

    def doubt(self, at: float) -> None:
        """Have it proven again, while it goes on to count as warm."""
        self.doubt_before = max(self.doubt_before, at)
        self._at_once()

    def keep_warm(self, active_at: float, now: float) -> float:
        """Have it proven again where it did nothing for too long; return when to look next, infinity for never.

        ``active_at`` is when it last answered a request of anybody.
        """
        after_s = self._plan.keep_warm_after_s
        if after_s is None or not self.warm:
            return inf
        due = max(active_at, self.proven_at, self.stale_before) + after_s
        if now >= due:
            self.stale_before = now
            self._at_once()
            due = now + after_s
        return due

    def _void(self, at: float, why: str) -> bool:
        if at <= self.void_before:
            return False
        self.void_before = at
        self._why = why
        self._at_once(void=True)
        return True

    def _at_once(self, *, void: bool = False) -> None:
        for one in self.classes.values():
            one.run = one.late = one.failed = 0
            one.due_at = -inf
            one.reason = ""
            one.granted = one.granted and not void

    # --- requests ------------------------------------------------------------------------------------------------

    def take(self, now: float) -> ShapeClass | None:
        """Return the class whose request is to be sent now, required ones first, and count it as under way."""
        if not self.ready:
            return None
        for one in sorted(self.classes.values(), key=_optional):
            if not one.under_way and now >= one.due_at and self._lacks(one):
                one.under_way = True
                return one
        return None

    def next_at(self) -> float:
        """Return when :meth:`take` has something next, infinity where that waits for something to happen."""
        if not self.ready:
            return inf
        due = [one.due_at for one in self.classes.values() if not one.under_way and self._lacks(one)]
        return min(due, default=inf)

    def took(self, one: ShapeClass, answer: Answer, began: float, now: float) -> str:
        """Take the answer to a request that was begun at ``began``; return its result, for metrics."""
        one.under_way = False
        result, reason = judged(one.request, answer, now - began)
        if began <= self.void_before or began <= self.doubt_before or one is not self.classes.get(one.request.name):
            return result  # of before something happened: it says nothing of what is there now
        one.reason = reason
        if result == PROVEN:
            one.late = one.failed = 0
            one.run += 1
            if one.run >= one.request.count:
                one.run = 0
                one.proven_at = began
                one.granted = False
            return result
        one.run = 0
        one.granted = one.granted and result == LATE
        if result != LATE or one.proven_at <= self.void_before:
            one.proven_at = -inf
        if result == LATE:
            one.late += 1
            one.due_at = now if one.late == 1 else now + self._back_off_s(one.late - 1)
        else:
            one.failed += 1
            one.due_at = now + self._back_off_s(one.failed)
        return result

    def _back_off_s(self, step: int) -> float:
        plan = self._plan
        wait_s: float = min(plan.retry_s * 2 ** min(step - 1, _STEPS), plan.retry_max_s)
        return wait_s * (1 - SHORTEN_RATIO * self._rng())

    def _lacks(self, one: ShapeClass) -> bool:
        broken = one.proven_at <= max(self.void_before, self.doubt_before)
        return broken or one.proven_at < self.stale_before or one.proven_at == -inf

    def _is_proven(self, one: ShapeClass) -> bool:
        return one.proven_at > self.void_before and one.proven_at != -inf

    def _counts(self, one: ShapeClass) -> bool:
        return one.granted or self._is_proven(one)

    # --- what it comes to ----------------------------------------------------------------------------------------

    @property
    def _known(self) -> bool:
        """Whether anything has been found out of it: else a new control process knows less than was known before."""
        return self._why != NOT_WARMED_YET or any(
            one.granted or one.proven_at != -inf or one.reason for one in self.classes.values()
        )

    @property
    def judged(self) -> bool:
        """Whether it has been found out, for better or worse."""
        return self.warm or any(one.required and one.reason for one in self.classes.values())

    @property
    def warm(self) -> bool:
        """Whether every required class is proven."""
        return self.ready and all(self._counts(one) for one in self.classes.values() if one.required)

    @property
    def proven_at(self) -> float:
        """When the request was begun since which all of the proof stands; minus infinity where there is none."""
        return min(one.proven_at for one in self.classes.values() if one.required) if self.warm else -inf

    @property
    def state(self) -> tuple[State, str]:
        """The state, and why where it is not warm, or not proven."""
        if self.warm:
            granted = next((one for one in self.classes.values() if one.granted), None)
            if granted is None:
                return State.WARM, ""
            return State.WARM, f"serves as before; {granted.reason or f'warm-up {granted.request.name}: to be proven'}"
        lacking = [one for one in self.classes.values() if one.required and not self._counts(one)]
        said = next((one for one in lacking if one.reason), None)
        if said is None:
            return State.WARMING, self._why
        if self._why == NOT_WARMED_YET and not said.failed:  # it may serve already, and be busy with that
            return State.WARMING, f"{NOT_WARMED_YET}: {said.reason}"
        return State.WARMING, said.reason

    @property
    def warmth(self) -> tuple[tuple[str, float], ...]:
        """How far each class is proven."""
        return tuple(sorted((name, 1.0 if self._counts(one) else 0.0) for name, one in self.classes.items()))


PROVEN: Final = "proven"
LATE: Final = "late"
WRONG: Final = "wrong"
NO_ANSWER: Final = "no_answer"
RESULTS: Final = (PROVEN, LATE, WRONG, NO_ANSWER)
"""What a warm-up request may come to."""


def judged(request: WarmupRequest, answer: Answer, took_s: float) -> tuple[str, str]:
    """Return the result of a warm-up request, and why it proves nothing where it does not."""
    what = f"warm-up {request.name}"
    if answer.ended:
        return WRONG, f"{what}: {answer.ended}, not OK"
    if answer.status is None:
        return NO_ANSWER, f"{what}: no answer: {answer.error}"
    expect = request.expect
    wanted = answer.good if expect is None or expect.status is None else answer.status == expect.status
    if not wanted:
        asked = "a 2xx" if expect is None or expect.status is None else f"the {expect.status} of expect.status"
        return WRONG, f"{what}: HTTP {answer.status}, not {asked}"
    if answer.cut:
        return WRONG, f"{what}: HTTP {answer.status}, but more than its max_answer_bytes of {request.max_answer_bytes}"
    if expect is not None and expect.body_contains is not None and expect.body_contains.encode() not in answer.body:
        return WRONG, f"{what}: HTTP {answer.status}, but the body lacks expect.body_contains"
    if took_s > request.within_s:
        return LATE, f"{what}: took {took_s:.3g} s, more than its within_s of {request.within_s:g}"
    return PROVEN, ""


def _classes(plan: Warmup) -> dict[str, ShapeClass]:
    needed = {one.name for one in plan.requests} if plan.required is None else set(plan.required)
    return {one.name: ShapeClass(one, one.name in needed) for one in plan.requests}


def _optional(one: ShapeClass) -> bool:
    return not one.required
