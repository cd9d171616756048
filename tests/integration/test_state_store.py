"""The Redis source against a real server that is stopped, killed, emptied and comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from router.model import EndpointGone, EndpointSeen, GoneReason, StoreChanged, StoreMode
from router.policy import FreshnessPolicy
from router.scripts import WRITE_LUA
from router.wire import Keys, encode_fields
from sidecar.discovery.source import Found
from sidecar.settings import StateStore
from sidecar.state.store import RedisSource
from sidecar.state.view import Count
from tests.support.loops import beside, until
from tests.support.redis_server import RedisServer
from tests.support.state_writer import StateWriter, worker_record

NAMESPACE = "test"
POLICY = FreshnessPolicy(heartbeat_s=0.2, full_s=0.4, ttl_s=1.0, empty_store_grace_s=1.5)
A, B = worker_record("a"), worker_record("b", port=9002)


class Watched:
    """A running source and all that it has said."""

    def __init__(self, source: RedisSource) -> None:
        self.source = source
        self.events: list[Found] = []

    @property
    def modes(self) -> list[StoreMode]:
        return [event.mode for event in self.events if isinstance(event, StoreChanged)]

    @property
    def gone(self) -> list[tuple[str, GoneReason]]:
        return [(event.id, event.reason) for event in self.events if isinstance(event, EndpointGone)]

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 8.0) -> float:
        return await until(condition, what, within_s)

    async def until_knows(self, *names: str) -> None:
        await self.until(lambda: set(self.source.view.ids) == set(names), f"knows {names}")

    async def until_mode(self, mode: StoreMode, within_s: float = 8.0) -> float:
        return await self.until(lambda: self.source.modes.mode is mode, f"mode {mode}", within_s)


@asynccontextmanager
async def watching(settings: StateStore) -> AsyncIterator[Watched]:
    source = RedisSource(settings, POLICY, clock=time.monotonic, rng=random.Random(1).random)
    watched = Watched(source)
    async with beside(source.run(watched.events.append)):
        yield watched


def follow(server: RedisServer, scenario: Callable[[Watched, StateWriter], Awaitable[None]]) -> None:
    async def main() -> None:
        async with watching(StateStore(url=server.url, namespace=NAMESPACE)) as watched:
            await scenario(watched, StateWriter(server.url, NAMESPACE, ttl_s=POLICY.ttl_s))

    asyncio.run(main())


def test_endpoints_come_change_and_say_goodbye(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        async with writer.beating(A, every_s=0.2):
            await watched.until_knows("a")
            await writer.put(B)
            await watched.until_knows("a", "b")
            await writer.put(B, free="7")
            await watched.until(
                lambda: any(isinstance(e, EndpointSeen) and e.record.free_memory_bytes == 7 for e in watched.events),
                "the changed field",
            )
            await writer.remove(B)
            await watched.until_knows("a")
        assert watched.gone == [("b", GoneReason.DEREGISTERED)]
        assert watched.modes == []
        assert watched.source.view.counts[Count.GAPS] == 0

    follow(server, scenario)


def test_what_was_there_before_the_start_is_read(server: RedisServer) -> None:
    async def main() -> None:
        writer = StateWriter(server.url, NAMESPACE)
        await writer.put(A)
        async with watching(StateStore(url=server.url, namespace=NAMESPACE)) as watched:
            await watched.until_knows("a")
            assert watched.source.tried

    asyncio.run(main())


def test_one_that_falls_silent_expires_while_another_speaks(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        async with writer.beating(A, every_s=0.1):
            async with writer.beating(B, every_s=0.1):
                await watched.until_knows("a", "b")
            await watched.until_knows("a")
        assert watched.gone == [("b", GoneReason.EXPIRED)]
        assert watched.modes == []

    follow(server, scenario)


def test_a_server_that_hangs_is_noticed_and_costs_nothing(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        async with writer.beating(A, B, every_s=0.2):
            await watched.until_knows("a", "b")
            server.pause()
            try:
                await watched.until_mode(StoreMode.FROZEN, within_s=4.0)
                await asyncio.sleep(2 * POLICY.ttl_s)
            finally:
                server.resume()
            assert await watched.until_mode(StoreMode.LIVE) < 3.0
            await watched.until_knows("a", "b")
        assert watched.gone == []

    follow(server, scenario)


def test_a_server_killed_and_started_empty_loses_nobody_who_registers_again(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        async with writer.beating(A, B, every_s=0.2):
            await watched.until_knows("a", "b")
            server.kill()
            await watched.until_mode(StoreMode.FROZEN, within_s=3.0)
            server.start()
            assert await watched.until_mode(StoreMode.LIVE) < 3.0
        assert watched.gone == []
        assert watched.modes == [StoreMode.FROZEN, StoreMode.LIVE]
        assert watched.source.view.counts[Count.EMPTIED] == 1

    follow(server, scenario)


def test_one_that_does_not_come_back_after_an_empty_start_is_kept_for_the_grace_period(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        async with writer.beating(A, every_s=0.1):
            async with writer.beating(B, every_s=0.1):
                await watched.until_knows("a", "b")
                server.kill()
            await watched.until_mode(StoreMode.FROZEN)
            server.start()
            await watched.until(lambda: watched.source.counts.connects == 2, "reconnects")
            back = time.monotonic()
            await watched.until_knows("a")
            assert time.monotonic() - back >= POLICY.empty_store_grace_s - 0.2
        assert watched.gone == [("b", GoneReason.EXPIRED)]

    follow(server, scenario)


def test_content_flushed_under_a_live_connection_comes_back(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        async with writer.beating(A, B, every_s=0.2):
            await watched.until_knows("a", "b")
            for _ in range(5):
                await writer.beat(A)
            await writer.command("FLUSHALL")
            await watched.until(lambda: watched.source.view.counts[Count.EMPTIED] > 0, "notices")
            await watched.until_mode(StoreMode.LIVE)
            await watched.until_knows("a", "b")
        assert watched.gone == []

    follow(server, scenario)


def test_everybody_silent_freezes_and_takes_nobody_away(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        await writer.put(A)
        await writer.put(B)
        await watched.until_knows("a", "b")
        await watched.until_mode(StoreMode.FROZEN)
        await asyncio.sleep(POLICY.ttl_s)
        assert set(watched.source.view.ids) == {"a", "b"}
        async with writer.beating(A, B, every_s=0.2):
            await watched.until_mode(StoreMode.LIVE)
        assert watched.gone == []

    follow(server, scenario)


def test_the_only_worker_that_dies_is_let_go_although_nobody_speaks(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.state.store.RECONCILE_S", 0.5)

    async def scenario(watched: Watched, writer: StateWriter) -> None:
        watched.source.answered_at = lambda name: time.monotonic() if name == "b" else float("-inf")
        await writer.put(A)
        await writer.put(B)
        await watched.until_knows("a", "b")
        await watched.until_mode(StoreMode.FROZEN)
        await watched.until_knows("b")  # it answers requests
        watched.source.answered_at = lambda _: float("-inf")
        await watched.until_knows()
        await watched.until_mode(StoreMode.LIVE)
        assert watched.gone == [("a", GoneReason.EXPIRED), ("b", GoneReason.EXPIRED)]

    follow(server, scenario)


def test_a_lost_message_is_made_up_for_by_a_read(server: RedisServer) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        await writer.put(A)
        await watched.until_knows("a")
        keys = Keys(NAMESPACE)
        await writer.command("INCR", keys.revision)  # as if somebody's message had not reached us
        await writer.put(B)
        await watched.until_knows("a", "b")
        assert watched.source.view.counts[Count.GAPS] == 1

    follow(server, scenario)


def test_a_bad_record_is_skipped_logged_and_the_rest_stays(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        await writer.put(A, replicas='{"not": "a list"}')
        await writer.put(B)
        await watched.until_knows("b")
        assert watched.source.view.bad.total() >= 1

    follow(server, scenario)
    logged = [vars(record) for record in caplog.records if record.getMessage() == "store.bad_record"]
    assert "'reason': 'malformed'" in str(logged)


def test_a_key_of_another_type_is_a_bad_record_and_the_rest_is_followed(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        keys = Keys(NAMESPACE)
        view = watched.source.view
        async with writer.beating(A, every_s=0.2):
            await watched.until_knows("a")
            await writer.command("SET", keys.endpoint("evil"), "foo")
            await writer.command("ZADD", keys.index, "9000000000000000", "evil")
            for number in range(2):  # a gap each time, which a full read closes
                reads = view.counts[Count.READS]
                await writer.command("INCR", keys.revision)
                await watched.until(lambda reads=reads: view.counts[Count.READS] > reads, "it is read")  # type: ignore[misc]
                assert view.bad.total() == number + 1
            async with writer.beating(B, every_s=0.2):
                await watched.until_knows("a", "b")
            assert (watched.source.counts.connects, watched.source.counts.failures) == (1, 0)
            assert watched.modes == []
        assert "wr:{test}:ep:evil is no hash: delete that key" in str(
            [vars(record) for record in caplog.records if record.getMessage() == "store.bad_record"]
        )

    follow(server, scenario)


@pytest.mark.parametrize(("key", "kind"), [("index", "sorted set"), ("revision", "number")])
def test_an_index_or_a_revision_of_another_type_is_a_store_that_is_down_and_says_which_key(
    server: RedisServer, caplog: pytest.LogCaptureFixture, key: str, kind: str
) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        keys = Keys(NAMESPACE)
        name = getattr(keys, key)
        await writer.put(A)
        await watched.until_knows("a")
        await writer.command("INCR", keys.revision)
        await writer.command("DEL", name)
        await writer.command("HSET", name, "a", "b")
        await writer.command("PUBLISH", keys.channel, '{"v":1,"id":"z","epoch":"e","rev":9,"kind":"beat"}')  # a gap
        await watched.until(lambda: watched.source.counts.failures > 0, "it fails")
        began, failures = time.monotonic(), watched.source.counts.failures
        await asyncio.sleep(1.5)
        assert watched.source.counts.failures - failures <= (time.monotonic() - began) / 0.05
        assert set(watched.source.view.ids) == {"a"}
        said = str([vars(record) for record in caplog.records if record.getMessage() == "store.down"])
        assert f"wr:{{test}}:{name.rpartition(':')[2]} is no {kind}: delete that key" in said
        await writer.command("DEL", name)
        await writer.put(B)
        await watched.until(lambda: "b" in watched.source.view.ids, "it follows again")

    follow(server, scenario)


def test_a_revision_that_is_none_is_a_store_that_is_down_and_costs_nobody(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(watched: Watched, writer: StateWriter) -> None:
        await writer.put(A)
        await watched.until_knows("a")
        keys = Keys(NAMESPACE)
        await writer.command("SET", keys.revision, "abc")
        watched.source._wake.set()
        await watched.until_mode(StoreMode.FROZEN)
        assert set(watched.source.view.ids) == {"a"}
        await writer.command("DEL", keys.revision)
        async with writer.beating(A, every_s=0.2):
            await watched.until_mode(StoreMode.LIVE)
        assert watched.gone == []

    follow(server, scenario)
    down = [record for record in caplog.records if record.message == "store.down"]
    assert {record.levelname for record in down} == {"WARNING"}
    assert "the revision in the store is not a number" in str(down[0].__dict__["warmroute_fields"])


def test_an_error_nobody_thought_of_costs_the_session_and_is_said_with_its_place(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def down() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.message == "store.down"]

    async def main() -> None:
        source = RedisSource(
            StateStore(url=server.url, namespace=NAMESPACE), POLICY, clock=time.monotonic, rng=random.Random(1).random
        )
        failures = [ArithmeticError("odd"), LookupError("odd too")]
        told: list[Found] = []

        def emit(event: Found) -> None:
            if isinstance(event, EndpointSeen) and failures:
                raise failures.pop()
            told.append(event)

        writer = StateWriter(server.url, NAMESPACE)
        async with writer.beating(A, every_s=0.2), beside(source.run(emit)):
            await until(lambda: down() and source.counts.connects > 0, "connects in spite of it")

    asyncio.run(main())
    assert down()[0].levelname == "ERROR"
    assert down()[0].exc_info


def test_no_server_at_all_is_frozen_and_keeps_trying(tmp_path: Path) -> None:
    async def main() -> None:
        server = RedisServer(tmp_path)
        async with watching(StateStore(url=server.url, namespace=NAMESPACE)) as watched:
            await watched.until_mode(StoreMode.FROZEN, within_s=2.0)
            assert (watched.source.tried, watched.source.complete) == (True, False)
            server.start()
            try:
                assert await watched.until_mode(StoreMode.LIVE) < 3.0
            finally:
                server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["url", "file"])
def test_password_in_the_url_or_in_a_file(tmp_path: Path, how: str) -> None:
    server = RedisServer(tmp_path, "--requirepass", "s3cret")
    server.start()
    password_file = tmp_path / "password"
    password_file.write_text("s3cret\n")
    with_password = server.url.replace("unix://", "unix://:s3cret@")
    settings = (
        StateStore(url=with_password, namespace=NAMESPACE)
        if how == "url"
        else StateStore(url=server.url, namespace=NAMESPACE, password_file=str(password_file))
    )

    async def main() -> None:
        async with watching(settings) as watched:
            await StateWriter(with_password, NAMESPACE).put(A)
            await watched.until_knows("a")

    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_a_wrong_password_is_said_without_being_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = RedisServer(tmp_path, "--requirepass", "s3cret")
    server.start()
    url = server.url.replace("unix://", "unix://:wr0ng@")

    async def main() -> None:
        async with watching(StateStore(url=url, namespace=NAMESPACE)) as watched:
            await watched.until_mode(StoreMode.FROZEN)

    try:
        asyncio.run(main())
    finally:
        server.stop()
    told = [record.__dict__["warmroute_fields"] for record in caplog.records if record.message == "store.down"]
    assert told
    assert "wr0ng" not in json.dumps(told)


def test_a_pause_of_this_process_longer_than_a_lease_lets_nobody_go(server: RedisServer) -> None:
    """What was said meanwhile waits in the socket and is heard piece by piece; nobody goes between two pieces."""
    records = [worker_record(f"worker-{number:03}", port=10_000 + number) for number in range(300)]
    over = threading.Event()

    def beat() -> None:
        client = redis.Redis(unix_socket_path=str(server.socket))
        keys = Keys(NAMESPACE)
        script: Any = client.script_load(WRITE_LUA)
        calls = []
        for record in records:
            fields = [part for pair in encode_fields(record).items() for part in pair]
            own = (record.id, record.epoch, "1000", keys.channel, "1")
            calls.append((keys.endpoint(record.id), keys.revision, keys.index, *own, *fields))
        while not over.wait(0.15):
            pipe = client.pipeline(transaction=False)
            for call in calls:
                pipe.evalsha(script, 3, *call)
            pipe.execute()
        client.close()

    async def scenario(watched: Watched, _: StateWriter) -> None:
        thread = threading.Thread(target=beat)
        thread.start()
        try:
            await watched.until_knows(*(record.id for record in records))
            for _round in range(3):
                time.sleep(2.5 * POLICY.ttl_s)  # noqa: ASYNC251  as if suspended
                await asyncio.sleep(1.2 * POLICY.ttl_s)
                assert watched.gone == []
        finally:
            over.set()
            thread.join()

    follow(server, scenario)


def test_a_task_that_takes_its_cancellation_for_a_timeout_does_not_hold_the_session_up(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swallows_one(*_: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    monkeypatch.setattr(RedisSource, "_ping", swallows_one)

    async def scenario(watched: Watched, writer: StateWriter) -> None:
        await watched.until(lambda: watched.source.counts.connects == 1, "it follows")
        server.kill()
        server.start()
        await watched.until(lambda: watched.source.counts.connects == 2, "it follows again")
        await writer.put(A)
        await watched.until_knows("a")

    follow(server, scenario)
