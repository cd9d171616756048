"""How requests that name no version get one, laid open: every version with its share, and the decision behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.explain import Explanation, RouteRow, VersionRow, explain, route_row
from router.glance import TAKEN_UP
from router.policy import ServePolicy, ServeRule, VersionShare
from router.versions import served_version, share_at_random, share_by_key, version_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.explain import CandidateRow
    from router.glance import View
    from router.protocols import Rng
    from router.routes import Route

_NOT_WARM = "no replica that may be picked"


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


def version_rows(view: View, route: Route, now: float) -> tuple[VersionRow, ...]:
    """Return the versions of a model, those of a split that nobody holds among them."""
    open_, out = view.look_at_all(route, now)
    ready: dict[str, int] = {}
    replicas: dict[str, int] = {}
    for glance in open_:
        ready[glance.version] = ready.get(glance.version, 0) + 1
    for glance, reason in out:
        if reason in TAKEN_UP:
            ready[glance.version] = ready.get(glance.version, 0) + 1
    for candidate in route.candidates:
        replicas[candidate.version] = replicas.get(candidate.version, 0) + 1
    serve = route.serve
    weights: dict[str, float] = {}
    if serve is not None:
        weights = {share.version: share.weight for share in serve.shares}
    names = replicas.keys() | weights.keys() | ({serve.version} if serve is not None and serve.version else set())
    shares = _shares(serve, ready)
    return tuple(
        VersionRow(
            version,
            replicas.get(version, 0),
            ready.get(version, 0),
            None if serve is None else shares.get(version, 0.0),
            weights.get(version),
            _note(serve, version, ready, shares),
        )
        for version in sorted(names, key=version_key, reverse=True)
    )


def _shares(serve: ServePolicy | None, ready: Mapping[str, int]) -> dict[str, float]:
    if serve is None:
        return {}
    if serve.rule is ServeRule.SPLIT:
        weights = {share.version: share.weight for share in serve.shares if share.version in ready}
        total = sum(weights.values())
        return {version: weight / total for version, weight in weights.items()} if total else {}
    served = serve.version if serve.rule is ServeRule.PINNED else served_version(serve, ready)
    return {served: 1.0} if served is not None and served in ready else {}


def _note(serve: ServePolicy | None, version: str, ready: Mapping[str, int], shares: Mapping[str, float]) -> str:
    """Say why a version has the share that it has."""
    if serve is None:
        return "" if version in ready else _NOT_WARM
    if serve.rule is ServeRule.SPLIT:
        weight = next((share.weight for share in serve.shares if share.version == version), None)
        if not weight:
            return "not in the split" if weight is None else "its weight is 0"
        if version not in ready:
            return f"{_NOT_WARM}: its share goes to the others"
        return "with what those leave that have nobody" if len(shares) < _weighty(serve) else ""
    if serve.rule is ServeRule.PINNED:
        if version != serve.version:
            return f"requests that name no version go to {serve.version}"
        return "" if version in ready else _NOT_WARM
    if version in shares:
        return "the newest that has a replica that may be picked"
    if version not in ready:
        return _NOT_WARM
    return f"older than {next(iter(shares))}"


def _weighty(serve: ServePolicy) -> int:
    return sum(share.weight > 0 for share in serve.shares)


def explained(
    view: View, route: Route, of_version: Mapping[str, Route], now: float, rng: Rng, key: bytes | None
) -> Explanation:
    """Lay open a decision on a route of all versions; ``of_version`` are the routes of each one.

    In a split, ``key`` is first what keeps a caller at its version, then what the balancer goes by.
    """
    rows = version_rows(view, route, now)
    serve = route.serve
    takers = [VersionShare(row.version, row.share) for row in rows if row.share and row.version in of_version]
    if serve is None or serve.rule is not ServeRule.SPLIT or not takers:
        return replace(explain(view, route, now, rng, key), serve=described(serve), versions=rows)
    sticky = serve.header is not None and key is not None
    taken = takers[share_by_key(takers, key) if sticky and key is not None else share_at_random(takers, rng())]
    chosen = explain(view, of_version[taken.version], now, rng, key)
    why = "by its key" if sticky else "at random"
    return replace(
        chosen,
        route=route.key,
        version="",
        law=f"version {taken.version} of the split, {why}; then {chosen.law}",
        rows=split_rows(view, route, of_version, rows, now),
        serve=described(serve),
        versions=rows,
    )


def versions_row(view: View, route: Route, of_version: Mapping[str, Route], now: float, *, default: bool) -> RouteRow:
    """Show a route of all versions, of which not all take its requests alike."""
    rows = version_rows(view, route, now)
    shown = route_row(view, route, now, default=default)
    serve = route.serve
    if serve is not None and serve.rule is ServeRule.SPLIT:
        shown = replace(shown, candidates=split_rows(view, route, of_version, rows, now))
    return replace(shown, serve=described(serve), versions=rows)


def split_rows(
    view: View, route: Route, of_version: Mapping[str, Route], versions: tuple[VersionRow, ...], now: float
) -> tuple[CandidateRow, ...]:
    """Return the candidates of a split: each one's share of its version's share, and those that are left out."""
    taking: list[CandidateRow] = []
    for version in versions:
        share, own = version.share, of_version.get(version.version)
        if share and own is not None:
            rows = route_row(view, own, now, default=False).candidates
            taking += [replace(row, share=row.share * share) for row in rows if row.reason is None]
    taking.sort(key=lambda row: (-row.share, row.endpoint, row.version))
    rest = route_row(view, route, now, default=False).candidates
    return (*taking, *(row for row in rest if row.reason is not None))
