"""Where each replica of a route stands at one moment: may it be picked, with which weight, and how often is it drawn.

In short, as metrics want it; ``router.explain`` makes whole rows of it. Everything here reads and nothing writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from router.outcomes import Reason
from router.outlier import PANIC_OVERLOOKS, panics
from router.routes import UNMEASURED_MS, Weighing, weigh_in_turns
from router.stats import median
from router.turns import LOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.explain import VersionRow
    from router.glance import Glance, View
    from router.protocols import Balancer, Measure
    from router.routes import Route
    from router.turns import Turns


@dataclass(slots=True)
class Standing:
    """Those of a route that may be picked now, as its balancer sees them.

    ``middle_ms`` is the median of their latencies, None where none is known.
    """

    balancer: Balancer  # a twin of the route's own
    open: list[Glance]
    out: list[tuple[Glance, Reason]]
    all_busy: bool
    panic: bool
    weighing: Weighing
    key: bytes | None
    middle_ms: float | None
    _measures: list[tuple[Measure, ...]] | None = None

    @property
    def measures(self) -> list[tuple[Measure, ...]]:
        """What a choice goes by for each of those that may be picked, weights apart."""
        if self._measures is None:
            self._measures = self.balancer.measures(self.key)
        return self._measures


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica in a route. ``at`` is its place among those that may be picked, -1 where ``reason`` says why not.

    ``share`` is the probability of one draw.
    """

    glance: Glance
    standing: Standing
    at: int
    reason: Reason | None
    share: float

    @property
    def weight(self) -> float:
        """Its weight in the route, 0 where it may not be picked."""
        return self.standing.weighing.weights[self.at] if self.at >= 0 else 0.0

    @property
    def lacks(self) -> tuple[str, ...]:
        """What its group is incomplete for, or how it differs from most where it is inconsistent."""
        if self.reason is Reason.INCONSISTENT:
            return (self.glance.candidate.differs,)
        return tuple(map(str, self.glance.lacks))

    def probe_due(self, now: float) -> bool:
        """Whether it is in quarantine, and the next request goes there to see whether it answers again."""
        if self.reason is not Reason.QUARANTINED:
            return False
        return self.glance.candidate.endpoint.quarantine.probe_at(alone=not self.standing.open) <= now

    def of_share(self, share: float) -> Self:
        """Return it as one of those that have this share of the draws together."""
        return replace(self, share=self.share * share)


@dataclass(frozen=True, slots=True)
class RouteStanding:
    """One route with its replicas by falling share, then those that may not be picked; none where only panic is asked.

    ``versions`` is there where not all versions take the route's requests alike.
    """

    route: Route
    default: bool
    balancer: str
    panic: bool
    places: Sequence[Placed] = ()
    versions: tuple[VersionRow, ...] = ()
    serve: str = "any"


def in_panic(view: View, route: Route, now: float) -> Turns[bool]:
    """Return whether so few of a route are left that those which are ejected are picked too."""
    yield from view.look_in_turns(route, now)
    open_, out = view.look(route, now)
    return panics(len(open_), len(_ejected(out)), view.policies.outlier)


def stand(view: View, route: Route, now: float, key: bytes | None = None) -> Turns[Standing]:
    """Look at a route for a request with ``key``."""
    yield from view.look_in_turns(route, now)
    open_, out = view.look(route, now)
    all_busy = not open_
    ejected = _ejected(out)
    panic = panics(len(open_), len(ejected), view.policies.outlier)
    if panic:
        open_ = [*open_, *ejected]
        out = [(glance, reason) for glance, reason in out if reason not in PANIC_OVERLOOKS or not glance.entry]
    open_, out = _overlook_busy(open_, out)
    many = len(open_) > LOOKS
    balancer = (route.busy_balancer if all_busy else route.balancer).twin()
    if balancer.weighs(key):
        weighing = yield from weigh_in_turns(open_, view.scorers, view.policies, view.mode)
    else:
        alike = [1.0] * len(open_)
        weighing = Weighing(alike, alike, [], alike, 0.0)
    middle = median(glance.candidate.known_ewma_ms() for glance in open_)
    for glance in open_:
        known = glance.candidate.known_ewma_ms()
        glance.prior_ms = (middle or UNMEASURED_MS) if known is None else known
    if many:
        yield None
    balancer.arrange(open_, weighing.weights)
    if many:
        yield None
    return Standing(balancer, open_, out, all_busy, panic, weighing, key, middle)


def places(standing: Standing) -> list[Placed]:
    """Return those of a standing by falling share, then those left out."""
    shares = standing.balancer.shares(standing.key)
    placed = [Placed(glance, standing, at, None, shares[at]) for at, glance in enumerate(standing.open)]
    placed.sort(key=by_share)
    placed += left_out(standing)
    return placed


def left_out(standing: Standing) -> Iterable[Placed]:
    """Yield those of a standing that may not be picked."""
    return (Placed(glance, standing, -1, reason, 0.0) for glance, reason in standing.out)


def by_share(place: Placed) -> tuple[float, str, str]:
    """Order those that may be picked: by falling share, then by name."""
    return -place.share, place.glance.endpoint.id, place.glance.version


def _ejected(out: Iterable[tuple[Glance, Reason]]) -> list[Glance]:
    return [glance for glance, reason in out if reason in PANIC_OVERLOOKS and glance.entry]


def _overlook_busy(
    open_: list[Glance], out: list[tuple[Glance, Reason]]
) -> tuple[list[Glance], list[tuple[Glance, Reason]]]:
    """Let in those that pushed back where nobody else is left, as a choice does."""
    if open_:
        return open_, out
    busy = [glance for glance, reason in out if reason is Reason.BUSY]
    return busy, [(glance, reason) for glance, reason in out if reason is not Reason.BUSY]
