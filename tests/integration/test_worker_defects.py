"""A defect in what a worker cannot do without ends it, instead of leaving it half alive."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping

from router.model import Replica
from tests.support.worker_parts import ReadableLog
from worker.control import Behaviour, Source
from worker.execution import Executor
from worker.memory import HostMemory
from worker.models import Models
from worker.process import DrainTimes, WorkerProcess
from worker.replica import HeldReplica
from worker.report import RecordBuilder, Reporter, Reporters
from worker.repository import Repository
from worker.serving.body import Bodies
from worker.serving.description import Identity
from worker.serving.v2 import Serving
from worker.store import ModelFiles, Versions


class BrokenWriter:
    """Fails in a way that no store does."""

    async def write(self, fields: Mapping[str, str]) -> bool:
        raise ZeroDivisionError("a defect")

    async def remove(self) -> None:
        pass

    async def close(self) -> None:
        pass


def no_replica(files: ModelFiles) -> HeldReplica:
    raise AssertionError(files)


def test_a_reporter_that_breaks_drains_the_worker_and_exits_with_1() -> None:
    async def scenario() -> tuple[int, ReadableLog]:
        log = ReadableLog()
        executor = Executor(1, 1)
        repository = Repository(Source(None, (), None, Versions()), Behaviour(), Models(), no_replica, log)
        serving = Serving(Identity("w1", "e1", lambda: "9"), Models(), executor, log, Bodies(1000, 1000))
        replicas: list[Replica] = []
        address = "http://127.0.0.1:1"
        builder = RecordBuilder(
            "w1", "e1", address, HostMemory(), lambda: replicas, lambda: 0, lambda: None, lambda: None
        )
        reporter = Reporter(BrokenWriter(), builder, log, time.monotonic, lambda: 0.5)
        process = WorkerProcess(
            socket.create_server(("127.0.0.1", 0)),
            address,
            serving,
            repository,
            executor,
            Reporters([reporter]),
            DrainTimes(0.0, 0.1),
            log,
            time.monotonic,
        )
        return await asyncio.wait_for(process.run(), 10), log

    code, log = asyncio.run(scenario())
    assert code == 1
    (failed,) = log.events("worker.failed")
    assert (failed["task"], failed["error"]) == ("report", "ZeroDivisionError: a defect")
    assert log.events()[-1]["event"] == "worker.stopped"
