"""Workers whose readiness lies, killed and started again under load: callers never meet one that still loads."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.load import Ask, Load
from tests.support.lying_worker import WITHIN_S, LyingWorker
from tests.support.product import running
from tests.support.sidecar_process import free_port
from tests.support.sidecars import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.product import Sidecar

pytestmark = [pytest.mark.acceptance, pytest.mark.roomy]

LOAD_S = 1.0
ASK = Ask("infer", b"POST /v2/models/m/infer HTTP/1.1\r\n", b"{}", b"}")


def model(workers: list[LyingWorker], **more: Any) -> dict[str, Any]:
    request = {"name": "batch-1", "path": "/v2/models/m/infer", "json": {"inputs": []}, "within_s": WITHIN_S}
    return {
        "name": "m",
        "idempotent": True,
        "endpoints": [worker.url for worker in workers],
        "warmup": {"requests": [request], **more},
    }


def settings(*models: dict[str, Any]) -> dict[str, Any]:
    return {"state": {"url": "none"}, "models": list(models)}


def warm(sidecar: Sidecar, worker: LyingWorker) -> bool:
    return f"127.0.0.1:{worker.port}" in sidecar.open_to("m")


def test_a_rolling_restart_of_workers_that_lie_is_not_felt(tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(LyingWorker(free_port(), load_s=LOAD_S)) for _ in range(3)]
        probed = model(workers) | {"probe": {"path": "/v2/health/ready", "interval_s": 1.0}}
        sidecar = stack.enter_context(running(tmp_path, settings=settings(probed)))
        until(lambda: all(warm(sidecar, worker) for worker in workers), "all are warm")
        load = stack.enter_context(Load(sidecar.listen, [ASK], clients=24, rate_per_s=250))
        time.sleep(0.5)
        for worker in workers:
            before = worker.account()["pid"]
            worker.kill()
            worker.start()  # there again well within a probe's interval
            until(lambda: not warm(sidecar, worker), "it is out", within_s=1.0)  # noqa: B023
            until(lambda: warm(sidecar, worker), "it is back")  # noqa: B023
            account = worker.account()
            assert account["pid"] != before
            assert account["background"], "a warm-up request proved it"
            time.sleep(0.3)
        load.stop()
        assert not load.failed(), load.summary()
        accounts = [worker.account() for worker in workers]
        assert [one["too_early"] for one in accounts] == [0, 0, 0]
        assert all(one["live"] for one in accounts), "each takes part again"
        slowest = max(answer.ended - answer.began for answer in load.answers)
        assert slowest < LOAD_S, "nobody waited for a load"
        assert sidecar.metric("warmroute_warmup_requests_total", result="proven") >= 6
        assert sidecar.metric("warmroute_endpoints_warming", model="m") == 0


def test_an_idle_worker_that_is_started_again_between_two_probes_is_noticed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(LyingWorker(free_port(), load_s=LOAD_S)) for _ in range(2)]
        sidecar = stack.enter_context(running(tmp_path, settings=settings(model(workers))))
        until(lambda: all(warm(sidecar, worker) for worker in workers), "all are warm")
        workers[0].kill()
        workers[0].start()
        until(lambda: not warm(sidecar, workers[0]), "its connection told", within_s=1.0)
        with Load(sidecar.listen, [ASK], clients=4, rate_per_s=100) as load:
            until(lambda: warm(sidecar, workers[0]), "it is back")
        assert not load.failed(), load.summary()
        assert workers[0].account()["too_early"] == 0
        assert workers[0].account()["background"] >= 2, "the first one was held, and proved nothing"
        assert sidecar.metric("warmroute_warmup_requests_total", result="late") >= 1


def test_a_control_process_that_dies_takes_nobody_out_and_its_successor_notices_a_restart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(LyingWorker(free_port(), load_s=LOAD_S)) for _ in range(2)]
        sidecar = stack.enter_context(running(tmp_path, settings=settings(model(workers)), processes=1))
        until(lambda: all(warm(sidecar, worker) for worker in workers), "all are warm")
        load = stack.enter_context(Load(sidecar.listen, [ASK], clients=8, rate_per_s=100))
        os.kill(sidecar.process.child("control"), signal.SIGKILL)
        workers[0].kill()  # nobody is there to hear of it
        workers[0].start()
        sidecar.process.await_event("control.started", count=2)
        until(lambda: warm(sidecar, workers[0]) and workers[0].account().get("live", 0), "it is back")
        load.stop()
        assert not load.failed(), load.summary()
        assert [worker.account()["too_early"] for worker in workers] == [0, 0]
        assert all(worker.account()["live"] for worker in workers)


def test_one_that_closes_idle_connections_goes_on(tmp_path: Path) -> None:
    with LyingWorker(free_port(), load_s=0.0, close_idle_s=0.3) as worker, ExitStack() as stack:
        sidecar = stack.enter_context(running(tmp_path, settings=settings(model([worker])), processes=1))
        until(lambda: warm(sidecar, worker), "it is warm")
        load = stack.enter_context(Load(sidecar.listen, [ASK], clients=1, rate_per_s=20))
        proven = sidecar.metric("warmroute_warmup_requests_total", result="proven")
        until(
            lambda: sidecar.metric("warmroute_warmup_requests_total", result="proven") > proven,
            "the end of an idle connection has it proven again",
        )
        assert warm(sidecar, worker), "nobody else is left, so it goes on meanwhile"
        load.stop()
        assert not load.failed(), load.summary()
