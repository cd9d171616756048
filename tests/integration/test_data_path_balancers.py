"""Balancers other than the default one, on real sockets: who gets a request, a retry and a hedge."""

from __future__ import annotations

import asyncio
from collections import Counter

from router.keyed import hash_of
from router.model import Tick
from router.pickers import mixed
from router.policy import BalancerName, KeyPolicy, ModelPolicy
from tests.support.data_path import DataPath, echo, on_data_path, resets
from tests.support.held_origin import Held
from tests.support.wires import OriginConnection, answer, post, request

BY_HEADER = ModelPolicy(
    "m", idempotent=True, default=True, balancer=BalancerName.KEYED, key=KeyPolicy(header="X-Session")
)
BY_PATH = ModelPolicy("m", default=True, balancer=BalancerName.KEYED, key=KeyPolicy(last_segment=True))
IN_TURN = ModelPolicy("m", default=True, balancer=BalancerName.ROUND_ROBIN)


def ranked(key: bytes, count: int) -> list[int]:
    """Return the numbers of the endpoints in the order in which a key prefers them."""
    scores = [mixed(hash_of(key) ^ hash_of(b"o%d" % index)) for index in range(count)]
    return sorted(range(count), key=scores.__getitem__, reverse=True)


def counts(path: DataPath) -> list[int]:
    return [len(origin.requests) for origin in path.origins]


@on_data_path(echo, echo, echo, models=(BY_HEADER,))
async def test_a_key_in_a_field_keeps_to_its_endpoint_on_any_connection(path: DataPath) -> None:
    expected: Counter[int] = Counter()
    for number in range(12):
        key = b"session-%d" % number
        for _ in range(2):
            client = await path.connect()
            assert (await client.ask(post(b"x", b"x-sEssion: " + key))).status == 200
            expected[ranked(key, 3)[0]] += 1
    assert counts(path) == [expected[index] for index in range(3)]
    assert len(expected) == 3
    assert path.outcomes == {"ok": 24}


@on_data_path(echo, echo, echo, models=(BY_HEADER,))
async def test_requests_on_one_connection_go_each_by_its_own_key(path: DataPath) -> None:
    """Also where heads are read by their learned shape, and where they differ in nothing but the key."""
    client = await path.connect()
    expected: Counter[int] = Counter()
    for number in range(40):
        key = b"s%02d" % (number % 20)
        assert (await client.ask(post(b"x", b"x-request-id: %d" % number, b"X-Session: " + key))).status == 200
        expected[ranked(key, 3)[0]] += 1
    assert counts(path) == [expected[index] for index in range(3)]


@on_data_path(echo, echo, models=(BY_PATH,))
async def test_the_path_s_last_segment_is_a_key(path: DataPath) -> None:
    client = await path.connect()
    expected: Counter[int] = Counter()
    for number in range(16):
        assert (await client.ask(request(b"GET /sessions/%d?turn=1 HTTP/1.1" % number))).status == 200
        expected[ranked(b"%d" % number, 2)[0]] += 1
    assert counts(path) == [expected[index] for index in range(2)]


@on_data_path(echo, echo, models=(BY_HEADER,))
async def test_without_a_key_requests_are_spread_as_by_default(path: DataPath) -> None:
    client = await path.connect()
    for _ in range(4):  # the rng of these tests always draws the first
        assert (await client.ask(post(b"x"))).status == 200
    assert counts(path) == [4, 0]


KEY = next(b"k%d" % number for number in range(99) if ranked(b"k%d" % number, 3) == [2, 1, 0])


@on_data_path(echo, echo, resets, models=(BY_HEADER,))
async def test_a_retry_goes_to_the_key_s_next_choice(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"x", b"X-Session: " + KEY))).body == b"x"
    assert counts(path) == [0, 1, 1]
    assert path.results == {"reset": 1, "success": 1}


async def slow(origin: OriginConnection) -> None:
    while True:
        message = await origin.request()
        await asyncio.sleep(0.15)
        await origin.send(answer(message.body))


@on_data_path(slow, slow, slow, models=(BY_HEADER,))
async def test_a_hot_key_spills_over_to_its_next_choices(path: DataPath) -> None:
    clients = [await path.connect() for _ in range(6)]
    for client in clients:
        await client.send(post(b"x", b"X-Session: " + KEY))
    await path.until(lambda: path.in_flight == 6, "in flight")
    # at most 1, 1, 2, 2, 3, 3 as they came: 1.25 times the mean, rounded up
    assert [path.cluster.endpoints[f"o{index}"].in_flight for index in range(3)] == [0, 3, 3]
    for client in clients:
        assert (await client.answer()).status == 200


HEDGED = ModelPolicy(
    "m", idempotent=True, default=True, hedge=True, balancer=BalancerName.KEYED, key=KeyPolicy(header="X-Session")
)


@on_data_path(echo, echo, Held(), models=(HEDGED,))
async def test_a_hedge_goes_to_the_key_s_next_choice(path: DataPath) -> None:
    route = path.cluster.default_route
    assert route is not None
    assert route.hedging is not None
    for _ in range(60):
        path.cluster.waited(route, 0.005)
    path.cluster.apply(Tick(), path.plane.clock())
    route.hedging.settle(path.plane.clock())
    client = await path.connect()
    assert (await client.ask(post(b"x", b"X-Session: " + KEY))).body == b"x"
    await path.until(lambda: counts(path) == [0, 1, 1], "the hedge's endpoint")


@on_data_path(echo, echo, echo, models=(IN_TURN,))
async def test_turns_are_taken_over_all_connections_of_a_process(path: DataPath) -> None:
    for _ in range(4):
        client = await path.connect()
        for _ in range(3):
            assert (await client.ask(post(b"x"))).status == 200
    assert counts(path) == [4, 4, 4]
