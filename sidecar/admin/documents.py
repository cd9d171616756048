"""What the admin API shows, as plain values that turn into JSON. Pure: from the context and a moment."""

from __future__ import annotations

import itertools
import os
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from router.affinity import blocks_of
from router.breaker import GuardState
from router.evidence import breaker_row
from router.model import HTTP, WHOLE
from router.outcomes import Reason
from router.overload import Level
from router.policy import OnNoCandidate
from router.urls import masked_url
from sidecar.admin.ladders import ladder_of, ladders
from sidecar.admin.moments import moment
from sidecar.admin.queues import endpoint_limits, queues
from sidecar.faults.checking import document_of
from sidecar.telemetry.page import OVERLOAD_NOW, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.explain import CandidateRow, RouteRow
    from sidecar.admin.context import Context


MOST_BREAKERS = 256
"""Breakers that are named in a health document at most; the others are counted."""


class UnknownModelError(LookupError):
    """Nobody knows the model, or it leads to more than one route; ``known`` are the names that would be answered."""

    def __init__(self, name: str, known: list[str], why: str = "") -> None:
        super().__init__(f"no route for {name!r}{why}")
        self.known = known


def health(context: Context, now: float) -> dict[str, Any]:
    """Return the liveness document: that this process runs, and how the others do."""
    return {
        "status": "ok",
        "version": context.version,
        "sidecar": context.sidecar_id,
        "uptime_s": round(now - context.started_at, 3),
        "supervisor_pid": os.getppid(),
        "config": context.config.revision,
        "store_mode": context.keeper.roster.mode.value,
        "processes": processes(context, now),
        "degraded": {one["model"]: one["step"] for one in ladders(context, now) if one["step"] != "replica"},
    }


def breakers(context: Context, now: float) -> dict[str, Any]:
    """Return how many breakers are in which state, and each that is not closed, with what it opened on."""
    states = dict.fromkeys((state.value for state in GuardState), 0)
    out: list[dict[str, Any]] = []
    for id, endpoint in sorted(context.keeper.cluster.endpoints.items()):  # noqa: A001
        for candidate in endpoint.candidates.values():
            row = breaker_row(candidate, now)
            states[row.state.value] += 1
            if row.state is not GuardState.CLOSED and len(out) < MOST_BREAKERS:
                where = {"endpoint": id, "model": candidate.model, "version": candidate.version}
                out.append(where | msgspec.to_builtins(row))
    return {"states": states, "not_closed": out}


def processes(context: Context, now: float) -> list[dict[str, Any]]:
    """Return the data processes: whether they speak, since when, and what they accept on."""
    return [
        {
            "index": process.index,
            "pid": page.words[2],
            "up": process.speaks(now),
            "uptime_s": round(max(0.0, now - page.words[3] / 1e9), 3) if page.words[3] else None,
            "behind": port.behind,
            "listeners": [
                {"listener": one.listener, "address": one.address, "backlog": one.backlog}
                for one in process.listeners.values()
            ],
        }
        for process, page, port in zip(context.keeper.processes, context.pages, context.keeper.feed.ports, strict=True)
    ]


def not_ready(context: Context, now: float) -> list[str]:
    """Return why this sidecar should get no traffic; nothing where it should. The store alone is never a reason.

    A worker whose quarantine is over counts: only a request finds out whether it answers again. So does one at its
    limit, which has room again with the next request that ends there, and a cold replica of a lazy model: the first
    request has it loaded.
    """
    reasons: list[str] = []
    if context.draining and not context.handed_over:
        reasons.append("draining")
    if not any(process.speaks(now) for process in context.keeper.processes):
        reasons.append("no data process speaks")
    reasons += _overloaded(context, now)
    routes = context.keeper.cluster.routes(now)
    lazy = {model.name for model in context.settings.models if model.on_no_candidate is OnNoCandidate.LAZY}
    if not any(_routable(row, lazy=_loads(route, lazy)) for route in routes for row in route.candidates):
        reasons.append(f"no routable worker for any model ({_why_nobody(routes)})")
    return reasons


def _loads(route: RouteRow, lazy: set[str]) -> bool:
    return route.model in lazy and route.protocol == HTTP


def _routable(row: CandidateRow, *, lazy: bool) -> bool:
    if lazy and row.reason is Reason.NOT_WARM:
        return True
    return row.reason is None or row.reason is Reason.AT_LIMIT or row.probe_due


def _overloaded(context: Context, now: float) -> Iterator[str]:
    """Say which listeners have no data process that takes new requests, of those that speak, and for want of what."""
    short = [
        {resource for resource, level in OVERLOAD_NOW.items() if page.words[page.scalar(level)] == Level.HARD}
        for page in context.pages
    ]
    for listener in context.settings.listeners:
        serving = [
            short[process.index] for process in context.keeper.processes[: listener.processes] if process.speaks(now)
        ]
        if serving and all(serving):
            names = ", ".join(sorted(set().union(*serving)))
            yield f"overload: no data process of {listener.address} takes new requests ({names})"


def _why_nobody(routes: tuple[RouteRow, ...]) -> str:
    parts = []
    for route in itertools.islice((route for route in routes if not route.version), 8):
        causes = sorted({str(row.reason) for row in route.candidates})
        parts.append(f"{route.key}: {', '.join(causes) or 'no endpoints'}")
    return "; ".join(parts) or "no model known"


def routes(context: Context, now: float) -> dict[str, Any]:
    """Return every route with its candidates, weights and reasons."""
    return {
        "store_mode": context.keeper.roster.mode.value,
        "draining": context.draining,
        "listeners": list(context.listen_addresses),
        "routes": context.keeper.cluster.routes(now),
        "ladders": ladders(context, now),
        "queues": queues(context),
        "endpoint_limits": endpoint_limits(context),
    }


def explain(context: Context, model: str, now: float, key: str = "") -> dict[str, Any]:
    """Return the decision that would be made now for ``NAME[@VERSION][#SHARD]``, and a request with ``key``.

    ``ladder`` is how far the model is degraded, where it has steps for that. ``queue`` is what waits for it. ``faults``
    are those in force that may strike such a request.

    Raises:
        UnknownModelError: there is no such route.
    """
    cluster = context.keeper.cluster
    whole, _, shard = model.partition("#")
    name, _, version = whole.partition("@")
    route = cluster.route(name, version)
    if route is None or not route.candidates:  # nobody serves it over HTTP
        other = cluster.route(name, version, "grpc")
        route = other if other is not None and (route is None or other.candidates) else route
    if route is not None and shard:
        route = next((one for one in route.shards if str(one.shard) == shard), None)
    if route is None:
        raise UnknownModelError(model, list(dict.fromkeys(row.key for row in cluster.routes(now))))
    if route.shards and not key:
        shards = [one.key for one in route.shards]
        raise UnknownModelError(model, shards, " itself, as each shard answers for itself: name one, or a key")
    raw = key.encode("utf-8", "surrogatepass") or None
    if raw is not None and not route.shards and route.policy.affinity is not None:
        raw = blocks_of(raw, route.policy.affinity)
    explanation = cluster.explain(route, now, context.rng, raw)
    document: dict[str, Any] = msgspec.to_builtins(explanation)
    queue = next((row for row in queues(context) if row["model"] == route.model), None)
    concerned = [
        document_of(rule, now)
        for rule in context.keeper.roster.faults.values()
        if rule.model in ("", route.model)
        and (not rule.version or not route.version or rule.version == route.version)
        and (rule.shard is None or route.shard in (None, rule.shard))
    ]
    return document | {"ladder": ladder_of(context, route.model, now), "queue": queue, "faults": concerned}


def endpoints(context: Context, now: float) -> dict[str, Any]:
    """Return what each endpoint last reported, and what this sidecar thinks of it."""
    keeper = context.keeper
    shown_as = {
        (row.endpoint, row.model, row.version, row.shard): row
        for route in keeper.cluster.routes(now)
        if not route.version
        for row in route.candidates
    }
    rows = []
    for record, source, heard_at in keeper.roster.records():
        endpoint = keeper.cluster.endpoints.get(record.id)
        row = msgspec.to_builtins(record if endpoint is None else endpoint.record)  # with load reports in answers
        for replica in row["replicas"]:
            at = replica.pop("proven_at")
            replica["proven_ago_s"] = None if at is None or at == -inf else round(max(0.0, now - at), 3)
        row |= {
            "source": source,
            "age_s": None if record.static else round(max(0.0, now - heard_at), 3),
            "held": record.id in keeper.roster.held,
        }
        if endpoint is not None:
            row |= {
                "quarantined": endpoint.quarantine.active,
                "in_flight": endpoint.in_flight + endpoint.peers_in_flight,
            }
            for replica in row["replicas"]:
                of = (replica["model"], replica["version"])
                candidates = endpoint.candidates
                candidate = candidates.get((*of, WHOLE)) or candidates.get((*of, replica["shard"]))
                if candidate is not None:
                    shown = msgspec.to_builtins(breaker_row(candidate, now))
                    replica |= {"breaker": shown, "p95_ms": candidate.latency.p95_ms}
                    shard = None if candidate.shard == WHOLE else candidate.shard
                    judged = shown_as.get((record.id, *of, shard))
                    if judged is not None:
                        replica |= {"out": judged.reason, "lacks": judged.lacks}
        rows.append(row)
    away = sorted(held for held in keeper.roster.held if held not in keeper.roster)
    return {"endpoints": rows, "held_and_away": away}


def cache(context: Context, now: float) -> dict[str, Any]:
    """Return what is kept of each model that keeps answers or has another ladder."""
    return {"models": [{"model": one["model"], **one["cache"]} for one in ladders(context, now)]}


def config(context: Context) -> dict[str, Any]:
    """Return the effective settings; credentials are masked, files that hold them are only named."""
    document: dict[str, Any] = msgspec.to_builtins(context.settings)
    document["state"]["url"] = masked_url(document["state"]["url"])
    return document


def config_status(context: Context) -> dict[str, Any]:
    """Return what is in force, since when, who runs with it, and what is wrong with the source where it is not it."""
    state = context.config
    document: dict[str, Any] = msgspec.to_builtins(state)
    for name in ("asked_at", "sequence"):
        del document[name]
    document["loaded_at"] = moment(state.loaded_at)
    document["bad_since"] = None if state.bad_since is None else moment(state.bad_since)
    document["processes"] = [
        {"index": process.index, "current": page.words[page.scalar(Scalar.CONFIG_NOW)] == state.sequence}
        for process, page in zip(context.keeper.processes, context.pages, strict=True)
    ]
    return document


def faults(context: Context, now: float) -> dict[str, Any]:
    """Return the faults in force."""
    return {"faults": [document_of(rule, now) for rule in context.keeper.roster.faults.values()]}
