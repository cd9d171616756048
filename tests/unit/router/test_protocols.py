"""A model may be served over HTTP and over gRPC: each kind of caller gets its own kind of endpoint, by the same law."""

from __future__ import annotations

import random

import pytest

from router.cluster import Cluster
from router.model import EndpointGone, EndpointRecord, EndpointSeen, GoneReason, Replica, Tick
from router.outcomes import AttemptResult, Reason
from router.policy import ModelPolicy, Policies
from router.routes import Attempt, NoCandidate, Route

NOW = 50.0


def cluster(*models: ModelPolicy) -> Cluster:
    return Cluster(Policies(), models or (ModelPolicy("m", default=True), ModelPolicy("n")), NOW)


def add(made: Cluster, id_: str, protocol: str, *models: str) -> None:
    replicas = tuple(Replica(name, version) for name, _, version in (model.partition("@") for model in models))
    record = EndpointRecord(id_, f"{protocol}://a:1", protocol=protocol, replicas=replicas, static=True)
    made.apply(EndpointSeen(record, NOW), NOW)


def picked(made: Cluster, route: Route | None, tried: str = "") -> set[str]:
    """Return who is picked in many choices."""
    assert route is not None
    rng = random.Random(1).random
    out = set()
    for _ in range(60):
        attempt = made.choose(route, NOW, rng, made.endpoints.get(tried))
        if isinstance(attempt, NoCandidate):
            return set()
        out.add(attempt.endpoint.id)
        made.done(attempt, AttemptResult.CANCELLED, NOW)
    return out


def test_each_protocol_picks_its_own() -> None:
    made = cluster()
    add(made, "h0", "http", "m")
    add(made, "h1", "http", "m@2")
    add(made, "g0", "grpc", "m")
    add(made, "g1", "grpc", "m@2")
    assert picked(made, made.route("m")) == {"h0", "h1"}
    assert picked(made, made.route("m", "", "grpc")) == {"g0", "g1"}
    assert picked(made, made.route("m", "2", "grpc")) == {"g1"}
    assert picked(made, made.default_route) == {"h0", "h1"}
    assert picked(made, made.default_route_of("grpc")) == {"g0", "g1"}
    assert picked(made, made.route("m", "", "grpc"), tried="g0") == {"g1"}


def test_a_configured_model_that_nobody_serves_over_a_protocol_is_known_all_the_same() -> None:
    made = cluster()
    add(made, "h0", "http", "m", "learned")
    route = made.route("n", "", "grpc")
    assert isinstance(route, Route)
    nobody = made.choose(route, NOW, random.random)
    assert isinstance(nobody, NoCandidate)
    assert nobody.reason is Reason.NO_ENDPOINTS
    assert made.route("learned") is not None
    assert made.route("learned", "", "grpc") is None
    assert made.missing("learned", "", "grpc") is Reason.UNKNOWN_MODEL
    assert made.missing("n", "7", "grpc") is Reason.WRONG_VERSION


def test_a_default_model_that_is_served_over_http_alone_is_none_for_grpc() -> None:
    made = cluster()
    assert made.default_route_of("grpc") is not None, "nobody serves it yet, so nothing says who will"
    before = made.generation
    add(made, "h0", "http", "m")
    assert made.generation != before
    assert made.default_route_of("grpc") is None
    assert made.default_route_of("grpc", "m") is None
    assert made.route("m", "", "grpc") is not None, "by its name it is known"
    assert made.default_route_of("grpc") is None
    assert made.default_route_of("grpc", "n") is not None
    add(made, "g0", "grpc", "m")
    assert picked(made, made.default_route_of("grpc")) == {"g0"}


def test_a_default_model_stays_one_for_a_while_after_its_last_endpoint_of_a_protocol() -> None:
    """Its workers may just be starting again: their callers are told to come back, not that there is no such thing."""
    made = cluster()
    add(made, "h0", "http", "m")
    add(made, "g0", "grpc", "m")
    made.apply(EndpointGone("g0", GoneReason.EXPIRED, NOW), NOW)
    until = NOW + Policies().freshness.local_after_s
    made.apply(Tick(), until - 1)
    assert made.default_route_of("grpc") is not None
    before = made.generation
    made.apply(Tick(), until)
    assert made.default_route_of("grpc") is None
    assert made.generation != before
    assert made.default_route is not None


def test_a_failure_of_one_protocol_s_endpoint_is_not_the_other_s() -> None:
    made = cluster()
    add(made, "h0", "http", "m")
    add(made, "g0", "grpc", "m")
    route = made.route("m", "", "grpc")
    assert route is not None
    attempt = made.choose(route, NOW, random.random)
    assert isinstance(attempt, Attempt)
    made.done(attempt, AttemptResult.CONNECT_REFUSED, NOW)
    assert picked(made, made.route("m", "", "grpc")) == set()
    assert picked(made, made.route("m")) == {"h0"}
    assert made.routable(NOW, "http")
    assert not made.routable(NOW, "grpc")


def test_learned_routes_of_a_protocol_are_forgotten_with_their_last_endpoint() -> None:
    made = cluster()
    add(made, "g0", "grpc", "learned")
    made.apply(EndpointGone("g0", GoneReason.DEREGISTERED, NOW), NOW)
    assert made.route("learned", "", "grpc") is not None
    made.configure(Policies(), (ModelPolicy("m", default=True),), NOW + 1000)
    assert made.route("learned", "", "grpc") is None


def test_rows_show_each_protocol_once_it_has_somebody() -> None:
    made = cluster()
    add(made, "g0", "grpc", "m")
    made.route("n", "", "grpc")
    rows = [(row.key, row.protocol, row.default, len(row.candidates)) for row in made.routes(NOW)]
    assert ("m", "grpc", True, 1) in rows
    assert ("m", "http", True, 0) not in rows
    assert ("n", "http", False, 0) in rows


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_reload_keeps_each_protocol_s_endpoints(protocol: str) -> None:
    made = cluster()
    add(made, "e0", protocol, "m")
    made.configure(Policies(), (ModelPolicy("m", default=True, idempotent=True),), NOW)
    route = made.route("m", "", protocol)
    assert picked(made, route) == {"e0"}
    assert route is not None
    assert route.policy.idempotent
