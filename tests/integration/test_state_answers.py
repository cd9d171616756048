"""The second tier of kept answers on a real server: bounds, ages, what is not believed, and its absence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
import redis

from router.wire import Keys
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept
from sidecar.settings import StateStore
from sidecar.state.answers import MOST_QUEUED, SharedAnswers, record_of
from tests.support.loops import beside
from tests.support.redis_server import RedisServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
PREFIX = Keys("prod").answers


def kept(
    number: int, body: bytes = b"body", *, entries: int = 100, most: int = 1 << 20, ttl_ms: int = 60_000
) -> AnswerKept:
    return AnswerKept(b"%d" % number, HEAD, body, ttl_ms, 7, entries, most)


def tier(server: RedisServer, scenario: Callable[[SharedAnswers, asyncio.Queue[AnswerFound]], Awaitable[None]]) -> None:
    async def run() -> None:
        replies: asyncio.Queue[AnswerFound] = asyncio.Queue()
        settings = StateStore(url=server.url, namespace="prod")
        answers = SharedAnswers(settings, lambda _, found: replies.put_nowait(found))
        async with asyncio.timeout(10), beside(answers.run()):
            await scenario(answers, replies)

    asyncio.run(run())


async def ask(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound], number: int) -> AnswerFound:
    answers.from_data(0, AnswerAsked(number, b"%d" % number))
    return await replies.get()


async def written(server: RedisServer, number: int) -> None:
    client = redis.Redis(unix_socket_path=str(server.socket))
    for _ in range(1000):
        if client.exists(f"{PREFIX}:{(b'%d' % number).hex()}"):
            break
        await asyncio.sleep(0.005)
    client.close()


def test_what_was_kept_is_found_with_its_age(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        assert await ask(answers, replies, 1) == AnswerFound(1)
        answers.from_data(0, kept(1))
        await written(server, 1)
        await asyncio.sleep(0.05)
        found = await ask(answers, replies, 1)
        assert (found.head, found.body, found.age_s) == (HEAD, b"body", 7)
        assert 40 <= found.kept_ms < 5_000

    tier(server, scenario)


def test_it_is_gone_when_its_time_is_over(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        answers.from_data(0, kept(1, ttl_ms=30))
        await asyncio.sleep(0.15)
        assert await ask(answers, replies, 1) == AnswerFound(1)

    tier(server, scenario)


@pytest.mark.parametrize(("entries", "most"), [(3, 1 << 20), (100, 3 * 300)])
def test_it_is_bounded_and_the_oldest_goes(server: RedisServer, entries: int, most: int) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        for number in range(5):
            answers.from_data(0, kept(number, b"x" * 80, entries=entries, most=most, ttl_ms=60_000 + number))
            await written(server, number)
        there = [bool((await ask(answers, replies, number)).head) for number in range(5)]
        assert there == [False, False, True, True, True]
        client = redis.Redis(unix_socket_path=str(server.socket))
        sizes = [int(size) for size in client.hvals(PREFIX + ":sizes")]
        assert int(client.get(PREFIX + ":bytes") or 0) == sum(sizes) <= most
        assert client.zcard(PREFIX) == len(sizes) == 3
        client.close()

    tier(server, scenario)


def test_the_same_key_takes_one_place(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        answers.from_data(0, kept(1))
        await written(server, 1)
        answers.from_data(0, kept(1, b"newer"))
        for _ in range(1000):
            if (await ask(answers, replies, 1)).body == b"newer":
                break
            await asyncio.sleep(0.005)
        client = redis.Redis(unix_socket_path=str(server.socket))
        assert client.zcard(PREFIX) == client.hlen(PREFIX + ":sizes") == 1
        assert int(client.get(PREFIX + ":bytes") or 0) == int(client.hvals(PREFIX + ":sizes")[0])
        client.close()

    tier(server, scenario)


def test_clearing_leaves_nothing_behind(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        for number in range(3):
            answers.from_data(0, kept(number))
            await written(server, number)
        assert await answers.clear()
        client = redis.Redis(unix_socket_path=str(server.socket))
        assert client.keys(PREFIX + "*") == []
        client.close()
        server.stop()
        assert not await answers.clear()
        server.start()

    tier(server, scenario)


GOOD = [1, HEAD, b"body", 1000, 0]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        b"text",
        msgspec.msgpack.encode({"head": HEAD}),
        msgspec.msgpack.encode(GOOD[:4]),
        msgspec.msgpack.encode([2, *GOOD[1:]]),
        msgspec.msgpack.encode([1, HEAD, b"body", 0, 0]),
        msgspec.msgpack.encode([1, HEAD, b"body", 1000, -1]),
        msgspec.msgpack.encode([1, HEAD, b"body", 1.5, 0]),
        msgspec.msgpack.encode([1, HEAD, b"body", 1 << 40, 0]),
        msgspec.msgpack.encode([1, HEAD, b"b" * 65536, 1000, 0]),
        msgspec.msgpack.encode([1, b"", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, b"HTTP/1.1 200 OK", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, b"HTTP/1.1 100 Continue\r\n", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, HEAD + b"\r\n", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, HEAD + b"X: y\nZ: a\r\n", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, HEAD + b"Content-Length: 1\r\n", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, HEAD + b"transfer-encoding: chunked\r\n", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, HEAD + b"Connection: close\r\n", b"body", 1000, 0]),
        msgspec.msgpack.encode([1, HEAD + b" folded\r\n", b"body", 1000, 0]),
    ],
)
def test_what_is_no_answer_is_not_believed(value: bytes) -> None:
    assert record_of(value) is None


def test_what_is_one_is() -> None:
    record = record_of(msgspec.msgpack.encode(GOOD))
    assert record is not None
    assert (record.head, record.body) == (HEAD, b"body")


def test_a_bad_value_in_the_store_is_said_to_be_one(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        client = redis.Redis(unix_socket_path=str(server.socket))
        client.set(f"{PREFIX}:{b'1'.hex()}", b"HTTP/1.1 200 OK\r\n\r\n", px=60_000)
        client.set(f"{PREFIX}:{b'2'.hex()}", msgspec.msgpack.encode(GOOD), px=60_000)  # it says 1 s
        client.close()
        assert await ask(answers, replies, 1) == AnswerFound(1, bad=True)
        assert await ask(answers, replies, 2) == AnswerFound(2, bad=True)

    tier(server, scenario)


def test_what_waited_to_be_written_is_that_much_older(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        server.pause()
        try:
            answers.from_data(0, kept(1))
            answers.from_data(0, kept(2, ttl_ms=100))
            await asyncio.sleep(0.2)
        finally:
            server.resume()
        await written(server, 1)
        assert await ask(answers, replies, 2) == AnswerFound(2)
        assert (await ask(answers, replies, 1)).kept_ms < 5_000

    tier(server, scenario)


def test_without_the_store_nobody_is_answered_and_nothing_breaks(server: RedisServer) -> None:
    async def scenario(answers: SharedAnswers, replies: asyncio.Queue[AnswerFound]) -> None:
        server.stop()
        answers.from_data(0, AnswerAsked(1, b"1"))
        for number in range(MOST_QUEUED + 10):
            answers.from_data(0, kept(number))
        assert answers.dropped >= 10
        await asyncio.sleep(0.3)
        assert replies.empty()
        server.start()

    tier(server, scenario)
