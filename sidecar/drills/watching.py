"""What the admin API answers, as a drill keeps it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sidecar.drills.record import Look, Scrape, Seen, Share
from sidecar.drills.scenario import Being

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.cli.shapes import Candidate, Route, Routes
    from sidecar.drills.scenario import Expect

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WORST = ("closed", "half_open", "open")


def look_of(at: float, routes: Routes, *, ready: bool | None) -> Look:
    """Return what the routes showed at the moment ``at``."""
    rows: dict[str, list[Candidate]] = {}
    for route in routes.routes:
        for candidate in route.candidates:
            rows.setdefault(candidate.endpoint, []).append(candidate)
    return Look(
        at=at,
        endpoints={endpoint: _seen(found) for endpoint, found in rows.items()},
        routes={route.key: _share(route) for route in routes.routes},
        steps={ladder.model: ladder.step for ladder in routes.ladders},
        store=routes.store_mode,
        ready=ready,
    )


def _seen(rows: list[Candidate]) -> Seen:
    """Return one endpoint over all its routes: out where it is out of each, with the first reason."""
    reasons = [row.reason or "" for row in rows]
    return Seen(
        out=reasons[0] if all(reasons) else "",
        breaker=max((row.breaker.state for row in rows), key=_WORST.index),
        state=next((row.state for row in rows if row.state != "warm"), "warm"),
    )


def _share(route: Route) -> Share:
    versions: dict[str, float] = {}
    for row in route.candidates:
        versions[row.version] = versions.get(row.version, 0.0) + row.share
    versions |= {one.version: one.share for one in route.versions if one.share is not None}
    return Share(
        picked=sum(row.reason is None for row in route.candidates),
        endpoints={row.endpoint: row.share for row in route.candidates},
        versions=versions,
    )


def scrape_of(at: float, text: str) -> Scrape:
    """Return the counters that drills go by, from the Prometheus text of ``GET /metrics``."""
    outcomes: dict[str, float] = {}
    buckets: dict[float, float] = {}
    picks: dict[str, float] = {}
    single = {"warmroute_attempts_total": 0.0, "warmroute_faults_injected_total": 0.0, "warmroute_retries_total": 0.0}
    for name, pairs, value in _SAMPLE.findall(text):
        if name == "warmroute_requests_total":
            outcome = dict(_LABEL.findall(pairs)).get("outcome", "")
            outcomes[outcome] = outcomes.get(outcome, 0.0) + float(value)
        elif name == "warmroute_request_duration_seconds_bucket":
            bound = float(dict(_LABEL.findall(pairs)).get("le", "inf"))
            buckets[bound] = buckets.get(bound, 0.0) + float(value)
        elif name in single:
            single[name] += float(value)
        if name == "warmroute_attempts_total":
            endpoint = dict(_LABEL.findall(pairs)).get("endpoint", "")
            picks[endpoint] = picks.get(endpoint, 0.0) + float(value)
    return Scrape(
        at=at,
        outcomes=outcomes,
        buckets=tuple(sorted(buckets.items())),
        attempts=single["warmroute_attempts_total"],
        injected=single["warmroute_faults_injected_total"],
        retries=single["warmroute_retries_total"],
        picks=picks,
    )


def unmet(expect: Expect, look: Look | None, picked: float | None = None) -> list[str]:
    """Return what of ``expect`` is not so in ``look``, as it is instead; nothing where all of it is.

    ``picked`` is the endpoint's share of late; None where too few attempts are known to tell.
    """
    if look is None:
        return ["the sidecar does not answer"]
    return [text for held, text in (*_conditions(expect, look), *_of_picks(expect, picked)) if not held]


def expected(expect: Expect) -> str:
    """Return an expectation in words."""
    parts = []
    if expect.being is not None:
        parts.append(f"{expect.endpoint} is {expect.being.value.replace('_', ' ')}")
    if expect.reason is not None:
        parts.append(f"{expect.endpoint} is out as {expect.reason.value}")
    if expect.step is not None:
        parts.append(f"{expect.model} is answered by {expect.step.value}")
    if expect.picked is not None:
        parts.append(f"at least {expect.picked} replicas of {expect.model} take requests")
    whose = f"{expect.endpoint or expect.version} of {expect.model}"
    if expect.share_at_most is not None:
        parts.append(f"share of {whose} at most {expect.share_at_most:g}")
    if expect.share_at_least is not None:
        parts.append(f"share of {whose} at least {expect.share_at_least:g}")
    if expect.weight_at_most is not None:
        parts.append(f"weight of {whose} at most {expect.weight_at_most:g}")
    if expect.weight_at_least is not None:
        parts.append(f"weight of {whose} at least {expect.weight_at_least:g}")
    if expect.store is not None:
        parts.append(f"store is {expect.store.value}")
    if expect.ready is not None:
        parts.append("ready" if expect.ready else "not ready")
    return f"{', '.join(parts)} within {expect.within_s:g} s"


def _conditions(expect: Expect, look: Look) -> Iterable[tuple[bool, str]]:
    seen = look.endpoints.get(expect.endpoint)
    if expect.being is not None:
        yield _is(seen, expect.being), f"{expect.endpoint} is {_shown(seen)}"
    if expect.reason is not None:
        yield seen is not None and seen.out == expect.reason.value, f"{expect.endpoint} is {_shown(seen)}"
    if expect.step is not None:
        step = look.steps.get(expect.model, "replica")
        yield step == expect.step.value, f"{expect.model} is answered by {step}"
    route = look.routes.get(expect.model, Share())
    if expect.picked is not None:
        yield route.picked >= expect.picked, f"{route.picked} replicas of {expect.model} take requests"
    weight = route.versions.get(expect.version, 0.0) if expect.version else route.endpoints.get(expect.endpoint, 0.0)
    if expect.weight_at_most is not None:
        yield weight <= expect.weight_at_most, f"weight is {weight:.3g}"
    if expect.weight_at_least is not None:
        yield weight >= expect.weight_at_least, f"weight is {weight:.3g}"
    if expect.store is not None:
        yield look.store == expect.store.value, f"store is {look.store}"
    if expect.ready is not None:
        yield look.ready is expect.ready, "ready" if look.ready else "not ready"


def _of_picks(expect: Expect, picked: float | None) -> Iterable[tuple[bool, str]]:
    shown = "too few attempts of late to tell the share" if picked is None else f"share is {picked:.3g}"
    if expect.share_at_most is not None:
        yield picked is not None and picked <= expect.share_at_most, shown
    if expect.share_at_least is not None:
        yield picked is not None and picked >= expect.share_at_least, shown


def _is(seen: Seen | None, being: Being) -> bool:
    if being is Being.OUT:
        return seen is None or bool(seen.out)
    if being is Being.NOT_WARM:
        return seen is None or seen.state != "warm"
    if seen is None:
        return False
    if being is Being.WARM:
        return seen.state == "warm"
    return not seen.out if being is Being.PICKED else seen.breaker == being.value


def _shown(seen: Seen | None) -> str:
    if seen is None:
        return "gone"
    return f"{seen.state}, {seen.out or 'picked'}, breaker {seen.breaker}"
