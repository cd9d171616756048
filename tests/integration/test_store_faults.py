"""Faults of the state store, on a real server with callers of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sidecar.faults.processes import FaultKeeper, ProcessFault, ProcessFaultError
from sidecar.state.embedded import EmbeddedRedis
from sidecar.up.hold import held
from tests.support.redis_server import RedisServer
from tests.support.sidecars import gone, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def caller(server: RedisServer) -> Iterator[redis.Redis]:
    """A caller that holds its connection, and says what becomes of it."""
    caller = connected(server.url)
    caller.set("kept", "1")
    try:
        yield caller
    finally:
        caller.close()


@pytest.fixture
def keeper() -> Iterator[FaultKeeper]:
    with FaultKeeper() as keeper:
        yield keeper


def connected(url: str, timeout_s: float = 10.0) -> redis.Redis:
    return redis.Redis.from_url(
        url, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0), single_connection_client=True, decode_responses=True
    )


def test_a_paused_store_answers_nothing_and_then_what_waited(
    keeper: FaultKeeper, server: RedisServer, caller: redis.Redis
) -> None:
    kept = keeper.begin(ProcessFault("store_pause", url=server.url))
    hasty = redis.Redis.from_url(server.url, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    with pytest.raises(redis.TimeoutError):
        hasty.ping()
    hasty.close()
    assert kept.end()
    assert caller.get("kept") == "1"


def test_a_store_that_is_read_only_refuses_writes_and_nothing_else(
    keeper: FaultKeeper, server: RedisServer, caller: redis.Redis
) -> None:
    kept = keeper.begin(ProcessFault("store_read_only", url=server.url))
    assert caller.get("kept") == "1"
    with pytest.raises(redis.ReadOnlyError):
        caller.set("kept", "2")
    with pytest.raises(ProcessFaultError, match="store_read_only is in force there: end it first"):
        keeper.begin(ProcessFault("store_failover", url=server.url))
    assert kept.end()
    caller.set("kept", "2")
    assert caller.get("kept") == "2"


def test_somebody_else_s_replica_is_left_alone(keeper: FaultKeeper, server: RedisServer, caller: redis.Redis) -> None:
    caller.replicaof("127.0.0.1", 2)
    with pytest.raises(ProcessFaultError, match="is a slave already: name the primary"):
        keeper.begin(ProcessFault("store_read_only", url=server.url))
    caller.replicaof("NO", "ONE")
    kept = keeper.begin(ProcessFault("store_read_only", url=server.url))
    caller.replicaof("127.0.0.1", 2)
    assert not kept.end()
    assert caller.role()[2] == 2


def test_a_failover_cuts_callers_twice(keeper: FaultKeeper, server: RedisServer, caller: redis.Redis) -> None:
    kept = keeper.begin(ProcessFault("store_failover", url=server.url))
    with pytest.raises(redis.ConnectionError):
        caller.ping()
    between = connected(server.url)
    with pytest.raises(redis.ReadOnlyError):
        between.set("kept", "2")
    assert kept.end()
    with pytest.raises(redis.ConnectionError):
        between.ping()
    between.set("kept", "2")  # on another connection
    between.close()


def test_a_store_that_refuses_lives_on_and_keeps_what_it_holds(
    keeper: FaultKeeper, server: RedisServer, caller: redis.Redis
) -> None:
    kept = keeper.begin(ProcessFault("store_refused", url=server.url))
    with pytest.raises(redis.ConnectionError):
        caller.ping()
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(str(server.socket))
    with pytest.raises(ProcessFaultError, match="Connection refused"):
        keeper.begin(ProcessFault("store_pause", url=server.url))
    assert kept.end()
    assert connected(server.url).get("kept") == "1"
    assert sorted(path.name for path in server.socket.parent.iterdir()) == ["redis.log", "redis.sock"]


def test_a_server_that_came_since_keeps_its_socket(keeper: FaultKeeper, server: RedisServer) -> None:
    kept = keeper.begin(ProcessFault("store_refused", url=server.url))
    server.kill()
    server.start()
    assert not kept.end()
    assert connected(server.url).ping()
    assert sorted(path.name for path in server.socket.parent.iterdir()) == ["redis.log", "redis.sock"]


@pytest.mark.parametrize("kind", ["store_pause", "store_read_only", "store_failover", "store_refused"])
def test_a_store_is_as_it_was_when_the_keeper_was_killed(kind: str, server: RedisServer, caller: redis.Redis) -> None:
    keeper = FaultKeeper()
    keeper.begin(ProcessFault(kind, url=server.url))
    os.kill(keeper.pid, signal.SIGKILL)
    until(lambda: gone(keeper.pid), "the keeper is killed")
    keeper.close()
    after = connected(server.url)
    after.set("kept", "2")
    assert after.get("kept") == "2"
    after.close()


def test_a_server_on_a_port_is_found_by_its_url(tmp_path: Path, keeper: FaultKeeper) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = RedisServer(tmp_path, "--port", str(port), "--bind", "127.0.0.1", "--requirepass", "secret")
    server.start()
    try:
        url = f"redis://:secret@127.0.0.1:{port}"
        kept = keeper.begin(ProcessFault("store_read_only", url=url))
        assert kept.memo["pid"] == server.pid
        with pytest.raises(redis.ReadOnlyError):
            connected(url).set("kept", "2")
        assert kept.end()
        connected(url).set("kept", "2")
        for fault, text in (
            (ProcessFault("store_refused", url=url), r"store_refused: needs url: unix:///PATH"),
            (
                ProcessFault("store_pause", url=f"redis://:wrong@127.0.0.1:{port}"),
                r"store_pause: redis://127.0.0.1:\d+: ",
            ),
            (
                ProcessFault("store_pause", url="redis://:secret@192.0.2.1"),
                r"store_pause: redis://192.0.2.1: must be unix",
            ),
            (ProcessFault("store_stop"), "name the process"),
            (ProcessFault("store_read_only", pid=server.pid), "store_read_only: needs url"),
        ):
            with pytest.raises(ProcessFaultError, match=text) as raised:
                keeper.begin(fault)
            assert "secret" not in str(raised.value)
    finally:
        server.kill()


def test_a_stopped_store_is_held_until_the_end(keeper: FaultKeeper, tmp_path: Path) -> None:
    embedded = EmbeddedRedis(tmp_path)
    embedded.start()
    try:
        kept = keeper.begin(ProcessFault("store_stop", url=embedded.url, for_s=300))
        until(lambda: not embedded.running, "the server is killed")
        assert held(embedded.socket_path)
        with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ConnectionRefusedError):
            sock.connect(str(embedded.socket_path))
        assert kept.end()
        assert not held(embedded.socket_path)
        embedded.start()
        again = keeper.begin(ProcessFault("store_stop", url=embedded.url, for_s=300))
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: gone(keeper.pid), "the keeper is killed")
        assert not held(embedded.socket_path), "nobody who lives holds it"
        again.end()
    finally:
        embedded.stop()


def test_a_store_that_is_killed_comes_back_empty(keeper: FaultKeeper, server: RedisServer, caller: redis.Redis) -> None:
    kept = keeper.begin(ProcessFault("store_restart", url=server.url))
    with pytest.raises(redis.ConnectionError):
        caller.ping()
    server.kill()
    server.start()
    assert connected(server.url).get("kept") is None
    assert not kept.end()


def test_what_would_die_of_a_full_disk_is_refused(keeper: FaultKeeper, server: RedisServer) -> None:
    plain = subprocess.Popen(["/bin/sleep", "60"])
    try:
        with pytest.raises(ProcessFaultError, match=f"full_disk: pid {plain.pid}: would die of SIGXFSZ"):
            keeper.begin(ProcessFault("full_disk", pid=plain.pid))
    finally:
        plain.kill()
        plain.wait()
