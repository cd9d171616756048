"""A whole sidecar whose workers are gone: what callers, operators and dashboards see of the ladder."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from router.wire import Keys
from tests.support.http_origin import Handler, HttpOrigin
from tests.support.redis_server import RedisServer
from tests.support.sidecar_process import SidecarProcess, sidecar_process
from tests.support.sidecars import until

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))


class Origin(Handler):
    """A worker's part: 200 and what it was sent; no connection outlives it."""

    def post(self) -> None:
        self.answer(self.body(), fields={"Connection": "close"})


def infer(running: SidecarProcess, body: bytes) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(running.listen, timeout=5)
    connection.request("POST", "/v2/models/m/infer", body)
    response = connection.getresponse()
    answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    connection.close()
    return answer


def said(running: SidecarProcess, *arguments: str, admin: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    done = subprocess.run(
        [WARMROUTE, *arguments, "--admin", admin], env=environ, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_seen_of_a_model_that_is_degraded(tmp_path: Path) -> None:
    origin = HttpOrigin(Origin)
    model: dict[str, Any] = {
        "name": "m",
        "endpoints": [origin.url],
        "cache": {},
        "static_answer": {"body": "[]"},
    }
    with origin, sidecar_process(tmp_path, {"models": [model], "policies": {"ladder": {"hold_s": 60}}}) as running:
        admin = f"http://{running.admin}"
        assert infer(running, b"one")[::2] == (200, b"one")
        origin.stop()
        for _ in range(3):
            kept = infer(running, b"one")
            assert kept[::2] == (200, b"one")
        assert (kept[1]["warmroute-degraded"], kept[1]["age"].isdigit()) == ("cache", True)
        assert infer(running, b"two")[1]["warmroute-degraded"] == "static"

        def degraded() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(running.read("/healthz")[1])["degraded"]
            return found

        until(lambda: degraded() == {"m": "cache"}, "seen")
        assert "<td>m<td>cache<td>" in running.read("/")[1].decode()
        (ladder,) = json.loads(running.read("/routes")[1])["ladders"]
        assert (ladder["step"], ladder["processes"]) == ("cache", {"0": "cache"})
        assert ladder["answers"]["static"] == 1

        def entries() -> int:
            return int(json.loads(running.read("/routes/explain?model=m")[1])["ladder"]["cache"]["entries"])

        until(lambda: entries() == 1, "counted")
        assert "m degraded: cache for" in said(running, "routes", admin=admin)
        assert "kept: 1 answers" in said(running, "routes", "explain", "--model", "m", admin=admin)
        metrics = running.read("/metrics")[1].decode()
        assert 'warmroute_ladder_step{process="0",model="m"} 3' in metrics
        assert 'warmroute_ladder_answers_total{model="m",step="static"} 1' in metrics
        assert 'warmroute_cache_entries{model="m"} 1' in metrics
        assert said(running, "cache", "show", admin=admin).splitlines()[1].split()[:2] == ["m", "1"]
        (event,) = running.process.events("ladder.down", model="m")
        assert (event["step"], event["before"]) == ("cache", "replica")


def test_the_switch_of_the_cache_is_live(tmp_path: Path) -> None:
    origin = HttpOrigin(Origin)
    model: dict[str, Any] = {
        "name": "m",
        "endpoints": [origin.url],
        "cache": {"ttl_s": 600},
    }
    settings: dict[str, Any] = {"models": [model]}
    with origin, sidecar_process(tmp_path, settings) as running:

        def kept() -> int:
            (one,) = json.loads(running.read("/cache")[1])["models"] or [{"entries": -1}]
            return int(one["entries"])

        infer(running, b"one")
        until(lambda: kept() == 1, "kept")
        path = tmp_path / "warmroute.yaml"
        config = json.loads(path.read_text())
        config["policies"] = {"ladder": {"cache": False}}
        path.write_text(json.dumps(config))
        until(lambda: kept() == -1, "switched off")
        del config["policies"]
        path.write_text(json.dumps(config))
        until(lambda: kept() == 0, "switched on again, and empty")


def test_what_the_store_does_not_take_is_counted_and_logged(tmp_path: Path) -> None:
    origin = HttpOrigin(Origin)
    store = RedisServer(tmp_path)
    model: dict[str, Any] = {
        "name": "m",
        "endpoints": [origin.url],
        "cache": {"redis": {}},
    }
    try:
        with origin, sidecar_process(tmp_path, {"models": [model], "state": {"url": store.start()}}) as running:

            def lost() -> bytes:
                metrics = running.read("/metrics")[1]
                return bytes(metrics.partition(b"\nwarmroute_cache_shared_lost_total ")[2].partition(b"\n")[0])

            assert lost() == b"0"
            store.stop()
            assert infer(running, b"one")[::2] == (200, b"one")
            until(lambda: lost() == b"1", "counted")
            until(lambda: bool(running.process.events("answers.down")), "logged")
    finally:
        store.stop()


def test_another_sidecar_tells_what_this_one_kept(tmp_path: Path) -> None:
    origin = HttpOrigin(Origin)
    store = RedisServer(tmp_path)
    url = store.start()
    client = redis.Redis(unix_socket_path=str(store.socket))
    model: dict[str, Any] = {
        "name": "m",
        "endpoints": [origin.url],
        "cache": {"redis": {"wait_ms": 100}},
    }
    settings = {"models": [model], "state": {"url": url}}
    try:
        with origin, sidecar_process(tmp_path, settings) as first:
            assert infer(first, b"one")[::2] == (200, b"one")
            until(lambda: client.zcard(Keys("default").answers) == 1, "written")
        (tmp_path / "second").mkdir()
        with sidecar_process(tmp_path / "second", settings) as second:
            status, fields, body = infer(second, b"one")
            assert (status, body, fields["warmroute-degraded"]) == (200, b"one", "cache")
            assert infer(second, b"two")[0] == 503
            metrics = second.read("/metrics")[1].decode()
            assert 'warmroute_cache_shared_total{model="m",result="hit"} 1' in metrics
    finally:
        client.close()
        store.stop()
