"""Requests checked, samples added up, accounts settled."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from sidecar.traffic.accounts import settle
from sidecar.traffic.arrivals import poisson, steady
from sidecar.traffic.requests import Timed, check
from sidecar.traffic.samples import Ended, Sample
from sidecar.traffic.sender import Sender
from sidecar.traffic.summary import Summary, quantile


def sample(number: int, ended: Ended, *, status: int = 200, recorded: Ended | None = None, **headers: str) -> Sample:
    return Sample(
        number=number,
        name="",
        request_id=f"id-{number}",
        intended_s=1.0,
        sent_s=None if ended is Ended.UNSENT else 1.25,
        first_byte_s=1.5,
        ended_s=2.0,
        ended=ended,
        status=status,
        recorded=recorded,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def test_a_quantile_is_a_value_that_was_measured() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert [quantile(ordered, q) for q in (0.0, 0.5, 0.99, 0.991, 1.0)] == [1.0, 50.0, 99.0, 100.0, 100.0]
    assert (quantile([], 0.5), quantile([7.0], 0.99)) == (None, 7.0)


def test_latency_counts_from_the_intended_moment() -> None:
    one = sample(1, Ended.OK)
    assert (one.latency_s, one.lag_s) == (1.0, 0.25)
    assert sample(1, Ended.UNSENT).lag_s == 1.0


def test_a_summary_counts_failures_apart_and_knows_the_recorded_ones() -> None:
    summary = Summary()
    for one in (
        sample(1, Ended.OK, warmroute_degraded="cache"),
        sample(2, Ended.OK),
        sample(3, Ended.HUNG_UP, status=0),
        sample(4, Ended.STATUS_5XX, status=503, recorded=Ended.STATUS_5XX),
        sample(5, Ended.STATUS_4XX, status=404, recorded=Ended.OK),
        sample(6, Ended.TIMED_OUT),
        sample(7, Ended.UNSENT, status=0),
    ):
        summary.add(one)
    assert (summary.requests, summary.failures, summary.new_failures, summary.degraded) == (7, 4, 3, 1)
    assert summary.errors == {"status 503": 1, "status 404": 1, "timed_out": 1, "unsent": 1}
    assert (summary.latencies_s, summary.first_bytes_s, len(summary.lags_s)) == ([1.0, 1.0], [0.5, 0.5], 6)
    assert summary.late


def test_an_account_holds_callers_against_workers() -> None:
    samples = [
        sample(1, Ended.OK),
        sample(2, Ended.OK),
        sample(3, Ended.OK, warmroute_degraded="cache"),
        sample(4, Ended.CUT),
        sample(5, Ended.WRONG),
        sample(6, Ended.TIMED_OUT),
        sample(7, Ended.FALSE_END),
    ]
    account = settle(samples, {"id-1": 1, "id-4": 2, "id-5": 1, "id-6": 1})
    assert (account.lost, account.doubled) == (("id-2",), ("id-4",))
    assert (account.wrong, account.hung, account.false_ends) == (("id-5",), ("id-6",), ("id-7",))
    assert not account.clean
    assert settle(samples[:4]).clean  # nothing is known of executions


def test_arrivals() -> None:
    assert list(steady(4.0, 1.0)) == [0.0, 0.25, 0.5, 0.75]
    times = list(poisson(480.0, 100.0, Random(1)))
    assert times == list(poisson(480.0, 100.0, Random(1))) == sorted(times)
    assert len(times) == pytest.approx(48_000, rel=0.02)
    assert all(a < b for a, b in pairwise(times))


BAD_VALUE = "header A: its value holds a line end or a control character, or is not latin-1"
BAD_TARGET = "must begin with / and hold no blanks, control characters or #"


@pytest.mark.parametrize(
    ("request_", "wrong"),
    [
        (Timed(0.0, "GET", "/v2/models/m?a=%20"), ""),
        (Timed(0.0, "OPTIONS", "*"), ""),
        (Timed(0.0, "G T"), "method 'G T' cannot be sent"),
        (Timed(0.0, "CONNECT"), "method 'CONNECT' cannot be sent"),
        (Timed(0.0, target="/a b"), f"target '/a b' {BAD_TARGET}"),
        (
            Timed(0.0, target="http://a/"),
            f"target 'http://a/' {BAD_TARGET}",
        ),
        (Timed(0.0, headers=(("A B", ""),)), "header name 'A B' is none"),
        (
            Timed(0.0, headers=(("A", "…"),)),
            BAD_VALUE,
        ),
    ],
)
def test_requests_are_checked(request_: Timed, wrong: str) -> None:
    assert check(request_) == wrong


def test_addresses_are_checked() -> None:
    for address in ("grpcs://h:1", "https://h:1", "h:1", "ftp://h:1"):
        with pytest.raises(ValueError, match="address"):
            Sender(address, lambda _: None)
    with pytest.raises(ValueError, match="above 0"):
        Sender("http://h:1", lambda _: None, timeout_s=0)
