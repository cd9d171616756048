"""What the admin API shows, as plain values that turn into JSON. Pure: from the context and a moment.

What grows with the fleet is made in turns (``router.turns``), or written in pieces with None where a turn is over.
"""

from __future__ import annotations

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
from router.turns import LOOKS, ROWS
from router.urls import masked_url
from sidecar.admin.ladders import ladder_of, ladders
from sidecar.admin.moments import moment
from sidecar.admin.queues import endpoint_limits, queues
from sidecar.admin.written import Rows, spread, write
from sidecar.faults.checking import document_of
from sidecar.telemetry.page import OVERLOAD_NOW, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.endpoint import Endpoint
    from router.model import EndpointRecord, Replica
    from router.placing import Placed
    from router.turns import Turns
    from sidecar.admin.context import Context


MOST_CAUSES = 8
"""Models of which it is said why nobody serves them."""
MOST_KNOWN = 256
"""Routes that are named where none was found."""
MOST_BREAKERS = 256
"""Breakers that are named in a health document at most; the others are counted."""


_Judged = dict[tuple[str, str, str, int], tuple[Reason | None, tuple[str, ...]]]
"""Why a replica may not be picked, and what its group lacks, by endpoint, model, version and shard."""
_PICKED: tuple[None, tuple[str, ...]] = None, ()


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


def breakers(context: Context, now: float) -> Turns[dict[str, Any]]:
    """Return how many breakers are in which state, and each that is not closed, with what it opened on."""
    states = dict.fromkeys((state.value for state in GuardState), 0)
    out: list[dict[str, Any]] = []
    looked = 0
    for id, endpoint in sorted(context.keeper.cluster.endpoints.items()):  # noqa: A001
        for candidate in tuple(endpoint.candidates.values()):
            row = breaker_row(candidate, now)
            states[row.state.value] += 1
            if row.state is not GuardState.CLOSED and len(out) < MOST_BREAKERS:
                where = {"endpoint": id, "model": candidate.model, "version": candidate.version}
                out.append(where | msgspec.to_builtins(row))
            looked += 1
            if looked % LOOKS == 0:
                yield None
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


def not_ready(context: Context, now: float) -> Turns[list[str]]:
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
    lazy = {model.name for model in context.settings.models if model.on_no_candidate is OnNoCandidate.LAZY}
    causes: list[str] = []
    for stood in context.keeper.cluster.standings_in_turns(now):
        if stood is None:
            yield None
            continue
        loads = stood.route.model in lazy and stood.route.protocol == HTTP
        if any(_routable(place, now, lazy=loads) for place in stood.places):
            return reasons
        if not stood.route.version and len(causes) < MOST_CAUSES:
            why = sorted({str(place.reason) for place in stood.places})
            causes.append(f"{stood.route.key}: {', '.join(why) or 'no endpoints'}")
    return [*reasons, f"no routable worker for any model ({'; '.join(causes) or 'no model known'})"]


def _routable(place: Placed, now: float, *, lazy: bool) -> bool:
    if lazy and place.reason is Reason.NOT_WARM:
        return True
    return place.reason is None or place.reason is Reason.AT_LIMIT or place.probe_due(now)


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


def routes(context: Context, now: float) -> Iterator[bytes | None]:
    """Write every route with its candidates, weights and reasons."""
    limits = yield from endpoint_limits(context)
    document = {
        "store_mode": context.keeper.roster.mode.value,
        "draining": context.draining,
        "listeners": list(context.listen_addresses),
        "routes": Rows(
            row if row is None or len(row.candidates) <= ROWS else {**spread(row), "candidates": Rows(row.candidates)}
            for row in context.keeper.cluster.routes_in_turns(now)
        ),
        "ladders": ladders(context, now),
        "queues": queues(context),
        "endpoint_limits": limits,
    }
    yield from write(document)


def explain(context: Context, model: str, now: float, key: str = "", protocol: str = "") -> Iterator[bytes | None]:
    """Write the decision that would be made now for ``NAME[@VERSION][#SHARD]``, and a request with ``key``.

    ``protocol`` is what it comes over; empty: HTTP, or gRPC where nobody serves the model over HTTP.

    ``ladder`` is how far the model is degraded, where it has steps for that. ``queue`` is what waits for it. ``faults``
    are those in force that may strike such a request.

    Raises:
        UnknownModelError: there is no such route.
    """
    cluster = context.keeper.cluster
    whole, _, shard = model.partition("#")
    name, _, version = whole.partition("@")
    route = cluster.route(name, version, protocol or HTTP)
    if not protocol and (route is None or not route.candidates):  # nobody serves it over HTTP
        other = cluster.route(name, version, "grpc")
        route = other if other is not None and (route is None or other.candidates) else route
    if route is not None and shard:
        route = next((one for one in route.shards if str(one.shard) == shard), None)
    if route is None:
        known = yield from _known(context)
        raise UnknownModelError(model, known)
    if route.shards and not key:
        shards = [one.key for one in route.shards]
        raise UnknownModelError(model, shards, " itself, as each shard answers for itself: name one, or a key")
    raw = key.encode("utf-8", "surrogatepass") or None
    if raw is not None and not route.shards and route.policy.affinity is not None:
        raw = blocks_of(raw, route.policy.affinity)
    explanation = yield from cluster.explain_in_turns(route, now, context.rng, raw)
    queue = next((row for row in queues(context) if row["model"] == route.model), None)
    concerned = [
        document_of(rule, now)
        for rule in context.keeper.roster.faults.values()
        if rule.model in ("", route.model)
        and (not rule.version or not route.version or rule.version == route.version)
        and (rule.shard is None or route.shard in (None, rule.shard))
    ]
    document = {**spread(explanation), "rows": Rows(explanation.rows)}
    yield from write(document | {"ladder": ladder_of(context, route.model, now), "queue": queue, "faults": concerned})


def _known(context: Context) -> Turns[list[str]]:
    """Return the routes that could have been asked for, the first so many."""
    known: dict[str, None] = {}
    for route in context.keeper.cluster.routes_by_key():
        if route is None:
            yield None
        elif len(known) < MOST_KNOWN:
            known[route.key] = None
    return list(known)


def endpoints(context: Context, now: float) -> Iterator[bytes | None]:
    """Write what each endpoint last reported, and what this sidecar thinks of it."""
    keeper = context.keeper
    judged: _Judged = {}
    for stood in keeper.cluster.standings_in_turns(now, versions=False):
        yield None
        for place in () if stood is None else stood.places:
            candidate = place.glance.candidate
            of = candidate.endpoint.id, candidate.model, candidate.version, candidate.shard
            judged[of] = _PICKED if place.reason is None else (place.reason, place.lacks)
    away = sorted(held for held in keeper.roster.held if held not in keeper.roster)
    rows = Rows(
        _endpoint(context, now, record, source, heard_at, judged)
        for record, source, heard_at in tuple(keeper.roster.records())
    )
    yield from write({"endpoints": rows, "held_and_away": away})


def _endpoint(
    context: Context,
    now: float,
    record: EndpointRecord,
    source: str,
    heard_at: float,
    judged: _Judged,
) -> dict[str, Any]:
    keeper = context.keeper
    endpoint = keeper.cluster.endpoints.get(record.id)
    said = record if endpoint is None else endpoint.record  # with load reports in answers
    row = spread(said) | {
        "replicas": Rows(_replica(replica, endpoint, now, judged) for replica in said.replicas),
        "source": source,
        "age_s": None if record.static else round(max(0.0, now - heard_at), 3),
        "held": record.id in keeper.roster.held,
    }
    if endpoint is not None:
        row |= {
            "quarantined": endpoint.quarantine.active,
            "in_flight": endpoint.in_flight + endpoint.peers_in_flight,
        }
    return row


def _replica(said: Replica, endpoint: Endpoint | None, now: float, judged: _Judged) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(said)
    at = row.pop("proven_at")
    row["proven_ago_s"] = None if at is None or at == -inf else round(max(0.0, now - at), 3)
    if endpoint is None:
        return row
    of, candidates = (said.model, said.version), endpoint.candidates
    candidate = candidates.get((*of, WHOLE)) or candidates.get((*of, said.shard))
    if candidate is None:
        return row
    row |= {"breaker": msgspec.to_builtins(breaker_row(candidate, now)), "p95_ms": candidate.latency.p95_ms}
    why = judged.get((endpoint.id, *of, candidate.shard))
    return row if why is None else row | {"out": why[0], "lacks": why[1]}


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
