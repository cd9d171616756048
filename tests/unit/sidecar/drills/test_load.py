"""The drill's own load, as requests with their moments, and what became of them."""

from __future__ import annotations

import pytest

from sidecar.drills.load import call_of, timed
from sidecar.drills.scenario import Load, Spacing
from sidecar.traffic.samples import Ended, Sample

LOAD = Load(path="/m/$N", rate_per_s=10, headers={"k": "v$N"}, body='{"id": "$ID"}', distinct=2)


def test_requests_are_evenly_spaced_and_filled_in() -> None:
    requests = list(timed(LOAD, 0.4))
    assert [one.at_s for one in requests] == [0, 0.1, 0.2, pytest.approx(0.3)]
    assert [one.target for one in requests] == ["/m/0", "/m/1", "/m/0", "/m/1"]
    assert requests[1].headers == (("k", "v1"),)
    assert len({one.body for one in requests}) == 4


def test_independent_callers_are_the_same_ones_each_time() -> None:
    load = Load(path="/", rate_per_s=100, spacing=Spacing.RANDOM, for_s=5)
    moments = [one.at_s for one in timed(load, 60)]
    assert moments == [one.at_s for one in timed(load, 60)]
    assert 400 < len(moments) < 600
    assert all(one < 5 for one in moments)
    assert moments == sorted(moments)


@pytest.mark.parametrize(
    ("ended", "status", "ok", "outcome"),
    [
        (Ended.OK, 200, True, "ok"),
        (Ended.STATUS_5XX, 503, False, "http_503"),
        (Ended.CUT, 200, False, "cut"),
        (Ended.TIMED_OUT, 0, False, "timed_out"),
    ],
)
def test_what_became_of_one(ended: Ended, status: int, ok: bool, outcome: str) -> None:
    sample = Sample(1, "", "id", 2.0, 2.5, 2.9, 3.0, ended, status, headers={"warmroute-degraded": "cache"})
    call = call_of(sample, 10.0)
    assert (call.at, call.latency_ms) == (12, 1000)  # from the moment that was meant
    assert (call.ok, call.outcome, call.degraded) == (ok, outcome, "cache")
