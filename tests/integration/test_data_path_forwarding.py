"""Forwarding fields and the attempt's number, on real sockets."""

from __future__ import annotations

from router.policy import ModelPolicy, Policies, RetryPolicy
from sidecar.http1.forwarding import ListenerRules
from sidecar.telemetry.page import Scalar
from tests.support.data_path import POLICIES, DataPath, Refusing, echo, on_data_path, resets
from tests.support.wires import post

TRUSTING = ListenerRules(trusted_networks=("127.0.0.0/8",))


@on_data_path(echo)
async def test_a_worker_learns_the_peer_and_not_what_it_says_of_itself(path: DataPath) -> None:
    client = await path.connect()
    for number in range(40):  # enough for the head's shape to be learned between the forged ones
        forged = [b"X-Forwarded-For: 203.0.113.9", b"x_forwarded_for: 1", b"warmroute-attempt: 3"] * (number % 3 == 2)
        await client.ask(post(b"x" * number, b"X-Request-Id: %d" % number, *forged))
        seen = path.origin.requests[-1]
        assert seen.values(b"x-forwarded-for") == [b"127.0.0.1"]
        assert seen.values(b"x-forwarded-proto") == [b"http"]
        assert seen.values(b"warmroute-attempt") == [b"1"]
        assert seen.values(b"x_forwarded_for") == []
        assert seen.value(b"x-request-id") == b"%d" % number


@on_data_path(echo, rules=TRUSTING)
async def test_a_trusted_proxy_is_continued(path: DataPath) -> None:
    client = await path.connect()
    for number in range(40):
        await client.ask(post(b"", b"X-Forwarded-For: 203.0.113.%d" % number, b"X-Forwarded-Proto: https"))
        seen = path.origin.requests[-1]
        assert seen.value(b"x-forwarded-for") == b"203.0.113.%d, 127.0.0.1" % number
        assert seen.value(b"x-forwarded-proto") == b"https"


@on_data_path(Refusing, echo, rules=TRUSTING)
async def test_a_request_that_another_proxy_tries_again_is_not_tried_again_here(path: DataPath) -> None:
    client = await path.connect()
    got = await client.ask(post(b"hello", b"warmroute-attempt: 2"))
    assert (got.status, got.value(b"warmroute-outcome")) == (502, b"connect_failed")
    assert path.scalar(Scalar.RETRIES_TOTAL) == 0
    got = await client.ask(post(b"hello", b"warmroute-attempt: 2"))
    assert got.status == 200
    assert path.origins[1].requests[0].value(b"warmroute-attempt") == b"2"


@on_data_path(Refusing, echo, rules=TRUSTING)
async def test_the_first_attempt_of_another_proxy_is_tried_again(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"hello", b"warmroute-attempt: 1"))).status == 200
    assert path.origins[1].requests[0].value(b"warmroute-attempt") == b"2"


@on_data_path(Refusing, echo)
async def test_a_stranger_cannot_turn_retries_off(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"hello", b"warmroute-attempt: 2"))).status == 200
    assert path.origins[1].requests[0].value(b"warmroute-attempt") == b"2"


@on_data_path(
    resets,
    resets,
    resets,
    models=(ModelPolicy("m", idempotent=True, default=True),),
    policies=Policies(
        retry=RetryPolicy(attempts=2, backoff_min_ms=1.0, backoff_max_ms=2.0), quarantine=POLICIES.quarantine
    ),
)
async def test_each_attempt_says_its_number(path: DataPath) -> None:
    client = await path.connect()
    assert (await client.ask(post(b"hello"))).status == 502
    numbers = [one.value(b"warmroute-attempt") for origin in path.origins for one in origin.requests]
    assert sorted(numbers) == [b"1", b"2", b"3"]
