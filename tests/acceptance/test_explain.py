"""While a worker loads, the sidecar tells why it gets nothing and who does: over HTTP and on the command line."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.load import Load, infer
from tests.support.product import WARMROUTE, Sidecar, running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(90)]

MODEL = "toy"
TERMS = {"warmth", "free_memory", "speed"}


def command(sidecar: Sidecar, *arguments: str) -> str:
    done = subprocess.run(
        [WARMROUTE, "routes", *arguments, "--admin", f"http://{sidecar.admin}"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_loading_worker_and_the_runners_up_are_explained(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        server.start()
        stack.callback(server.stop)

        def worker(id_: str, load_s: float) -> WorkerProcess:
            flags = ("--id", id_, "--state", server.url, "--engine", "deterministic", "--model", MODEL)
            return stack.enter_context(WorkerProcess(*flags, "--load-s", str(load_s)))

        settings = {"state": {"url": server.url}, "models": [{"name": MODEL}]}
        for id_ in ("worker-a", "worker-b"):
            worker(id_, 0).warm(MODEL)
        sidecar = stack.enter_context(running(tmp_path, settings=settings))
        with Load(sidecar.listen, [infer(MODEL)], clients=4, rate_per_s=80, rounds=10) as load:
            load.join()  # so that there is a speed to tell
        assert load.failed() == [], load.summary()
        assert {answer.worker for answer in load.answers} == {"worker-a", "worker-b"}
        slow = worker("worker-slow", 60)
        slow.event("model.state", model=MODEL, to="loading")

        def explained() -> dict[str, Any]:
            found: dict[str, Any] = sidecar.json(f"/routes/explain?model={MODEL}")
            known = all(not term["unknown"] for row in found["rows"] for term in row["terms"])
            loads = any(row["state"] == "loading" for row in found["rows"])
            return found if known and loads else {}

        decision = until(explained, "the loading worker is known")
        assert len(decision["rows"]) == 3
        rows = {row["endpoint"]: row for row in decision["rows"]}
        loading = rows.pop("worker-slow")
        assert (loading["state"], loading["reason"]) == ("loading", "not_warm")
        assert (loading["weight"], loading["share"], loading["terms"]) == (0, 0, [])
        assert loading["for_s"] > 0

        # the winner and the runner-up, with every term of their weights and its age
        assert set(rows) == {"worker-a", "worker-b"} >= {decision["draw"]["winner"]}
        assert set(decision["draw"]["drawn"]) <= set(rows)
        assert decision["draw"]["why"]
        assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
        for row in rows.values():
            assert (row["state"], row["reason"]) == ("warm", None)
            assert {term["name"] for term in row["terms"]} == TERMS
            assert all(0 <= term["age_s"] < 30 for term in row["terms"])
            total = sum(term["contribution"] for term in row["terms"])
            assert row["weight"] == pytest.approx(row["freshness"] * row["ramp"] * total)
            assert row["weight"] > 0

        said = command(sidecar, "explain", "--model", MODEL)
        assert all(word in said for word in ("worker-slow", "loading", "not warm", "worker-a", "worker-b", *TERMS))
        printed = json.loads(command(sidecar, "explain", "--model", MODEL, "--json"))["rows"]
        assert [row["reason"] for row in printed if row["endpoint"] == "worker-slow"] == ["not_warm"]
        lines = [line for line in command(sidecar).splitlines() if "worker-slow" in line]
        assert lines
        assert all("loading" in line and "not warm" in line for line in lines)
        assert sidecar.stop() == 0
