"""A model whose workers are found by name: they come, they go, and a name server that is gone takes nobody away."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dns.rcode
import pytest

from tests.support.http_origin import Handler, HttpOrigin
from tests.support.name_server import NameServer
from tests.support.product import Sidecar, running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.beside]

SERVICE = "_http._tcp.workers.test"


class Named(Handler):
    """A worker that answers with its port."""

    def get(self) -> None:
        self.answer(str(self.server.server_port).encode())  # type: ignore[attr-defined]


@contextmanager
def name_server() -> Iterator[tuple[NameServer, int]]:
    server = NameServer()
    server.ttl_s = 1
    loop = asyncio.new_event_loop()
    port = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server, port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def listed(*ports: int) -> dict[tuple[str, str], list[str] | dns.rcode.Rcode]:
    return {
        (f"{SERVICE}.", "SRV"): [f"0 0 {port} here.test." for port in ports],
        ("here.test.", "A"): ["127.0.0.1"],
    }


def served_by(sidecar: Sidecar) -> int:
    with urllib.request.urlopen(f"http://{sidecar.listen}/v2/models/m/infer", timeout=5) as answer:
        return int(answer.read())


def test_workers_come_and_go_by_name_and_a_silent_name_server_empties_no_route(tmp_path: Path) -> None:
    with HttpOrigin(Named) as first, HttpOrigin(Named) as second, name_server() as (names, port):
        one, two = first.port, second.port
        names.records = listed(one)
        settings = {
            "dns": {"servers": [f"127.0.0.1:{port}"], "timeout_s": 0.5},
            "models": [
                {"name": "m", "dns": {"name": SERVICE, "type": "srv", "refresh_s": 1}, "probe": {"interval_s": 0.1}}
            ],
        }
        with running(tmp_path, settings=settings) as sidecar:
            until(lambda: sidecar.open_to("m") == {f"127.0.0.1:{one}"}, "the first worker")
            assert served_by(sidecar) == one
            names.records = listed(one, two)
            until(lambda: sidecar.open_to("m") == {f"127.0.0.1:{one}", f"127.0.0.1:{two}"}, "the second one")
            until(lambda: served_by(sidecar) == two, "its share")
            assert sidecar.metric("warmroute_endpoints", source="dns") == 2

            def failed() -> float:
                return sidecar.metric("warmroute_dns_lookups_total", result="failed")

            names.records = {(f"{SERVICE}.", "SRV"): dns.rcode.SERVFAIL}
            until(lambda: failed() >= 1, "a failure")
            names.silent = True
            before = failed()
            until(lambda: failed() > before, "silence")
            names.silent = False
            names.records = {}
            until(lambda: sidecar.metric("warmroute_dns_lookups_total", result="empty") >= 1, "an empty answer")
            assert sidecar.open_to("m") == {f"127.0.0.1:{one}", f"127.0.0.1:{two}"}
            assert served_by(sidecar) in (one, two)
            assert sidecar.process.events("dns.failed")
            os.kill(sidecar.process.child("control"), signal.SIGKILL)  # and its successor has nobody to ask
            sidecar.process.await_event("process.started", count=2, name="control")
            until(sidecar.ready, "ready again")
            for index in range(2):
                os.kill(sidecar.process.child(f"data-{index}"), signal.SIGKILL)
                sidecar.process.await_event("process.accepting", count=3 + index)
                assert served_by(sidecar) in (one, two)
            until(lambda: sidecar.open_to("m") == {f"127.0.0.1:{one}", f"127.0.0.1:{two}"}, "both known")
            names.records = listed(two)
            until(lambda: sidecar.open_to("m") == {f"127.0.0.1:{two}"}, "the first one gone")
            assert {served_by(sidecar) for _ in range(8)} == {two}
            requests = sidecar.samples("warmroute_requests_total")
            assert {labels["outcome"] for labels, count in requests if count} == {"ok"}
