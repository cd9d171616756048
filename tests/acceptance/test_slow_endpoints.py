"""Endpoints that pause now and then: what hedging makes of the tail, and how exactly a caller's time is kept."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.load import Ask, Load
from tests.support.pausing_origin import counts, pausing_origin
from tests.support.product import Sidecar, running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(90)]

PAUSE_S = 0.5
EVERY = 40
"""One request in so many is slow: less than the share beyond P95, so most of the hedges meet a quick endpoint."""
BODIES = [b"the body of request %d." % number for number in range(64)]
ASKS = [Ask("ask", b"POST / HTTP/1.1\r\n", body, body) for body in BODIES]
CLIENTS = 8
RATE_PER_S = 200


class Fleet:
    """A sidecar with one data process in front of two endpoints that pause."""

    def __init__(self, stack: ExitStack, directory: Path, every: int, **model: Any) -> None:
        self.origins = [
            stack.enter_context(pausing_origin(directory / f"origin-{name}.log", every, PAUSE_S)) for name in "ab"
        ]
        settings = {"models": [{"name": "m", "default": True, "endpoints": self.origins, **model}]}
        self.sidecar: Sidecar = stack.enter_context(running(directory, settings=settings, processes=1))

    def load(self, asks: list[Ask], requests: int) -> Load:
        """Ask so often; return all that was answered."""
        rounds = requests // CLIENTS
        with Load(self.sidecar.listen, asks, clients=CLIENTS, rate_per_s=RATE_PER_S, rounds=rounds) as load:
            load.join()
        return load

    def counted(self) -> tuple[int, list[float]]:
        """Return how many requests the endpoints executed, and after how long others were cancelled there."""
        both = [counts(url) for url in self.origins]
        return sum(one["answered"] for one in both), [after for one in both for after in one["left_after_s"]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def quantile(load: Load, ratio: float) -> float:
    took = sorted(answer.ended - answer.began for answer in load.answers)
    return took[int(len(took) * ratio)]


def test_hedging_takes_the_pauses_out_of_the_tail(stack: ExitStack, tmp_path: Path) -> None:
    fleet = Fleet(stack, tmp_path, EVERY, idempotent=True, hedge=True)
    sidecar = fleet.sidecar
    first = fleet.load(ASKS, 240)  # it measures
    load = fleet.load(ASKS, 800)
    assert not first.failed()
    assert not load.failed()
    assert quantile(load, 0.99) < PAUSE_S / 2
    requests = len(first.answers) + len(load.answers)
    sent, won = (sidecar.metric(f"warmroute_hedges{name}_total") for name in ("", "_won"))
    assert 5 <= won <= sent <= 0.2 * requests
    until(lambda: sidecar.metric("warmroute_requests_total", outcome="ok") == requests, "all counted, within a tick")
    until(lambda: sidecar.metric("warmroute_attempts_in_flight") == 0, "nothing in flight")
    assert sidecar.metric("warmroute_attempts_total") == requests + sent
    executed, cancelled = fleet.counted()
    assert requests <= executed + len(cancelled) <= requests + sent
    assert len(cancelled) >= won / 2
    assert sorted(cancelled)[len(cancelled) // 2] < PAUSE_S / 2  # and not only when their pause was over


def test_without_hedging_the_pauses_are_the_tail(stack: ExitStack, tmp_path: Path) -> None:
    """The same endpoints, so that the test above says something."""
    fleet = Fleet(stack, tmp_path, EVERY, idempotent=True)
    load = fleet.load(ASKS, 400)
    assert not load.failed()
    assert quantile(load, 0.99) >= PAUSE_S
    assert fleet.counted() == (len(load.answers), [])


def test_callers_times_are_kept_under_load(stack: ExitStack, tmp_path: Path) -> None:
    """All pause for longer than anybody waits, each caller with a time of its own."""
    fleet = Fleet(stack, tmp_path, 1)
    times_ms = [50, 110, 170, 230, 290]
    asks = [Ask(str(ms), b"POST / HTTP/1.1\r\nx-request-timeout-ms: %d\r\n" % ms, b"x") for ms in times_ms]
    load = fleet.load(asks, 160)
    assert {answer.status for answer in load.answers} == {504}
    assert {answer.error for answer in load.answers} == {""}
    late_s = sorted(answer.ended - answer.began - int(answer.ask) / 1000 for answer in load.answers)
    assert late_s[0] >= -0.002
    assert late_s[int(len(late_s) * 0.95)] < 0.05
    count = len(load.answers)
    assert fleet.sidecar.metric("warmroute_requests_total", outcome="deadline_exceeded") == count
    executed, cancelled = fleet.counted()
    assert executed == 0
    assert len(cancelled) <= count
    assert max(cancelled) < 0.29 + 0.1
    for url in fleet.origins:  # nothing of it was held against anybody
        assert fleet.sidecar.metric("warmroute_endpoint_ejections_total", endpoint=url.rpartition("/")[2]) == 0
