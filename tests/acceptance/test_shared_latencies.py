"""Two sidecars and a store: what one measures, the other goes by, and shows; what left takes its metrics along."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.load import Load, infer
from tests.support.product import running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.product import Sidecar

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(90)]

MODEL = "toy"


def rows(sidecar: Sidecar) -> dict[str, dict[str, Any]]:
    return {row["endpoint"]: row for row in sidecar.json(f"/routes/explain?model={MODEL}")["rows"]}


def test_a_sidecar_without_traffic_knows_who_is_slow(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        server.start()
        stack.callback(server.stop)
        flags = ("--state", server.url, "--namespace", "test", "--engine", "deterministic", "--model", MODEL)
        workers = {
            name: stack.enter_context(WorkerProcess("--id", name, *flags, "--service-ms", ms))
            for name, ms in (("fast", "5"), ("slow", "60"))
        }
        for worker in workers.values():
            worker.warm(MODEL)
        settings = {"state": {"url": server.url, "namespace": "test"}, "models": [{"name": MODEL}]}
        sidecars = []
        for name in ("busy", "idle"):
            (tmp_path / name).mkdir()
            sidecars.append(stack.enter_context(running(tmp_path / name, settings=settings, processes=1)))
        busy, idle = sidecars
        until(lambda: busy.open_to(MODEL) == idle.open_to(MODEL) == {"fast", "slow"}, "both know both")
        with Load(busy.listen, [infer(MODEL)], clients=8, rate_per_s=80):
            until(
                lambda: all(row["sidecars"] == 1 and row["p95_ms"] for row in rows(idle).values()), "it hears of both"
            )
        told = rows(idle)
        assert told["fast"]["p95_ms"] < 40 < told["slow"]["p95_ms"]
        assert told["fast"]["weight"] > told["slow"]["weight"]
        assert [row["own_p95_ms"] for row in told.values()] == [None, None]
        assert [row["sidecars"] for row in rows(busy).values()] == [0, 0]
        assert idle.metric("warmroute_latency_sidecars") == 1
        tail = {labels["endpoint"]: value for labels, value in idle.samples("warmroute_replica_tail_latency_seconds")}
        assert tail == {name: pytest.approx(row["p95_ms"] / 1000, rel=0.3) for name, row in told.items()}
        workers["slow"].terminate()
        until(
            lambda: (
                {labels["endpoint"] for labels, _ in idle.samples("warmroute_replica_tail_latency_seconds")} == {"fast"}
            ),
            "its metrics went with it",
        )
