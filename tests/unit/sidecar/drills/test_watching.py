"""What the admin API answers, as a drill reads it."""

from __future__ import annotations

import math

import msgspec
import pytest

from router.model import StoreMode
from router.outcomes import Reason
from sidecar.cli.shapes import Routes
from sidecar.drills.record import Look, Scrape, Seen, Share
from sidecar.drills.scenario import Being, Expect, Step
from sidecar.drills.watching import expected, look_of, scrape_of, unmet


def candidate(endpoint: str, version: str, reason: str | None, share: float, breaker: str = "closed") -> object:
    empty = dict.fromkeys(("for_s", "left_s", "age_s", "warm_for_s", "p95_ms", "ewma_ms", "expected_wait_ms"))
    return empty | {
        "endpoint": endpoint,
        "address": "http://x",
        "version": version,
        "state": "warm",
        "reason": reason,
        "freshness": 1,
        "ramp": 1,
        "weight": share,
        "share": share,
        "floored": False,
        "terms": [],
        "ewma_known": False,
        "in_flight": 0,
        "peers_in_flight": 0,
        "breaker": {"state": breaker},
    }


def routes() -> Routes:
    document = {
        "store_mode": "live",
        "draining": False,
        "routes": [
            {
                "key": "m",
                "default": False,
                "idempotent": True,
                "candidates": [
                    candidate("a", "1", None, 0.75),
                    candidate("b", "1", None, 0.25, "half_open"),
                    candidate("c", "2", "breaker_open", 0, "open"),
                ],
            },
            {
                "key": "n",
                "default": False,
                "idempotent": True,
                "candidates": [candidate("a", "1", "not_warm", 0), candidate("c", "1", "stale", 0)],
            },
        ],
    }
    return msgspec.convert(document, Routes)


def test_a_look_has_the_worst_breaker_and_who_is_out_of_everything() -> None:
    look = look_of(1.0, routes(), ready=None)
    assert look.endpoints == {
        "a": Seen(),
        "b": Seen("", "half_open"),
        "c": Seen("breaker_open", "open"),
    }
    assert look.routes["m"] == Share(2, {"a": 0.75, "b": 0.25, "c": 0.0}, {"1": 1.0, "2": 0.0})
    assert look.store == "live"


METRICS = """\
# HELP warmroute_requests_total Requests by how they ended.
warmroute_requests_total{model="a",outcome="ok"} 3
warmroute_requests_total{model="b",outcome="ok"} 4
warmroute_requests_total{model="b",outcome="fault"} 1
warmroute_request_duration_seconds_bucket{model="a",le="0.01"} 2
warmroute_request_duration_seconds_bucket{model="b",le="0.01"} 3
warmroute_request_duration_seconds_bucket{model="a",le="+Inf"} 3
warmroute_attempts_total{endpoint="x",result="success"} 9
warmroute_faults_injected_total 1
"""


def test_a_scrape_is_over_all_models() -> None:
    buckets = ((0.01, 5.0), (math.inf, 3.0))
    assert scrape_of(2.0, METRICS) == Scrape(2.0, {"ok": 7.0, "fault": 1.0}, buckets, 9.0, 1.0, 0.0, {"x": 9.0})


LOOK = Look(
    0,
    {"a": Seen(), "b": Seen("breaker_open", "open")},
    {"m": Share(1, {"a": 1.0, "b": 0.0}, {"1": 0.9, "2": 0.1})},
    {"m": "cache"},
    "live",
    ready=True,
)


@pytest.mark.parametrize(
    ("expect", "missing"),
    [
        (Expect(within_s=1, endpoint="b", being=Being.OUT), []),
        (Expect(within_s=1, endpoint="b", being=Being.OPEN), []),
        (Expect(within_s=1, endpoint="b", reason=Reason.BREAKER_OPEN), []),
        (Expect(within_s=1, endpoint="b", reason=Reason.STALE), ["b is warm, breaker_open, breaker open"]),
        (Expect(within_s=1, endpoint="a", reason=Reason.STALE), ["a is warm, picked, breaker closed"]),
        (Expect(within_s=1, endpoint="gone", reason=Reason.STALE), ["gone is gone"]),
        (Expect(within_s=1, endpoint="gone", being=Being.OUT), []),
        (Expect(within_s=1, endpoint="gone", being=Being.PICKED), ["gone is gone"]),
        (Expect(within_s=1, endpoint="a", being=Being.PICKED), []),
        (Expect(within_s=1, endpoint="a", being=Being.OUT), ["a is warm, picked, breaker closed"]),
        (Expect(within_s=1, endpoint="b", being=Being.PICKED), ["b is warm, breaker_open, breaker open"]),
        (Expect(within_s=1, endpoint="b", being=Being.WARM), []),
        (Expect(within_s=1, endpoint="b", being=Being.NOT_WARM), ["b is warm, breaker_open, breaker open"]),
        (Expect(within_s=1, endpoint="gone", being=Being.NOT_WARM), []),
        (Expect(within_s=1, model="m", step=Step.CACHE), []),
        (Expect(within_s=1, model="n", step=Step.CACHE), ["n is answered by replica"]),
        (Expect(within_s=1, model="m", picked=2), ["1 replicas of m take requests"]),
        (Expect(within_s=1, model="m", version="2", weight_at_most=0.05), ["weight is 0.1"]),
        (Expect(within_s=1, model="m", endpoint="a", weight_at_least=0.5), []),
        (Expect(within_s=1, model="m", endpoint="a", share_at_most=0.3), []),  # what was picked, not the weight
        (Expect(within_s=1, model="m", endpoint="a", share_at_least=0.5), ["share is 0.25"]),
        (Expect(within_s=1, store=StoreMode.FROZEN, ready=True), ["store is live"]),
        (Expect(within_s=1, ready=False), ["ready"]),
    ],
)
def test_an_expectation(expect: Expect, missing: list[str]) -> None:
    assert unmet(expect, LOOK, 0.25) == missing
    assert unmet(expect, None) == ["the sidecar does not answer"]


def test_a_share_of_which_too_little_is_known_is_not_so() -> None:
    for expect in (
        Expect(within_s=1, model="m", endpoint="a", share_at_most=1),
        Expect(within_s=1, model="m", endpoint="a", share_at_least=0),
    ):
        assert unmet(expect, LOOK) == ["too few attempts of late to tell the share"]


def test_an_expectation_in_words() -> None:
    expect = Expect(within_s=2, endpoint="a", being=Being.OUT, model="m", step=Step.CACHE, ready=False)
    assert expected(expect) == "a is out, m is answered by cache, not ready within 2 s"
