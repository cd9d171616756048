"""Whatever the admin API says of a large fleet is made in turns, each of a bounded amount of work."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from router.model import EndpointGone, GoneReason
from sidecar.admin import documents, status_page
from sidecar.telemetry.bounds import Bounds
from sidecar.telemetry.exposition import render
from tests.support.control_by_hand import ControlByHand, control_by_hand
from tests.support.metrics_text import doubled

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from sidecar.admin.context import Context

    Made = Callable[[Context, float], Iterator[object]]

MOST_CALLS = 8000
"""Calls of functions in one turn: a millisecond or two. All of a page of metrics takes half a million."""
PIECE_BYTES = 256 * 1024


@pytest.fixture(scope="module")
def control() -> Iterator[ControlByHand]:
    """A fleet with a thousand replicas of some models, and one of a thousand models."""
    with control_by_hand(models=[{"name": "m", "default": True}]) as one:
        one.fleet(1000, 3, static=True)
        one.seen("many", [f"own-{number}" for number in range(1000)], static=True)
        for number in range(1000):
            page = one.pages[0]
            page.words[page.endpoint_row(f"e{number}")] += 1
        yield one


class Calls:
    """Counts calls of functions."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _frame: object, event: str, _arg: object) -> None:
        self.count += event in ("call", "c_call")


MADE: dict[str, Made] = {
    "metrics": lambda context, now: render(context, now, Bounds()),
    "routes": documents.routes,
    "explain": lambda context, now: documents.explain(context, "m1", now),
    "endpoints": documents.endpoints,
    "breakers": documents.breakers,
    "not ready": documents.not_ready,
    "page": status_page.render,
}


@pytest.mark.parametrize("what", MADE)
def test_no_turn_does_more_than_so_much(control: ControlByHand, what: str) -> None:
    context, calls = control.context, Calls()
    most, turns = 0, 0
    made = MADE[what](context, context.clock())
    while True:
        calls.count = 0
        sys.setprofile(calls)
        piece = next(made, made)
        sys.setprofile(None)
        most, turns = max(most, calls.count), turns + 1
        if piece is made:
            break
        assert piece is None or isinstance(piece, bytes)
        assert len(piece or b"") <= PIECE_BYTES
    assert most <= MOST_CALLS, (what, most)
    assert turns > 20


def test_a_page_of_metrics_is_whole_though_the_fleet_changes_while_it_is_made() -> None:
    with control_by_hand() as control:
        control.fleet(60, 4)
        context = control.context
        text = b""
        for turn, piece in enumerate(render(context, context.clock(), Bounds())):
            text += piece or b""
            control.seen(f"new{turn}", [f"m{turn % 4}", f"new{turn}"])
            context.keeper.found("redis", EndpointGone(f"e{turn}", GoneReason.DEREGISTERED, context.clock()))
        page = text.decode()
        assert doubled(page) == []
        shares: dict[str, float] = defaultdict(float)
        for line in page.splitlines():
            if line.startswith("warmroute_replica_share_ratio"):
                shares[line.split('model="')[1].split('"')[0]] += float(line.rpartition(" ")[2])
        assert shares
        assert {round(share, 6) for share in shares.values()} <= {1.0, 0.0}
        assert page.endswith("\n")


def test_routes_written_in_turns_are_the_routes() -> None:
    with control_by_hand() as control:
        control.fleet(5, 2)
        context, now = control.context, control.context.clock()
        document = json.loads(b"".join(filter(None, documents.routes(context, now))))
        rows = context.keeper.cluster.routes(now)
        assert [route["key"] for route in document["routes"]] == [row.key for row in rows]
        assert [len(route["candidates"]) for route in document["routes"]] == [len(row.candidates) for row in rows]
        assert list(document) == [
            *("store_mode", "draining", "listeners", "routes", "ladders", "queues", "endpoint_limits"),
        ]
        endpoints = json.loads(b"".join(filter(None, documents.endpoints(context, now))))["endpoints"]
        assert [row["id"] for row in endpoints] == [f"e{number}" for number in range(5)]
        assert {replica["breaker"]["state"] for row in endpoints for replica in row["replicas"]} == {"closed"}


def test_the_status_page_names_so_many_replicas_and_counts_the_rest(control: ControlByHand) -> None:
    context = control.context
    page = b"".join(filter(None, status_page.render(context, context.clock()))).decode()
    assert page.count("<tr><td>e") <= status_page.MOST_ROWS
    assert "more routes" in page


def drained(turns: Generator[None, None, object]) -> object:
    while True:
        try:
            next(turns)
        except StopIteration as done:
            return done.value


def test_breakers_and_readiness_count_the_whole_fleet(control: ControlByHand) -> None:
    context = control.context
    now = context.clock()
    found = drained(documents.breakers(context, now))
    assert found == {"states": {"closed": 4000, "open": 0, "half_open": 0}, "not_closed": []}
    assert drained(documents.not_ready(context, now)) == ["no data process speaks"]
