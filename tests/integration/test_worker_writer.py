"""What the worker's writer does to a real store: whole and partial records, epochs, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from router.model import EndpointRecord, Replica
from router.scripts import READ_LUA
from router.wire import Delta, Keys, decode_delta, encode_fields
from tests.support.redis_server import redis_server
from worker.redis_writer import RedisWriter
from worker.report import StoreUnavailableError
from worker.state_address import StateAddress

KEYS = Keys("t")
WHOLE = encode_fields(EndpointRecord(id="w1", address="http://127.0.0.1:1", replicas=(Replica("m", "1"),)))


def against_a_store(tmp_path: Path, check: Callable[[redis.Redis, RedisWriter, RedisWriter], Awaitable[None]]) -> None:
    """Run ``check`` with a client and the writers of two processes that have the same id."""

    async def scenario(url: str, client: redis.Redis) -> None:
        first, second = (RedisWriter(StateAddress(url), "t", "w1", epoch, 5.0) for epoch in ("e1", "e2"))
        try:
            await asyncio.wait_for(check(client, first, second), 20)
        finally:
            await first.close()
            await second.close()

    with redis_server(tmp_path) as url:
        client = redis.Redis.from_url(url, decode_responses=True)
        try:
            asyncio.run(scenario(url, client))
        finally:
            client.close()


def fields(client: redis.Redis) -> dict[str, str]:
    found: Any = client.hgetall(KEYS.endpoint("w1"))
    return dict(found)


def test_less_than_a_whole_record_never_makes_one(tmp_path: Path) -> None:
    async def check(client: redis.Redis, first: RedisWriter, second: RedisWriter) -> None:
        assert not await first.write({})
        assert not await first.write({"queue": "1"})
        assert fields(client) == {}
        assert client.get(KEYS.revision) is None
        assert await first.write(WHOLE)
        assert await first.write({"queue": "1"})
        assert await first.write({})
        assert fields(client) == {**WHOLE, "queue": "1", "v": "1", "epoch": "e1", "rev": "3", "crev": "2"}

    against_a_store(tmp_path, check)


def test_a_new_epoch_replaces_the_record_and_the_old_one_notices(tmp_path: Path) -> None:
    async def check(client: redis.Redis, first: RedisWriter, second: RedisWriter) -> None:
        assert await first.write({**WHOLE, "queue": "9"})
        assert not await second.write({"queue": "1"})
        assert await second.write({name: value for name, value in WHOLE.items() if name != "queue"})
        assert "queue" not in fields(client), "nothing of the old epoch stays"
        assert not await first.write({})
        assert not await first.write({"free": "1"})
        await first.remove()
        assert fields(client)["epoch"] == "e2", "only its own record may be removed"
        await second.remove()
        assert fields(client) == {}

    against_a_store(tmp_path, check)


def test_every_write_is_one_message_with_the_next_revision(tmp_path: Path) -> None:
    async def check(client: redis.Redis, first: RedisWriter, second: RedisWriter) -> None:
        subscription = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        subscription.subscribe(KEYS.channel)
        assert subscription.get_message(timeout=1) is None
        await first.write(WHOLE)
        await first.write({"queue": "1"})
        await first.write({})
        await second.write({"queue": "1"})
        await first.remove()
        deltas: list[Delta] = []
        while len(deltas) < 4:
            message = subscription.get_message(timeout=5)
            assert message is not None
            deltas.append(decode_delta(message["data"]))
        subscription.close()
        assert [(d.kind, d.revision, d.epoch) for d in deltas] == [
            ("set", 1, "e1"),
            ("set", 2, "e1"),
            ("beat", 3, "e1"),
            ("del", 4, "e1"),
        ]
        assert deltas[0].fields == WHOLE
        assert deltas[1].fields == {"queue": "1"}
        out: Any = client.eval(READ_LUA, 2, KEYS.revision, KEYS.index, KEYS.endpoint(""))
        assert out == [4]

    against_a_store(tmp_path, check)


def test_where_nobody_listens_it_says_so_in_time(tmp_path: Path) -> None:
    async def check() -> None:
        writer = RedisWriter(StateAddress(f"unix://{tmp_path}/none.sock"), "t", "w1", "e1", 5.0)
        with pytest.raises(StoreUnavailableError, match=r"^ConnectionError: "):
            await asyncio.wait_for(writer.write({}), 3)
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(writer.remove(), 3)
        await writer.close()

    asyncio.run(check())
