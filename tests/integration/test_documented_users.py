"""The users with least rights that the documents print: they work, on both servers that the project is tested with."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from router.model import EndpointSeen, SnapshotEnded
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept
from tests.support.control_process import ControlProcess
from tests.support.redis_server import RedisServer
from tests.support.state_writer import StateWriter, worker_record
from tests.support.worker_process import WorkerProcess

DOCS = Path(__file__).parents[2] / "docs"


def rules(page: str, user: str) -> list[str]:
    """Return the words of the ACL SETUSER line for ``user`` on ``page``, behind the user's name."""
    found = re.search(rf"^    ACL SETUSER {user} (.+(?:\n        .+)*)$", (DOCS / page).read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


@pytest.fixture(params=["valkey", "debian"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    program = None
    if request.param == "debian":
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
    made = RedisServer(tmp_path, program=program)
    made.start()
    yield made
    made.stop()


def set_user(server: RedisServer, user: str, page: str) -> str:
    """Make the documented user and return the store's URL for it."""
    words = [word.replace(">PASSWORD", ">secret") for word in rules(page, user)]
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
        assert client.execute_command("ACL", "SETUSER", user, *words) in ("OK", True)
    return server.url.replace("unix://", f"unix://{user}:secret@")


def test_the_sidecar_s_user_follows_a_fleet(server: RedisServer, tmp_path: Path) -> None:
    url = set_user(server, "sidecar", "state.md")
    state = {"url": url, "namespace": "prod"}
    with ControlProcess(tmp_path, state=state, models=[{"name": "m"}]) as control:
        asyncio.run(StateWriter(server.url, "prod", ttl_s=60).put(worker_record("a")))
        control.hello()
        control.receive(0, lambda got: any(isinstance(m, EndpointSeen) and m.record.id == "a" for m in got), "a")
        assert control.ask("/healthz").json["store_mode"] == "live"


def test_the_sidecar_s_user_keeps_finds_and_clears_answers(server: RedisServer, tmp_path: Path) -> None:
    url = set_user(server, "sidecar", "state.md")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
    with ControlProcess(tmp_path, state={"url": url, "namespace": "prod"}, models=[{"name": "m"}]) as control:
        control.hello()
        control.receive(0, lambda got: any(isinstance(m, SnapshotEnded) for m in got), "the snapshot")
        for number in range(3):  # of which there is room for two
            assert control.data[0].send(AnswerKept(b"%d" % number, head, b"body", 60_000, 0, 2, 1 << 20))

        def found(got: list[object]) -> bool:
            answers = [message for message in got if isinstance(message, AnswerFound)]
            if not answers or answers[-1].head != head:
                assert control.data[0].send(AnswerAsked(len(answers), b"2"))
            return bool(answers) and answers[-1].head == head

        control.receive(0, found, "the answer that was kept last")
        assert control.ask("/cache", method="DELETE", unix=True).status == 200
        assert "\nwarmroute_cache_shared_lost_total 0\n" in control.ask("/metrics").text
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
        assert client.keys("*cache*") == []


def test_a_user_without_the_commands_of_the_second_tier_loses_its_answers_and_is_told(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        url = set_user(server, "sidecar", "state.md")
        with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
            assert client.execute_command("ACL", "SETUSER", "sidecar", "-incrby") in ("OK", True)
        with ControlProcess(tmp_path, state={"url": url, "namespace": "prod"}, models=[{"name": "m"}]) as control:
            control.hello()
            control.receive(0, lambda got: any(isinstance(m, SnapshotEnded) for m in got), "the snapshot")
            assert control.data[0].send(AnswerKept(b"1", b"HTTP/1.1 200 OK\r\n", b"body", 60_000, 0, 2, 1 << 20))
            lost = "\nwarmroute_cache_shared_lost_total 1\n"
            until = time.monotonic() + 10
            while lost not in control.ask("/metrics").text:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert [event["error"] for event in control.events() if event["event"] == "answers.down"]
    finally:
        server.stop()


def test_the_worker_s_user_registers(server: RedisServer) -> None:
    url = set_user(server, "worker", "worker.md")
    flags = (
        "--listen",
        "127.0.0.1:0",
        "--engine",
        "deterministic",
        "--state",
        url,
        "--namespace",
        "prod",
        "--id",
        "w",
        "--model",
        "m",
    )
    with (
        WorkerProcess(*flags) as worker,
        redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as client,
    ):
        worker.event("state.registered")
        assert client.hget("wr:{prod}:ep:w", "v") == "1"
