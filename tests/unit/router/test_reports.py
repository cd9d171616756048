"""Load reports that come with answers: how long they hold, who hears of them, and what they do to weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.model import LoadReport, LoadsReported, PeerObserved
from router.policy import FreshnessPolicy
from tests.support.fleet import Driven, record

TTL_S = FreshnessPolicy().ttl_s


def pair() -> Driven:
    """Return two equal static endpoints, of whose memory nothing is known."""
    driven = Driven()
    driven.seen(*(record(name, static=True, free=None, total=None) for name in ("a", "b")))
    return driven


def shares(driven: Driven) -> dict[str, float]:
    (row,) = (row for row in driven.cluster.routes(driven.now) if not row.version)
    return {one.endpoint: one.share for one in row.candidates}


def test_what_an_endpoint_says_stands_over_its_record_until_it_is_old() -> None:
    driven = pair()
    endpoint = driven.cluster.endpoints["a"]
    before = endpoint.record
    driven.cluster.reported(endpoint, LoadReport(0.5, 3, 0.25), driven.now)
    told = replace(before, cpu_load=0.5, queue_depth=3, free_memory_ratio=0.25)
    assert endpoint.record == told
    fresh = replace(before, queue_depth=9, free_memory_ratio=1.0)
    driven.seen(fresh)
    assert endpoint.record == told, "a probe is older than an answer"
    driven.cluster.reported(endpoint, LoadReport(queue_depth=1), driven.now)
    assert endpoint.record == replace(fresh, queue_depth=1), "what it does not say any more is the record's"
    driven.wait(TTL_S - 0.5)
    assert endpoint.record.queue_depth == 1
    driven.wait(2.0)
    assert endpoint.record == fresh


def test_free_memory_that_was_reported_moves_weights_and_its_end_moves_them_back() -> None:
    driven = pair()
    assert shares(driven) == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}
    for name, free in (("a", 1.0), ("b", 0.0)):
        driven.cluster.reported(driven.cluster.endpoints[name], LoadReport(free_memory_ratio=free), driven.now)
    driven.wait(0.5)
    assert shares(driven)["a"] > 0.6
    driven.wait(TTL_S + 2.0)
    assert shares(driven) == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_siblings_hear_of_a_report_once_and_go_by_the_newest() -> None:
    first, second = pair(), pair()
    first.cluster.reported(first.cluster.endpoints["a"], LoadReport(0.5), first.now)
    observed = first.cluster.observe(first.now)
    assert [(one.id, one.report) for one in observed] == [("a", LoadReport(0.5))]
    assert first.cluster.observe(first.now) == ()
    there = second.cluster.endpoints["a"]
    second.apply(PeerObserved(1, observed, second.now))
    assert there.record.cpu_load == 0.5
    assert all(one.report is None for one in second.cluster.observe(second.now)), "it is not sent on"
    second.cluster.reported(there, LoadReport(0.9), second.now + 1)
    second.apply(PeerObserved(1, observed, second.now))
    assert there.record.cpu_load == 0.9


def test_a_report_that_says_the_same_again_makes_it_last() -> None:
    driven = pair()
    endpoint = driven.cluster.endpoints["a"]
    for _ in range(4):
        driven.cluster.reported(endpoint, LoadReport(0.5), driven.now)
        driven.wait(TTL_S / 2)
        assert endpoint.record.cpu_load == 0.5


def test_what_was_said_out_of_band_counts_as_what_came_with_an_answer() -> None:
    driven = pair()
    reports = (("a", LoadReport(0.5, 3, 0.25)), ("nobody", LoadReport(1.0)))
    driven.apply(LoadsReported(reports, driven.now))
    assert driven.cluster.endpoints["a"].report == LoadReport(0.5, 3, 0.25)
    assert not driven.shared, "every process hears it from the control process"
    assert driven.cluster.observe(driven.now) == ()
    driven.apply(LoadsReported((("a", LoadReport(0.9)),), driven.now - 1.0))
    assert driven.cluster.endpoints["a"].report == LoadReport(0.5, 3, 0.25), "an older one"
    driven.wait(TTL_S + 2.0)
    assert driven.cluster.endpoints["a"].report is None
