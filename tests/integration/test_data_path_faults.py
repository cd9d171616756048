"""Injected faults over real sockets: what a caller, a worker and the metrics see of each kind, and that it ends."""

from __future__ import annotations

import asyncio

import pytest

from router.model import Replica
from sidecar.faults.rules import FaultRule
from sidecar.http1.forwarding import ListenerRules
from sidecar.settings import Admission, Limits, Tenant, Timeouts, Trust
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.connection import FULL
from tests.support.data_path import EARLY_S, DataPath, Refusing, echo, on_data_path, says
from tests.support.wires import CHUNKED, OriginConnection, answer, chunked, post, request


def rule(kind: str, path: DataPath, *, for_s: float = 60.0, **fields: object) -> FaultRule:
    values = {"id": "f", "kind": kind, "ratio": 1.0, "until": path.plane.clock() + for_s} | fields
    return FaultRule(**values)  # type: ignore[arg-type]


async def streams(origin: OriginConnection) -> None:
    """Answer with three events, each a chunk."""
    while True:
        await origin.request()
        body = chunked(b"data: a\n\n", b"data: b\n\n", b"data: c\n\n")
        await origin.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + CHUNKED + b"\r\n\r\n" + body)


# --- who is struck ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "strikes"),
    [
        ({}, True),
        ({"model": "m"}, True),
        ({"model": "other"}, False),
        ({"version": "1"}, True),
        ({"version": "2"}, False),
        ({"shard": 0}, False),
        ({"endpoint": "o0"}, True),
        ({"endpoint": "o1"}, False),
        ({"header": "x-drill"}, True),
        ({"header": "X-Drill: yes"}, True),
        ({"header": "x-drill: ye"}, False),
        ({"header": "x-other"}, False),
        ({"tenant": "t"}, False),
        ({"ratio": 0.0}, False),
        ({"for_s": -1.0}, False),
        ({"kind": "unknown"}, False),
    ],
)
def test_a_fault_strikes_within_its_scope_ratio_and_time(fields: dict[str, object], strikes: bool) -> None:
    @on_data_path(echo, replicas=(Replica("m", "1"),))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule(**{"kind": "abort", "path": path} | fields))  # type: ignore[arg-type]
        assert (await client.ask(request(b"GET / HTTP/1.1", b"x-drill:  yes "))).status == (503 if strikes else 200)

    scenario()


@on_data_path(echo)
async def test_no_more_attempts_are_touched_at_once_than_may_be(path: DataPath) -> None:
    path.inject(rule("black_hole", path)).most_attempts = 1
    lost, fine = await path.connect(), await path.connect()
    await lost.send(post(b"lost"))
    await path.until(lambda: path.scalar(Scalar.FAULTS_INJECTED_TOTAL) == 1, "struck")
    assert (await fine.ask(post(b"fine"))).body == b"fine"
    lost.reset()
    await path.until(lambda: path.plane.faults is not None and not path.plane.faults.under_way, "over")


# --- what is counted --------------------------------------------------------------------------------------------------


@on_data_path(echo)
async def test_an_abort_is_an_answer_of_the_worker_s_that_it_never_gave(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("abort", path, status=418))
    got = await client.ask(post(b"x"))
    assert got.start == b"HTTP/1.1 418 I'm a Teapot"
    assert got.body == b'{"error":"injected fault f"}'
    assert path.origin.connections == []
    path.inject(rule("abort", path))
    assert (await client.ask(post(b"x"))).status == 503
    assert (await client.ask(request(b"HEAD / HTTP/1.1"), b"HEAD")).status == 503
    path.inject()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert path.outcomes == {"fault": 3, "ok": 1}
    assert path.results == {"client_error": 1, "server_error": 2, "success": 1}
    assert path.scalar(Scalar.FAULTS_INJECTED_TOTAL) == path.scalar(Scalar.FAULTS_ABORT_TOTAL) == 3
    assert path.scalar(Scalar.FAULTS_FAILED_TOTAL) == 3


@on_data_path(echo)
async def test_an_abort_may_come_before_the_request_is_whole(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("abort", path))
    whole = post(b"x" * 100_000)
    await client.send(whole[:-50_000])
    got = await client.answer()
    assert (got.status, got.value(b"Connection")) == (503, b"close")
    assert path.outcomes == {"fault": 1}
    assert path.scalar(Scalar.UPSTREAM_CONNECTIONS_TOTAL) == 0


@on_data_path(echo, echo, idempotent=True)
async def test_a_retry_meets_faults_too_and_may_escape_them(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("reset", path, endpoint="o0"))
    assert (await client.ask(post(b"x"))).body == b"x"
    path.inject(rule("reset", path))
    got = await client.ask(post(b"y"))
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"upstream_reset")
    assert b"InjectedResetError" in got.body
    assert path.outcomes == {"ok": 1, "fault": 1}
    assert path.results["reset"] == path.scalar(Scalar.FAULTS_FAILED_TOTAL) >= 2
    assert path.results["success"] == 1


# --- late and lost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "direction"), [("delay", "request"), ("delay", "response"), ("first_byte", ""), ("slow_close", "")]
)
def test_an_answer_comes_late(kind: str, direction: str) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule(kind, path, direction=direction, delay_ms=60.0))
        began = path.plane.clock()
        assert (await client.ask(post(b"x" * 100))).body == b"x" * 100
        assert path.plane.clock() - began >= 0.06 - EARLY_S
        assert path.outcomes == {"ok": 1}
        assert path.scalar(Scalar.FAULTS_FAILED_TOTAL) == 0
        path.inject(rule(kind, path, direction=direction, delay_ms=30_000.0))
        await client.send(post(b"y"))
        await path.until(lambda: path.scalar(Scalar.FAULTS_INJECTED_TOTAL) == 2, "struck")
        client.reset()  # a caller that leaves meanwhile is let go
        await path.until(lambda: path.outcomes == {"ok": 1, "client_abort": 1}, "let go")

    scenario()


@on_data_path(echo, timeouts=Timeouts(response_head_s=0.1))
async def test_a_delay_is_the_worker_s_time(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("delay", path, delay_ms=30_000.0))
    got = await client.ask(post(b"y"))
    assert (got.status, got.value(b"warmroute-outcome")) == (504, b"upstream_timeout")
    assert path.outcomes == {"fault": 1}
    assert path.results == {"head_timeout": 1}
    assert path.origin.requests == []


@on_data_path(echo, limits=Limits(replay_bytes=4096))
async def test_a_large_body_is_held_back_without_end_in_memory(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("delay", path, delay_ms=60.0))
    body = b"x" * 1_000_000
    sending = asyncio.create_task(client.send(post(body)))
    await path.until(lambda: path.pool() is not None and path.pool().open_connections, "connected")
    (connection,) = path.pool().open_connections
    await path.until(lambda: connection.unfit & FULL, "held back")
    assert connection.transport.get_write_buffer_size() < 500_000
    assert (await client.answer()).body == body
    await sending
    assert path.outcomes == {"ok": 1}


@pytest.mark.parametrize(("direction", "asked"), [("request", 0), ("response", 1)])
def test_a_black_hole_swallows_one_direction(direction: str, asked: int) -> None:
    @on_data_path(echo, timeouts=Timeouts(response_head_s=0.1))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule("black_hole", path, direction=direction))
        assert (await client.ask(post(b"y"))).status == 504
        assert path.outcomes == {"fault": 1}
        assert path.results == {"head_timeout": 1}
        assert len(path.origin.requests) == asked

    scenario()


@pytest.mark.parametrize(("direction", "asked"), [("request", 0), ("response", 1)])
def test_a_reset_breaks_the_connection(direction: str, asked: int) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule("reset", path, direction=direction))
        assert (await client.ask(post(b"y"))).status == 502
        assert path.outcomes == {"fault": 1}
        assert path.results == {"reset": 1}
        assert len(path.origin.requests) == asked

    scenario()


@on_data_path(says(b"HTTP/1.1 200 OK\r\n\r\nhello", close=True))
async def test_an_answer_that_ends_with_its_connection_ends_late(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("slow_close", path, delay_ms=60.0))
    began = path.plane.clock()
    assert (await client.ask(request())).body == b"hello"
    assert path.plane.clock() - began >= 0.06 - EARLY_S
    assert path.outcomes == {"ok": 1}


# --- cut, narrow, wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reset", "truncate"])
def test_an_answer_is_cut_inside_its_body(kind: str) -> None:
    @on_data_path(says(answer(b"0123456789")))
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        head = len(answer(b"0123456789")) - 10
        path.inject(rule(kind, path, after_bytes=4 + (head if kind == "reset" else 0)))
        await client.send(request())
        raw = await client.rest()
        assert raw.endswith(b"\r\n\r\n0123")
        assert path.outcomes == {"fault": 1}
        assert path.results == {"cut": 1}

    scenario()


@on_data_path(streams)
async def test_a_stream_is_cut_behind_an_event(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("cut_stream", path, after_events=2))
    await client.send(request(b"POST /v1/chat/completions HTTP/1.1"))
    raw = await client.rest()
    assert raw.count(b"data: a") == raw.count(b"data: b") == 1
    assert b"data: c" not in raw
    assert not raw.endswith(b"0\r\n\r\n")
    assert b"upstream_cut" in raw  # between two events a caller is told
    assert path.outcomes == {"fault": 1}
    path.inject(rule("cut_stream", path, after_events=3))
    again = await path.connect()
    await again.send(request())
    assert (await again.rest()).count(b"data: ") == 3


@pytest.mark.parametrize("direction", ["request", "response"])
def test_bytes_pass_no_faster_than_they_may(direction: str) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule("bandwidth", path, direction=direction, bytes_per_s=50_000.0))
        began = path.plane.clock()
        body = bytes(range(256)) * 20
        assert (await client.ask(post(body))).body == body
        assert path.plane.clock() - began >= 5120 / 50_000 - EARLY_S
        assert path.outcomes == {"ok": 1}

    scenario()


@pytest.mark.parametrize("direction", ["request", "response"])
def test_what_is_sliced_arrives_whole(direction: str) -> None:
    @on_data_path(echo, streams)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule("slicing", path, direction=direction, piece_bytes=1))
        assert (await client.ask(post(b"hello"))).body == b"hello"
        path.inject(rule("slicing", path, direction=direction, piece_bytes=3, delay_ms=1.0))
        assert (await client.ask(post(b"hello again"))).body == b"hello again"
        assert path.outcomes == {"ok": 2}

    scenario()


@pytest.mark.parametrize(("direction", "seen"), [("request", b"\x97ello"), ("response", b"hello")])
def test_bytes_of_a_body_are_corrupted(direction: str, seen: bytes) -> None:
    @on_data_path(echo)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        path.inject(rule("corrupt", path, direction=direction))
        assert (await client.ask(post(b"hello"))).body == b"\x97ello"
        (got,) = path.origin.requests
        assert got.body == seen

    scenario()


# --- together, and in the end -----------------------------------------------------------------------------------------


@on_data_path(echo)
async def test_faults_act_together(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("delay", path, delay_ms=50.0), rule("abort", path, id="g", status=500))
    began = path.plane.clock()
    assert (await client.ask(post(b"x"))).body == b'{"error":"injected fault g"}'
    assert path.plane.clock() - began >= 0.05 - EARLY_S
    assert path.scalar(Scalar.FAULTS_INJECTED_TOTAL) == 1
    assert path.scalar(Scalar.FAULTS_DELAY_TOTAL) == path.scalar(Scalar.FAULTS_ABORT_TOTAL) == 1


@on_data_path(echo)
async def test_what_is_removed_strikes_nobody_any_more_and_leaves_nothing(path: DataPath) -> None:
    client = await path.connect()
    injector = path.inject(rule("corrupt", path))
    assert (await client.ask(post(b"x"))).body == b"\x87"
    path.inject()
    await path.until(lambda: injector.idle, "nothing is under way")
    assert (await client.ask(post(b"x"))).body == b"x"
    connections = len(path.origin.connections)
    assert (await client.ask(post(b"x"))).body == b"x"
    assert len(path.origin.connections) == connections == 2  # what was struck is not used again
    assert path.pool().pooled == 1


@on_data_path(Refusing, echo, idempotent=True)
async def test_a_worker_that_is_not_there_leaves_no_fault_behind(path: DataPath) -> None:
    injector = path.inject(rule("delay", path, delay_ms=1.0))
    client = await path.connect()
    assert (await client.ask(post(b"x"))).body == b"x"
    assert path.results == {"connect_refused": 1, "success": 1}
    await path.until(lambda: not injector.under_way, "nothing is under way")
    assert path.scalar(Scalar.FAULTS_INJECTED_TOTAL) == 2


@on_data_path(echo)
async def test_a_caller_that_left_before_there_was_a_link_leaves_no_fault_behind(path: DataPath) -> None:
    injector = path.inject(rule("delay", path, delay_ms=1.0))
    client = await path.connect()
    await client.send(request())
    client.reset()
    await path.until(lambda: path.outcomes, "over")
    await path.until(lambda: not injector.under_way and not path.pool().open_connections, "nothing is under way")
    assert path.pool().pooled == 0  # it is for that request alone


@on_data_path(echo)
async def test_a_rule_whose_time_is_over_is_forgotten(path: DataPath) -> None:
    injector = path.inject(rule("abort", path, for_s=10.0))
    injector.expire(path.plane.clock())
    assert not injector.idle
    injector.expire(path.plane.clock() + 10.0)
    assert injector.idle


@pytest.mark.parametrize("trusted", [True, False])
def test_a_believed_caller_asks_for_a_fault_with_its_request(trusted: bool) -> None:
    rules = ListenerRules(trusted_networks=("127.0.0.0/8",) if trusted else ())

    @on_data_path(echo, rules=rules)
    async def scenario(path: DataPath) -> None:
        client = await path.connect()
        asks = request(b"GET / HTTP/1.1", b"x-envoy-fault-abort-request: 418")
        assert (await client.ask(asks)).status == 200  # nobody may, by default
        injector = path.inject()
        assert (await client.ask(asks)).status == 200
        injector.headers = True
        assert (await client.ask(asks)).status == (418 if trusted else 200)
        assert (await client.ask(request())).status == 200
        assert path.outcomes == ({"ok": 3, "fault": 1} if trusted else {"ok": 4})

    scenario()


TENANTS = Admission(tenant=Tenant(header="x-tenant"), trust=Trust.ANYBODY)


@on_data_path(echo, admission=TENANTS)
async def test_a_fault_strikes_one_tenant_s_requests(path: DataPath) -> None:
    client = await path.connect()
    path.inject(rule("abort", path, tenant="blue"))
    assert (await client.ask(request(b"GET / HTTP/1.1", b"X-Tenant: blue"))).status == 503
    assert (await client.ask(request(b"GET / HTTP/1.1", b"X-Tenant: green"))).status == 200
    assert (await client.ask(request())).status == 200
