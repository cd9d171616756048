"""A tensor-parallel group of four behind a whole sidecar: asked at its entry, left when a member dies, asked again."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from router.model import EndpointRecord, Replica, State
from tests.support.http_origin import Echo, HttpOrigin
from tests.support.product import running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.state_writer import StateWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.product import Sidecar

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(90)]

RECONCILE_S = 10.0
NAMESPACE = "test"


class Group:
    """Keeps the records of those alive in the store, as their workers would; the entry answers on a real socket."""

    def __init__(self, server: RedisServer, entry_port: int) -> None:
        self._writer = StateWriter(server.url, NAMESPACE)
        self._entry_port = entry_port
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.alive: dict[str, EndpointRecord] = {}

    def join(self, shard: int, *, name: str = "", state: State = State.WARM) -> None:
        """Have a member speak from now on, or say something else than before."""
        id_ = name or f"w{shard}"
        replica = Replica("llm", "1", shard, 4, state, generation=3, group="g", warm_for_s=60.0)
        port = self._entry_port if shard == 0 else 9
        record = EndpointRecord(id_, f"http://127.0.0.1:{port}", epoch=f"e-{id_}", replicas=(replica,))
        with self._lock:
            self.alive[id_] = record
            asyncio.run(self._writer.put(record))

    def die(self, id_: str) -> None:
        """Have a member say nothing any more, as one that was killed."""
        with self._lock:
            del self.alive[id_]

    def leave(self, id_: str) -> None:
        """Have a member deregister."""
        with self._lock:
            asyncio.run(self._writer.remove(self.alive.pop(id_)))

    @contextmanager
    def speaking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._speak)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _speak(self) -> None:
        while not self._over.wait(0.5):
            with self._lock:
                for record in self.alive.values():
                    asyncio.run(self._writer.beat(record))


def ask(sidecar: Sidecar) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(sidecar.listen, timeout=5)
    try:
        connection.request("POST", "/v2/models/llm/infer", b'{"n": 1}')
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_member_that_dies_takes_its_group_out_within_one_reconcile(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        server.start()
        stack.callback(server.stop)
        group = Group(server, stack.enter_context(HttpOrigin(Echo)).port)
        for shard in range(4):
            group.join(shard)
        stack.enter_context(group.speaking())
        settings = {
            "state": {"url": server.url, "namespace": NAMESPACE},
            "models": [{"name": "llm", "shards": {"mode": "tensor", "count": 4}}],
        }
        sidecar = stack.enter_context(running(tmp_path, settings=settings))
        assert sidecar.open_to("llm") == {"w0"}
        assert {ask(sidecar)[0] for _ in range(20)} == {200}
        assert sidecar.metric("warmroute_groups", model="llm", version="1", state="complete") == 1

        group.die("w2")
        died_at = time.monotonic()
        until(lambda: sidecar.open_to("llm") == set(), "the group is out", within_s=RECONCILE_S)
        until(lambda: ask(sidecar)[0] == 503, "nobody asks its entry")
        assert time.monotonic() - died_at < RECONCILE_S
        assert {ask(sidecar)[0] for _ in range(20)} == {503}
        assert "group_incomplete (shard 2" in json.loads(ask(sidecar)[1])["error"]
        assert sidecar.metric("warmroute_groups", model="llm", version="1", state="incomplete") == 1

        (entry_row,) = (one for one in sidecar.json("/endpoints")["endpoints"] if one["id"] == "w0")
        (replica,) = entry_row["replicas"]
        assert (replica["group"], replica["shard"], replica["out"]) == ("g", 0, "group_incomplete")
        assert replica["lacks"][0].startswith("shard 2")

        group.join(2, name="w2b", state=State.LOADING)
        until(lambda: sidecar.candidates("llm")["w0"]["lacks"] == ["shard 2 at w2b: not_warm"], "it is said")
        assert ask(sidecar)[0] == 503
        group.join(2, name="w2b")
        until(lambda: ask(sidecar)[0] == 200, "it is whole again")

        group.leave("w3")
        until(lambda: ask(sidecar)[0] == 503, "a member that says so leaves at once")
        assert "shard 3: nobody holds it" in json.loads(ask(sidecar)[1])["error"]
