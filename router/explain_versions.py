"""How requests that name no version get one, laid open: every version with its share, and the decision behind it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from router.explain import Explanation, VersionLack, VersionRow, explain, rows_of
from router.glance import EJECTED, TAKEN_UP, WARM_ALL_THE_SAME
from router.groups import FEW
from router.placing import RouteStanding, by_share, left_out, places, stand
from router.policy import ServePolicy, ServeRule, VersionShare
from router.turns import LOOKS
from router.versions import (
    fullest,
    is_taken,
    served_version,
    share_at_random,
    share_by_key,
    version_key,
    whole_versions,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from router.glance import View
    from router.placing import Placed
    from router.protocols import Rng
    from router.routes import Route
    from router.turns import Turns

NOBODY: Final = "no replica that may be picked"
"""What a version has that lacks everything."""
_ANYWAY: Final = ", and no version has all"


@dataclass(frozen=True, slots=True)
class _Standing:
    """How the versions of a model stand on one route.

    ``lacks`` are the shards of which a version has nobody, where it has somebody. ``shares`` are the parts of the
    requests that name none. ``busy``: somebody serves these, or would, but for how some attempts went just now.
    """

    serve: ServePolicy | None
    protocol: str
    replicas: dict[str, int]
    ready: dict[str, int]
    lacks: dict[str, tuple[int, ...]]
    shares: dict[str, float]
    busy: bool


def described(serve: ServePolicy | None) -> str:
    """Say in a few words which versions take requests that name none."""
    if serve is None:
        return ServeRule.ANY.value
    if serve.rule is ServeRule.PINNED:
        return f"version {serve.version}"
    if serve.rule is ServeRule.SPLIT:
        total = sum(share.weight for share in serve.shares)
        parts = ", ".join(f"{share.version} {share.weight / total:.3g}" for share in serve.shares)
        return f"split: {parts}"
    return serve.rule.value


def version_rows(view: View, routes: Sequence[Route], now: float) -> tuple[VersionRow, ...]:
    """Return the versions of a model, those of a split that nobody holds among them.

    ``routes`` are its routes, one for each protocol. A version has to be there for all those over which the model is
    served now. Where they differ, the shares are those over the first one that has any, and the note says so.
    """
    standings = [_standing(view, route, now) for route in routes]
    first = next((one for one in standings if one.shares), standings[0])
    serve = first.serve
    weights: dict[str, float] = {}
    names: set[str] = set()
    for one in standings:
        names |= one.replicas.keys()
    if serve is not None:
        weights = {share.version: share.weight for share in serve.shares}
        names |= weights.keys() | ({serve.version} if serve.version else set())
    return tuple(
        VersionRow(
            version,
            sum(one.replicas.get(version, 0) for one in standings),
            sum(one.ready.get(version, 0) for one in standings),
            None if serve is None else first.shares.get(version, 0.0),
            weights.get(version),
            "; ".join(filter(None, (_note(first, version), *_differences(version, first, standings)))),
            _lacks(version, standings),
        )
        for version in sorted(names, key=version_key, reverse=True)
    )


def _standing(view: View, route: Route, now: float) -> _Standing:
    serve = route.serve
    open_, out = view.look_at_all(route, now)
    ready: dict[str, int] = {}
    replicas: dict[str, int] = {}
    busy = False
    for glance in open_:
        ready[glance.version] = ready.get(glance.version, 0) + 1
        busy = busy or serve is None or is_taken(serve, glance.version)
    for glance, reason in out:
        if reason in TAKEN_UP:
            ready[glance.version] = ready.get(glance.version, 0) + 1
        if reason in WARM_ALL_THE_SAME and glance.entry and (serve is None or is_taken(serve, glance.version)):
            candidate = glance.candidate
            out_s = now - candidate.reason_since if reason in EJECTED and candidate.reason is reason else 0.0
            busy = busy or out_s < view.policies.freshness.local_after_s
    for candidate in route.candidates:
        replicas[candidate.version] = replicas.get(candidate.version, 0) + 1
    by_shard, _ = view.by_shard(route, now)
    lacks = {
        version: tuple(shard for shard, versions in enumerate(by_shard) if version not in versions) for version in ready
    }
    return _Standing(serve, route.protocol, replicas, ready, lacks, _shares(route, ready, by_shard), busy)


def _shares(route: Route, ready: Mapping[str, int], by_shard: Sequence[Collection[str]]) -> dict[str, float]:
    serve = route.serve
    if serve is None:
        return {}
    if serve.rule is ServeRule.SPLIT:
        whole = whole_versions(by_shard)
        weights = {share.version: share.weight for share in serve.shares if share.version in whole}
        total = sum(weights.values())
        if total:
            return {version: weight / total for version, weight in weights.items()}
        most = fullest(serve.shares, Counter(version for versions in by_shard for version in versions))
        return {most: 1.0} if most else {}
    if serve.rule is ServeRule.PINNED:
        return {serve.version: 1.0} if serve.version in ready else {}
    shards = range(len(by_shard)) if route.shard is None else (route.shard,)
    shares: dict[str, float] = {}
    for shard in shards:
        served = served_version(serve, by_shard, shard)
        if served is not None:
            shares[served] = shares.get(served, 0.0) + 1 / len(shards)
    return shares


def _nobody(lacks: tuple[int, ...] | None) -> str:
    """Say what a version has not; "" where it has all. ``lacks`` is None where it has nobody at all."""
    if lacks is None:
        return NOBODY
    if not lacks:
        return ""
    numbers = ", ".join(map(str, lacks[:FEW]))
    more = f" and {len(lacks) - FEW} more" if len(lacks) > FEW else ""
    return f"no replica of shard{'s' if len(lacks) > 1 else ''} {numbers}{more} that may be picked"


def _lacks(version: str, standings: Sequence[_Standing]) -> tuple[VersionLack, ...]:
    """Say what a version lacks to take all requests of its model: over each protocol that this is served over."""
    held = [one for one in standings if one.replicas]
    if not held:
        return (VersionLack(standings[0].protocol, NOBODY),)
    found = {one.protocol: _nobody(one.lacks.get(version)) for one in held}
    needed = [one.protocol for one in held if one.busy]
    if not needed and "" in found.values():
        return ()  # nobody serves it, so what there is will do
    over = len(set(found.values())) > 1  # it lacks the same everywhere, else
    return tuple(
        VersionLack(protocol, f"{found[protocol]} over {protocol}" if over else found[protocol])
        for protocol in needed or found
        if found[protocol]
    )


def _differences(version: str, first: _Standing, standings: Sequence[_Standing]) -> list[str]:
    """Say which part of the requests a version takes over other protocols, where that is another."""
    if first.serve is None:
        return []
    share = first.shares.get(version, 0.0)
    return [
        f"over {one.protocol} {one.shares.get(version, 0.0):.0%}"
        for one in standings
        if one.replicas and abs(one.shares.get(version, 0.0) - share) > 1e-9
    ]


def _note(standing: _Standing, version: str) -> str:
    """Say why a version has the share that it has."""
    serve, shares = standing.serve, standing.shares
    lacks = _nobody(standing.lacks.get(version))
    if serve is None:
        return lacks
    if serve.rule is ServeRule.SPLIT:
        weight = next((share.weight for share in serve.shares if share.version == version), None)
        if not weight:
            return "not in the split" if weight is None else "its weight is 0"
        if lacks and version in shares:
            return f"{lacks}{_ANYWAY}"
        if lacks:
            return f"{lacks}: its share goes to the others"
        return "with what those leave that have nobody" if len(shares) < _weighty(serve) else ""
    if serve.rule is ServeRule.PINNED:
        return lacks if version == serve.version else f"requests that name no version go to {serve.version}"
    if version in shares:
        return f"{lacks}{_ANYWAY}" if lacks else "the newest that has a replica that may be picked"
    if lacks:
        return lacks
    return f"older than {next(iter(shares))}"


def _weighty(serve: ServePolicy) -> int:
    return sum(share.weight > 0 for share in serve.shares)


def explained(
    view: View, route: Route, of_version: Mapping[str, Route], now: float, rng: Rng, key: bytes | None
) -> Turns[Explanation]:
    """Lay open a decision on a route of all versions; ``of_version`` are the routes of each one.

    In a split, ``key`` is first what keeps a caller at its version, then what the balancer goes by.
    """
    yield from view.look_in_turns(route, now)
    rows = version_rows(view, (route,), now)
    serve = route.serve
    takers = [VersionShare(row.version, row.share) for row in rows if row.share and row.version in of_version]
    if serve is None or serve.rule is not ServeRule.SPLIT or not takers:
        whole = yield from explain(view, route, now, rng, key)
        return replace(whole, serve=described(serve), versions=rows)
    sticky = serve.header is not None and key is not None
    taken = takers[share_by_key(takers, key) if sticky and key is not None else share_at_random(takers, rng())]
    chosen = yield from explain(view, of_version[taken.version], now, rng, key)
    why = "by its key" if sticky else "at random"
    split = yield from split_places(view, route, of_version, rows, now)
    shown = yield from rows_of(split, now)
    return replace(
        chosen,
        route=route.key,
        version="",
        law=f"version {taken.version} of the split, {why}; then {chosen.law}",
        rows=shown,
        serve=described(serve),
        versions=rows,
    )


def stand_on(
    view: View, route: Route, of_version: Mapping[str, Route], now: float, *, default: bool
) -> Turns[RouteStanding]:
    """Look at a route, of all versions where ``of_version`` are the routes of each one."""
    standing = yield from stand(view, route, now)
    serve = route.serve
    versions: tuple[VersionRow, ...] = ()
    placed = places(standing)
    if len(placed) > LOOKS:
        yield None
    if serve is not None:
        versions = version_rows(view, (route,), now)
        if serve.rule is ServeRule.SPLIT:
            placed = yield from split_places(view, route, of_version, versions, now)
    return RouteStanding(route, default, standing.balancer.name, standing.panic, placed, versions, described(serve))


def split_places(
    view: View, route: Route, of_version: Mapping[str, Route], versions: tuple[VersionRow, ...], now: float
) -> Turns[list[Placed]]:
    """Return the candidates of a split: each one's share of its version's share, and those that are left out."""
    taking: list[Placed] = []
    for version in versions:
        share, own = version.share, of_version.get(version.version)
        if share and own is not None:
            standing = yield from stand(view, own, now)
            taking += [place.of_share(share) for place in places(standing) if place.reason is None]
    taking.sort(key=by_share)
    rest = yield from stand(view, route, now)
    return [*taking, *left_out(rest)]
