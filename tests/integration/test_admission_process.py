"""A whole sidecar: a lazy model that a server loads once, and a limit that its processes share."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.http_origin import Handler, HttpOrigin
from tests.support.sidecar_process import SidecarProcess, free_port, sidecar_process
from tests.support.sidecars import until

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))


class Server(HttpOrigin):
    """A server that speaks the V2 protocol with explicit loading, as Triton does; ``gate`` holds its answers back."""

    def __init__(self, *, loaded: bool) -> None:
        self.loaded = loaded
        self.asked: list[str] = []
        self.inferred: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()
        server = self

        class Answers(Handler):
            def get(self) -> None:
                if self.path == "/v2":
                    self._say(200, {"name": "triton", "version": "2", "extensions": ["model_repository"]})
                elif self.path.endswith("/ready"):
                    self._say(200 if server.loaded else 400, {})
                else:
                    self._say(404, {"error": "not found"})

            def post(self) -> None:
                body = self.body()
                if self.path == "/v2/models/m/infer":
                    with server._lock:
                        server.inferred.append(body)
                    server.gate.wait(20)
                    self._say(200 if server.loaded else 400, {"model_name": "m"})
                    return
                server.asked.append(self.path)
                if self.path == "/v2/repository/index":
                    state = {"state": "READY"} if server.loaded else {"state": "UNAVAILABLE", "reason": "unloaded"}
                    self._say(200, [{"name": "m", "version": "1"} | state])
                elif self.path == "/v2/repository/models/m/load":
                    time.sleep(0.3)
                    server.loaded = True
                    self._say(200, {})
                else:
                    self._say(404, {"error": "not found"})

            def _say(self, status: int, document: object) -> None:
                self.answer(json.dumps(document).encode(), status, {"Content-Type": "application/json"})

        super().__init__(Answers)

    def stop(self) -> None:
        self.gate.set()
        super().stop()


def infer(running: SidecarProcess, body: bytes) -> int:
    connection = http.client.HTTPConnection(running.listen, timeout=20)
    try:
        connection.request("POST", "/v2/models/m/infer", body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def metric(running: SidecarProcess, line: str) -> float:
    for one in running.read("/metrics")[1].decode().splitlines():
        if one.startswith(line + " "):
            return float(one.rpartition(" ")[2])
    return -1.0


def test_one_of_many_requests_has_a_cold_model_loaded(tmp_path: Path) -> None:
    with Server(loaded=False) as server:
        model = {
            "name": "m",
            "endpoints": [server.url],
            "on_no_candidate": "lazy",
            "probe": {"kind": "triton", "interval_s": 0.1, "load": False},
        }
        with sidecar_process(tmp_path, {"models": [model]}) as running:  # which is ready, for it can load
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(lambda turn: infer(running, b"%d" % turn), range(8))) == [200] * 8
            assert server.asked == ["/v2/repository/index", "/v2/repository/models/m/load"]
            assert sorted(server.inferred) == [b"%d" % turn for turn in range(8)]
            until(lambda: metric(running, 'warmroute_loads_total{result="loaded"}') == 1, "the load is counted")
            until(lambda: metric(running, 'warmroute_queue_wait_seconds_count{model="m"}') == 8, "who waited, too")
            running.process.await_event("model.loaded", model="m")


def test_what_waits_is_shown(tmp_path: Path) -> None:
    with Server(loaded=True) as server:
        server.gate.clear()
        model = {"name": "m", "endpoints": [server.url], "admission": {"requests": 1}}
        settings = {
            "models": [model],
            "policies": {"admission": {"queue_wait_s": 30, "queue_requests": 1, "priority": {"classes": {"low": -1}}}},
        }
        with sidecar_process(tmp_path, settings) as running, ThreadPoolExecutor(3) as pool:
            first = pool.submit(infer, running, b"1")
            until(lambda: server.inferred, "at the worker")
            second = pool.submit(infer, running, b"2")

            def queue() -> dict[str, Any]:
                (found,) = json.loads(running.read("/routes")[1])["queues"]
                return dict(found)

            until(lambda: queue()["waiting"] == 1, "waits")
            assert infer(running, b"3") == 503
            until(lambda: queue()["in_flight"] == 1, "the gauge")
            assert queue() == {
                "model": "m", "waiting": 1, "turned_away": 1, "in_flight": 1, "limit": 1, "on_no_candidate": "fail",
            }  # fmt: skip
            environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
            command = [WARMROUTE, "routes", "explain", "--model", "m", "--admin", f"http://{running.admin}"]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=True)
            assert "in flight of the model: 1 of 1" in done.stdout
            assert "queue: 1 waiting, 1 turned away so far" in done.stdout
            away = 'warmroute_queue_turned_away_total{model="m",class="default",reason="full"}'
            until(lambda: metric(running, away) == 1, "it is counted")
            assert metric(running, 'warmroute_queue_requests{model="m"}') == 1
            assert metric(running, 'warmroute_model_requests_limit{model="m"}') == 1
            server.gate.set()
            assert (first.result(), second.result()) == (200, 200)
            (event,) = running.process.events("request.turned_away")
            assert (event["model"], event["reason"], event["waiting"]) == ("m", "full", 1)


def test_a_limit_of_the_sidecar_is_divided_anew_when_a_process_dies(tmp_path: Path) -> None:
    with Server(loaded=True) as server:
        server.gate.clear()
        model = {"name": "m", "endpoints": [server.url], "admission": {"requests": 2}}
        listen = f"127.0.0.1:{free_port()}"
        settings = {
            "models": [model],
            "listeners": [{"address": listen, "processes": 2}],
            "policies": {"admission": {"queue_wait_s": 30}},
        }
        with sidecar_process(tmp_path, settings) as running, contextlib.ExitStack() as callers:
            running.process.await_event("limits.divided", data_processes=[0, 1])
            host, _, port = listen.partition(":")
            for turn in range(24):  # the kernel spreads them: one process having none of them is one in ten million
                caller = callers.enter_context(socket.create_connection((host, int(port)), timeout=20))
                caller.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n%02d" % turn)
            until(lambda: len(server.inferred) == 2, "one from each process")
            until(lambda: metric(running, 'warmroute_queue_requests{model="m"}') == 22, "all others wait")
            until(lambda: metric(running, 'warmroute_model_requests_limit{model="m"}') == 2, "both halves are shown")
            assert len(server.inferred) == 2
            os.kill(running.process.child("data-1"), signal.SIGKILL)
            began = time.monotonic()
            until(lambda: len(server.inferred) == 3, "the other process has all of it", 3.0)
            assert time.monotonic() - began < 3
            running.process.await_event("limits.divided", data_processes=[0])
            running.process.await_event("limits.divided", count=2, data_processes=[0, 1])  # its successor is there
            until(lambda: metric(running, 'warmroute_model_requests_limit{model="m"}') == 2, "divided again")
            server.gate.set()
