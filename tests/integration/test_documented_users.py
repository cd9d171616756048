"""The users with least rights that the documents print: they work, on both servers that the project is tested with."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import redis

from router.model import EndpointSeen
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
