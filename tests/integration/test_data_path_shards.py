"""Models that are split, on real sockets: which shard a request reaches, whatever piece its key comes in; groups."""

from __future__ import annotations

import asyncio

from router.groups import ShardMap
from router.model import Replica, State
from router.policy import BalancerName, KeyPolicy, ModelPolicy, ShardMode, ShardPolicy
from sidecar.faults.rules import FaultRule
from sidecar.settings import Model
from tests.support.data_path import DataPath, Refusing, echo, hold, on_data_path
from tests.support.wires import CHUNKED, chunked, post, request

KEYED = ShardPolicy(ShardMode.KEYED, 3)
BY_BODY = ModelPolicy("m", default=True, idempotent=True, shards=KEYED, key=KeyPolicy(json="user.id", body_bytes=4096))
BY_HEADER = ModelPolicy("m", default=True, idempotent=True, shards=KEYED, key=KeyPolicy(header="x-user"))
BY_BALANCER = ModelPolicy("m", default=True, balancer=BalancerName.KEYED, key=KeyPolicy(json="user"))
TENSOR = ModelPolicy("m", default=True, shards=ShardPolicy(ShardMode.TENSOR, 4))
SHARDS = ShardMap(3)
"""As each process has it: the same everywhere."""


def split(path: DataPath, count: int, **fields: object) -> None:
    """Have endpoint k hold shard k."""
    for index in range(count):
        hold(path, index, Replica("m", shard=index, shard_count=count, **fields))  # type: ignore[arg-type]


def counts(path: DataPath) -> list[int]:
    return [len(origin.requests) for origin in path.origins]


def expected(*keys: bytes) -> list[int]:
    shards = [SHARDS.shard_of(key) for key in keys]
    return [shards.count(shard) for shard in range(3)]


@on_data_path(echo, echo, echo, models=(BY_BODY,))
async def test_a_key_in_the_body_leads_to_its_shard(path: DataPath) -> None:
    split(path, 3)
    client = await path.connect()
    keys = [b"u%d" % number for number in range(12)]
    for key in keys:
        body = b'{"prompt": "long", "user": {"name": "n", "id": "%s"}}' % key
        got = await client.ask(post(body))
        assert (got.status, got.body) == (200, body)
    assert counts(path) == expected(*keys)
    assert min(counts(path)) > 0


@on_data_path(echo, echo, echo, models=(BY_HEADER,))
async def test_a_fault_strikes_one_shard_s_attempts(path: DataPath) -> None:
    split(path, 3)
    client = await path.connect()
    path.inject(FaultRule("f", "abort", 1.0, until=path.plane.clock() + 60, shard=1))
    for number in range(12):
        key = b"u%d" % number
        got = await client.ask(post(b"x", b"x-user: " + key))
        assert got.status == (503 if SHARDS.shard_of(key) == 1 else 200)
    assert counts(path)[1] == 0
    assert min(counts(path)[0], counts(path)[2]) > 0


@on_data_path(echo, echo, echo, models=(BY_BODY,))
async def test_a_body_that_comes_in_pieces_and_in_chunks_is_waited_for(path: DataPath) -> None:
    split(path, 3)
    client = await path.connect()
    for key in (b"a", b"b", b"c", b"d"):
        body = b'{"prompt": "long", "user": {"id": "%s"}}' % key
        whole = post(body)
        for at in range(0, len(whole), 7):
            await client.send(whole[at : at + 7])
            await asyncio.sleep(0)
        assert (await client.answer()).body == body
        parts = chunked(*(body[at : at + 5] for at in range(0, len(body), 5)))
        assert (await client.ask(request(b"POST / HTTP/1.1", CHUNKED) + parts)).body == body
    keys = (b"a", b"b", b"c", b"d")
    assert counts(path) == expected(*keys, *keys)


@on_data_path(echo, echo, echo, models=(BY_BODY,))
async def test_who_says_no_key_is_told(path: DataPath) -> None:
    split(path, 3)
    for body in (b"", b"{}", b'{"user": "x"}', b'{"user": {"id": null}}', b"not JSON"):
        got = await (await path.connect()).ask(post(body))
        assert got.status == 400
        assert b"the body's user.id must say which shard of m has it, and says nothing" in got.body
    got = await (await path.connect()).ask(post(b'{"user": {"id": "x"}, "prompt": "%s"}' % (b"x" * 5000)))
    assert got.status == 413
    assert b"over 4096 bytes (models[].key.body_bytes), and the body's user.id must say which shard has it" in got.body
    assert counts(path) == [0, 0, 0]
    assert path.outcomes == {"bad_request": 5, "body_too_large": 1}


@on_data_path(echo, echo, echo, models=(BY_HEADER,))
async def test_a_key_in_a_field_leads_to_its_shard_for_any_body(path: DataPath) -> None:
    split(path, 3)
    client = await path.connect()
    keys = [b"user-%d" % number for number in range(9)]
    for key in keys:
        assert (await client.ask(post(b"x" * 100_000, b"X-User: " + key))).status == 200
    assert counts(path) == expected(*keys)
    got = await client.ask(post(b"x"))
    assert got.status == 400
    assert b"the field x-user must say which shard of m has it" in got.body


@on_data_path(Refusing, echo, echo, models=(BY_HEADER,))
async def test_a_retry_stays_with_its_shard(path: DataPath) -> None:
    """Shard 0 has two replicas, one of which is not there; the others are nobody's business."""
    hold(path, 0, Replica("m", shard=0, shard_count=3))
    hold(path, 1, Replica("m", shard=0, shard_count=3))
    hold(path, 2, Replica("m", shard=1, shard_count=3), Replica("m", shard=2, shard_count=3))
    key = next(key for key in (b"%d" % number for number in range(99)) if SHARDS.shard_of(key) == 0)
    client = await path.connect()
    for _ in range(4):
        assert (await client.ask(post(b"x", b"X-User: " + key))).status == 200
    assert counts(path)[1:] == [4, 0]


@on_data_path(echo, echo, models=(BY_HEADER,))
async def test_a_shard_that_nobody_holds_is_named(path: DataPath) -> None:
    hold(path, 0, Replica("m", shard=0, shard_count=3))
    hold(path, 1, Replica("m", shard=1, shard_count=3))
    key = next(key for key in (b"%d" % number for number in range(99)) if SHARDS.shard_of(key) == 2)
    got = await (await path.connect()).ask(post(b"x", b"X-User: " + key))
    assert got.status == 503
    assert b"no endpoint serves m#2" in got.body


@on_data_path(echo, echo, echo, models=(BY_BALANCER,))
async def test_the_balancer_goes_by_a_key_in_the_body(path: DataPath) -> None:
    seen: dict[bytes, set[int]] = {}
    for key in [b"u%d" % number for number in range(12)] * 2:
        before = counts(path)
        client = await path.connect()
        assert (await client.ask(post(b'{"user": "%s"}' % key))).status == 200
        seen.setdefault(key, set()).add([now > old for now, old in zip(counts(path), before, strict=True)].index(True))
    assert all(len(endpoints) == 1 for endpoints in seen.values())
    assert len(set.union(*seen.values())) > 1
    assert (await (await path.connect()).ask(post(b"no key"))).status == 200


@on_data_path(echo, echo, echo, echo, models=(TENSOR,))
async def test_a_group_is_asked_at_its_entry_and_left_when_a_member_is(path: DataPath) -> None:
    split(path, 4, group="g")
    client = await path.connect()
    for _ in range(8):
        assert (await client.ask(post(b"x"))).status == 200
    assert counts(path) == [8, 0, 0, 0]
    hold(path, 2, Replica("m", shard=2, shard_count=4, group="g", state=State.FAILED))
    got = await client.ask(post(b"x"))
    assert got.status == 503
    assert b"1 group_incomplete (shard 2 at o2: not_warm)" in got.body
    hold(path, 2, Replica("m", shard=2, shard_count=4, group="g"))
    assert (await client.ask(post(b"x"))).status == 200
    assert counts(path) == [9, 0, 0, 0]


@on_data_path(
    Refusing,
    echo,
    echo,
    models=(
        ModelPolicy("m", shards=ShardPolicy(ShardMode.KEYED, 2), key=KeyPolicy(header="x-user")),
        ModelPolicy("b", shards=ShardPolicy(ShardMode.KEYED, 2), key=KeyPolicy(json="user")),
    ),
    held=(
        (Replica("m"),),
        (Replica("b", shard=0, shard_count=2),),
        (Replica("b", shard=1, shard_count=2),),
    ),
    ladders=(Model(name="m", fallback=("b",)),),
)
async def test_a_fallback_goes_to_the_shard_that_has_the_request_there(path: DataPath) -> None:
    shards = ShardMap(2)
    for user in (b"ada", b"bob", b"cyd", b"dan", b"eve"):
        before = counts(path)
        client = await path.connect()
        told = await client.ask(post(b'{"user": "%s"}' % user, b"X-User: 1", target=b"/v2/models/m/infer"))
        assert told.status == 200
        assert told.value(b"warmroute-degraded-model") == b"b"
        assert counts(path)[1 + shards.shard_of(user)] == before[1 + shards.shard_of(user)] + 1
    told = await (await path.connect()).ask(post(b"{}", b"X-User: 1", target=b"/v2/models/m/infer"))
    assert told.status in (502, 503), "the fallback's shards need a key, and it has none"
