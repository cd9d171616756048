"""Tables for people, made of what a real cluster says."""

from __future__ import annotations

import random

import msgspec
import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from router.cluster import Cluster
from router.model import (
    BreakerRule,
    EjectCause,
    EndpointEjected,
    EndpointRecord,
    EndpointSeen,
    Evidence,
    Replica,
    State,
)
from router.policy import BalancerName, KeyPolicy, ModelPolicy, Policies, ShardMode, ShardPolicy
from sidecar.cli.shapes import Breaker, Candidate, Endpoint, Endpoints, Explanation, Queue, Routes
from sidecar.cli.shapes import Replica as ReplicaShape
from sidecar.cli.tables import (
    endpoints_table,
    explanation_parts,
    faults_table,
    milliseconds,
    routes_table,
    seconds,
    show,
    why,
)
from sidecar.faults.rules import FaultShown


def cluster(*records: EndpointRecord, now: float = 100.0) -> Cluster:
    made = Cluster(Policies(), [ModelPolicy("magika", default=True), ModelPolicy("lonely")], now)
    for record in records:
        made.apply(EndpointSeen(record, now), now)
    return made


def worker(name: str, state: State = State.WARM) -> EndpointRecord:
    return EndpointRecord(
        id=name,
        address=f"http://{name}:9001",
        epoch="e",
        revision=1,
        replicas=(Replica("magika", "1", state=state, warmth=(("b1", 1.0),), warm_for_s=60.0),),
        free_memory_bytes=3 << 30,
        total_memory_bytes=4 << 30,
    )


def lines(*parts: RenderableType, width: int = 200) -> list[str]:
    console = Console(width=width, markup=False, highlight=False, emoji=False, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return [line.rstrip() for line in capture.get().splitlines()]


def routes_of(made: Cluster, now: float) -> Routes:
    answer = {"store_mode": made.mode, "draining": False, "routes": made.routes(now)}
    return msgspec.json.decode(msgspec.json.encode(answer), type=Routes)


def explanation_of(made: Cluster, now: float, model: str = "magika") -> Explanation:
    route = made.route(model)
    assert route is not None
    explained = made.explain(route, now, random.Random(1).random)
    return msgspec.json.decode(msgspec.json.encode(explained), type=Explanation)


def test_routes() -> None:
    made = cluster(worker("w0"), worker("w1", State.LOADING))
    rows = lines(routes_table(routes_of(made, 101.0).routes))
    assert rows[0].split() == [
        "model",
        "endpoint",
        "state",
        "weight",
        "share",
        "p95",
        "in",
        "flight",
        "freshness",
        "why",
    ]
    text = "\n".join(rows)
    assert "magika (default)" in text
    assert "no endpoint serves it" in next(row for row in rows if row.startswith("lonely"))
    warm = next(row for row in rows if " w0 " in row).split()
    assert {"w0", "warm", "100.0%", "1.00"} <= set(warm)
    assert "loading" in next(row for row in rows if " w1 " in row)
    assert "not warm for" in next(row for row in rows if " w1 " in row)


def test_explanation_of_a_choice() -> None:
    rows = lines(*explanation_parts(explanation_of(cluster(worker("w0"), worker("w1")), 100.5)))
    text = "\n".join(rows)
    assert rows[0] == "magika, store live"
    assert rows[1].startswith("weight = freshness x ramp x (0.4 x warmth")
    assert "3,072 MiB" in text
    assert "500 ms ago" in text
    assert text.count("unknown: the candidates' median") == 2  # nobody's P95 is known yet
    assert rows[-1].startswith("a draw now: w")


def test_a_group_is_shown_with_what_it_lacks() -> None:
    made = Cluster(Policies(), [ModelPolicy("t", shards=ShardPolicy(ShardMode.TENSOR, 3))], 100.0)
    for shard in (0, 1):
        replicas = (Replica("t", "1", shard, 3, group="g", warm_for_s=60.0),)
        made.apply(EndpointSeen(EndpointRecord(f"w{shard}", f"http://w{shard}:1", replicas=replicas), 100.0), 100.0)
    rows = lines(routes_table(routes_of(made, 100.5).routes))
    entry = next(row for row in rows if " w0 #0 " in row)
    assert entry.rstrip().endswith("group incomplete of g for 500 ms: shard 2: nobody holds it")
    assert next(row for row in rows if " w1 #1 " in row).rstrip().endswith("not entry of g for 500 ms")
    explained = lines(*explanation_parts(explanation_of(made, 100.5, "t")))
    assert "1 group_incomplete (shard 2: nobody holds it); 503" in explained[-1]


def test_explanation_of_another_balancer() -> None:
    key = KeyPolicy(header="x-key")
    made = cluster(worker("w0"), worker("w1"))
    for name, last, terms in (
        (BalancerName.RANDOM, "a draw now: w0, drawn at random", []),
        (
            BalancerName.LEAST_REQUEST,
            "a draw now: w0, the fewest in flight: 0, as 1 more: drawn of them",
            ["in_flight"],
        ),
        (BalancerName.KEYED, None, ["warmth"]),
    ):
        made.configure(Policies(), [ModelPolicy("magika", balancer=name, key=key)], 100.5)
        rows = lines(*explanation_parts(explanation_of(made, 100.5)))
        if last is not None:
            assert rows[1].startswith(f"{name}: ")
            assert rows[-1] == last
        found = [row.split() for row in rows if terms and row.split()[1:2] == terms]
        assert len(found) == 2 * len(terms)
        if name is BalancerName.LEAST_REQUEST:
            assert found[0] == ["w0", "in_flight", "0", "-", "-", "-", "0", "ms"]
        text = "\n".join(lines(routes_table(routes_of(made, 101.0).routes)))
        assert f"magika ({name})" in text


def test_explanation_where_there_is_nobody() -> None:
    rows = lines(*explanation_parts(explanation_of(cluster(), 100.0, "lonely")))
    assert rows[-1] == "nobody: no endpoint serves lonely; 503, Retry-After 1.0 s"


def test_explanation_with_a_queue() -> None:
    explained = explanation_of(cluster(), 100.0, "lonely")
    queue = Queue(waiting=3, turned_away=1, in_flight=2, limit=8, on_no_candidate="wait")
    rows = lines(*explanation_parts(msgspec.structs.replace(explained, queue=queue)))
    assert rows[-3:] == [
        "nobody: no endpoint serves lonely; requests wait",
        "in flight of the model: 2 of 8",
        "queue: 3 waiting, 1 turned away so far",
    ]


def test_explanation_of_a_probe() -> None:
    made = cluster(worker("w0"))
    made.apply(EndpointEjected("w0", EjectCause.QUARANTINE, until=101.0, level=1, at=100.0), 100.0)
    early = explanation_of(made, 100.25)
    assert why(early.rows[0]) == "quarantined for 250 ms, 750 ms left"
    late = explanation_of(made, 103.0)
    assert why(late.rows[0]) == "quarantined for 3.0 s, a probe is due"
    assert lines(*explanation_parts(late))[-1] == ("next: w0, whose quarantine is over, gets one request as a probe")


def test_a_breaker_says_what_it_opened_on() -> None:
    made = cluster(worker("w0"), worker("w1"))
    replica = worker("w0").replicas[0]
    seen = Evidence(20, 0, 0, 14, False, 310.0, 21.0, 46.0)
    opened = EndpointEjected(
        "w0", EjectCause.BREAKER, 102.0, 1, 100.0, replica.model, replica.version, BreakerRule.SURGE, seen
    )
    made.apply(opened, 100.0)
    words = "latency_surge: 14 of 20 calls took over 46 ms; P95 310 ms, usually 21 ms"
    (row,) = [row for row in explanation_of(made, 100.5).rows if row.endpoint == "w0"]
    assert why(row) == f"breaker open for 500 ms, 1.5 s left; {words}"
    (row,) = [row for row in explanation_of(made, 102.5).rows if row.endpoint == "w0"]
    assert why(row) == f"breaker half open; {words}"
    in_panic = msgspec.structs.replace(row.breaker, state="open")
    picked = msgspec.structs.replace(row, breaker=in_panic)
    assert why(picked) == f"breaker open, picked all the same; {words}"


def test_ramping_up_is_said() -> None:
    made = cluster(worker("w0"))
    candidate = next(row for row in routes_of(made, 100.0).routes if row.key == "magika").candidates[0]
    assert why(candidate) == ""
    assert why(msgspec.structs.replace(candidate, ramp=0.4)) == "ramping up"


def test_endpoints() -> None:
    replicas = (
        ReplicaShape("magika", "1", "warm", breaker=Breaker("half_open"), p95_ms=12.5),
        ReplicaShape("other", "", "failed", "out of memory"),
    )
    one = Endpoint("w0", "http://w0:1", "store", 0.4, True, True, replicas, 1 << 30, True, 3)
    two = Endpoint("v", "http://v:1", "static", None, False, False, (), None, free_memory_ratio=0.625, queue_depth=4)
    rows = lines(endpoints_table(Endpoints((one, two), ("w9",))))
    assert [" ".join(row.split()) for row in rows[1:]] == [
        (
            "w0 http://w0:1 store magika@1 warm (breaker half open, P95 12.5 ms), other failed (out of memory) "
            "1,024 MiB - 3 400 ms ago draining, drained here, quarantined"
        ),
        "v http://v:1 static nothing 62% of its cache 4 0 -",
        "w9 - - - - - - - drained here, and not there",
    ]


def test_an_endpoint_is_listed_with_what_its_group_lacks() -> None:
    lacks = ("shard 2: nobody holds it", "shard 3: nobody holds it")
    replica = ReplicaShape("llm", "1", "warm", shard=0, shard_count=4, group="g", lacks=lacks)
    one = Endpoint("w0", "http://w0:1", "store", 0.4, False, False, (replica,), None)
    (row,) = lines(endpoints_table(Endpoints((one,), ())))[1:]
    assert "llm@1#0 of 4 in g warm (group incomplete: shard 2: nobody holds it)" in row


def test_faults() -> None:
    faults = (
        FaultShown("a", "delay", 0.5, "request", left_s=29.6, endpoint="w0", delay_ms=200.0),
        FaultShown("b", "abort", 1.0, "request", "magika", left_s=90.4, shard=0, status=418),
        FaultShown("c", "truncate", 1.0, "response", left_s=90.4),
    )
    assert [row.split() for row in lines(faults_table(faults))[1:]] == [
        ["a", "delay", "request", "delay_ms=200.0", "50%", "endpoint=w0", "29.6", "s"],
        ["b", "abort", "request", "status=418", "100%", "model=magika", "shard=0", "90.4", "s"],
        ["c", "truncate", "response", "-", "100%", "anywhere", "90.4", "s"],
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 ms"), (0.25, "250 ms"), (1.0, "1.0 s"), (100.0, "1 min 40 s"), (7260.0, "2 h 01 min")],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.04, "0.0 ms"), (99.94, "99.9 ms"), (1234.5, "1234 ms")])
def test_milliseconds(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_into_a_pipe_nothing_is_cut_and_nothing_is_markup(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[red]" + "w" * 300
    row = Candidate(
        endpoint=name,
        address="",
        version="",
        state="warm",
        reason="stale",
        for_s=None,
        left_s=None,
        age_s=None,
        warm_for_s=None,
        freshness=0.0,
        ramp=0.0,
        weight=0.0,
        share=0.0,
        floored=False,
        terms=(),
        p95_ms=None,
        ewma_ms=None,
        ewma_known=False,
        in_flight=0,
        peers_in_flight=0,
        expected_wait_ms=None,
        breaker=Breaker("closed"),
    )
    show(*explanation_parts(Explanation("m", "live", "warm", "law", (row,), None, None, None)))
    assert name in capsys.readouterr().out


def test_what_others_named_themselves_moves_nobodys_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever lets control characters in: a sidecar of another version, or none of ours."""
    evil = "\x1b]0;pwned\x07\x1b[2J\x9bH\r"
    fleet = cluster(worker(f"a{evil}", State.FAILED))
    show(
        routes_table(routes_of(fleet, 101.0).routes),
        *explanation_parts(explanation_of(fleet, 101.0)),
        Text(evil, style="red"),
        Text("one\ntwo"),
    )
    shown = capsys.readouterr().out
    assert [one for one in shown if not one.isprintable() and one != "\n"] == []
    assert r"a\x1b]0;pwned\x07\x1b[2J\x9bH\r" in shown
    assert "one\ntwo\n" in shown
