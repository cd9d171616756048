"""Processes that stand still for longer than a lease: whoever did not answer meanwhile is not taken for gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.load import Load, infer
from tests.support.product import running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.roomy, pytest.mark.timeout(120)]

MODEL = "toy"
WORKERS = ("worker-a", "worker-b")
LEASE_S = 5.0


@contextmanager
def stopped(pid: int, for_s: float) -> Iterator[None]:
    """Have a process stand still while the block runs, and for so long at least."""
    until_s = time.monotonic() + for_s
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(max(0.0, until_s - time.monotonic()))
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_pause_of_the_control_process_and_one_of_a_worker_empty_no_route(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        server.start()
        stack.callback(server.stop)
        flags = ("--state", server.url, "--namespace", "test", "--engine", "deterministic", "--model", MODEL)
        workers = [stack.enter_context(WorkerProcess("--id", id_, *flags, "--service-ms", "5")) for id_ in WORKERS]
        for worker in workers:
            worker.warm(MODEL)
        settings = {
            "state": {"url": server.url, "namespace": "test"},
            "models": [{"name": MODEL, "idempotent": True}],
            "timeouts": {"response_head_s": 1},
        }
        sidecar = stack.enter_context(running(tmp_path, settings=settings))
        until(lambda: sidecar.open_to(MODEL) == set(WORKERS), "both may be picked")

        # the control process: its leases on everybody run out while it does not look
        with Load(sidecar.listen, [infer(MODEL)], clients=8, rate_per_s=60) as load:
            with stopped(sidecar.process.child("control"), LEASE_S + 1.5):
                pass
            resumed_at = time.monotonic()
            until(lambda: sidecar.ready() and sidecar.open_to(MODEL) == set(WORKERS), "both may be picked")
            assert time.monotonic() - resumed_at < 2.0
        assert load.failed() == [], load.summary()
        assert {answer.worker for answer in load.answers} == set(WORKERS)
        assert not sidecar.process.events("endpoint.expired")
        assert not sidecar.process.events("endpoint.gone")

        # and it follows on: who comes afterwards is seen, and so is who leaves
        with WorkerProcess("--id", "worker-c", *flags, "--service-ms", "5") as third:
            third.warm(MODEL)
            until(lambda: sidecar.open_to(MODEL) == {*WORKERS, "worker-c"}, "the third one is seen", within_s=3.0)
            third.terminate()
            until(lambda: sidecar.open_to(MODEL) == set(WORKERS), "the third one left", within_s=3.0)
            third.wait()

        # a worker: its own lease runs out, and the other one's does not
        with stopped(workers[0].process.pid, LEASE_S + 1.0):
            until(lambda: sidecar.open_to(MODEL) == {WORKERS[1]}, "it is out", within_s=LEASE_S + 1.0)
            assert sidecar.ready()
        until(lambda: sidecar.open_to(MODEL) == set(WORKERS), "it registered again", within_s=3.0)
        assert [event["id"] for event in sidecar.process.events("endpoint.expired")] == [WORKERS[0]]
