"""Copies for another version of a model, whatever protocol they are in: which are made, and what becomes of each.

What a copy is made of, and how it is sent, is its protocol's (``mirrors``, ``sidecar.grpc.mirrors``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from router.outcomes import AttemptResult
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    import asyncio

    from router.policy import MirrorPolicy
    from router.routes import Attempt, Route
    from sidecar.http1.plane import Plane


class Copying(Protocol):
    """One copy that is under way, as far as only its protocol knows it."""

    def drop(self) -> None:
        """Let go of its connection, or of its place where it waits for one."""

    def close(self) -> None:
        """It is over: forget what it was made of."""


class UnderWay:
    """What becomes of one copy: what is counted of it, how long it may take, and its end, which comes once.

    Made for an attempt that :func:`begin_copy` began.
    """

    __slots__ = ("_attempt", "_by", "_plane", "_sent", "_timer")

    def __init__(self, plane: Plane, attempt: Attempt, by: Copying) -> None:
        self._plane: Final = plane
        self._attempt: Final = attempt
        self._by: Copying | None = by
        self._sent = False
        self._timer: asyncio.TimerHandle | None = None
        plane.copies[attempt] = self

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._by is None

    def begin(self, timeout_s: float) -> None:
        """Give it so much time from now on."""
        self._timer = self._plane.loop.call_later(timeout_s, self._expired)

    def count(self) -> None:
        """Count it, once: what fails is one of those, also where it finds no connection."""
        if not self._sent:
            self._sent = True
            self._plane.count(Scalar.MIRRORS_TOTAL)

    def _expired(self) -> None:
        self._drop()
        self._end(AttemptResult.OUTRUN, Scalar.MIRRORS_FAILED_TOTAL)

    def give_way(self) -> None:
        """Give it up: a caller wants its place. It counts as dropped, whether it had been sent or not."""
        self._drop()
        self.no_room()

    def no_room(self) -> None:
        """There is no connection to spare for it."""
        self._end(AttemptResult.CANCELLED, Scalar.MIRRORS_DROPPED_TOTAL)

    def answered(self, *, failed: bool) -> None:
        """It was answered; ``failed``: with an error of the worker's."""
        self._end(AttemptResult.SUCCESS, Scalar.MIRRORS_FAILED_TOTAL if failed else None)

    def failed(self, result: AttemptResult) -> None:
        """It came to nothing."""
        self.count()
        self._end(result, Scalar.MIRRORS_FAILED_TOTAL)

    def _drop(self) -> None:
        by = self._by
        if by is not None:
            by.drop()

    def _end(self, result: AttemptResult, counted: Scalar | None) -> None:
        by, self._by = self._by, None
        if by is None:
            return
        by.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_copy(self._plane, self._attempt, result, counted)


def mirror_of(route: Route | None) -> MirrorPolicy | None:
    """Return what is copied of the requests on a route, None where nothing is, or they name a version."""
    return None if route is None or route.version else route.policy.serve.mirror


def give_way(plane: Plane, route: Route) -> bool:
    """Give up the youngest copy at an endpoint that a request for ``route`` could go to; False where there is none."""
    now = plane.clock()
    for attempt in reversed(plane.copies):
        if any(one.endpoint is attempt.endpoint and now < one.fit_until for one in route.candidates):
            plane.copies[attempt].give_way()
            return True
    return False


def begin_copy(plane: Plane, policy: MirrorPolicy, primary: Attempt, *, whole: bool) -> Attempt | None:
    """Begin the attempt of a copy beside ``primary``, whose request is all here (``whole``); None: it is dropped."""
    model = primary.route.model
    route = plane.cluster.route(model, policy.version, primary.route.protocol)
    shard = primary.route.shard
    if route is not None and route.shards:  # the same keys are there, and nowhere else
        route = None if shard is None else route.shards[shard]
    under_way = plane.copying.get(model, 0)
    attempt = None
    if whole and route is not None and under_way < policy.most and not plane.essential_only:
        attempt = plane.cluster.choose_background(route, plane.clock(), plane.rng)
    if attempt is None:
        plane.count(Scalar.MIRRORS_DROPPED_TOTAL)
    else:
        plane.copying[model] = under_way + 1
    return attempt


def end_copy(plane: Plane, attempt: Attempt, result: AttemptResult, counted: Scalar | None) -> None:
    """End what :func:`begin_copy` began."""
    if counted is not None:
        plane.count(counted)
    plane.copying[attempt.route.model] -= 1
    plane.copies.pop(attempt, None)
    plane.attempt_ended(attempt, result, plane.clock())
