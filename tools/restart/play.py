"""One row played: four workers, a proxy, the load, and each worker killed and started again in turn."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from sidecar.traffic.arrivals import poisson
from sidecar.traffic.requests import Timed
from sidecar.traffic.sender import Sender
from sidecar.traffic.summary import Summary, quantile
from tools.bench.processes import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tools.restart.setups import Setup

WORKER = Path(__file__).with_name("worker.py")
GIVE_UP_S = 20.0
MOST_CONNECTIONS = 4096


@dataclass(frozen=True)
class Plan:
    """What is played. Seconds; ``share`` is the load's part of what all workers together can serve.

    ``period_s`` is over the 10 s for which nginx leaves a worker alone that refused: two at once would be too few left.
    """

    workers: int = 4
    load_s: float = 2.0
    service_s: float = 0.02
    width: int = 4
    share: float = 0.6
    settle_s: float = 1.0
    lead_s: float = 2.0
    period_s: float = 10.5
    down_s: float = 0.3
    seed: int = 1

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.share * self.workers * self.width / self.service_s

    @property
    def duration_s(self) -> float:
        """How long the load of one row lasts."""
        return self.lead_s + self.workers * self.period_s


@dataclass(frozen=True)
class Outcome:
    """What callers met."""

    requests: int
    failures: int
    errors: dict[str, int]
    p50_ms: float
    p99_ms: float
    p999_ms: float
    late_ms: float


class Workers:
    """The workers, by port, each a process of its own on ``core``."""

    def __init__(self, plan: Plan, core: int, *, lying: bool) -> None:
        self._plan = plan
        self._core = core
        self._lying = "lying" if lying else "truthful"
        self.ports = [free_port() for _ in range(plan.workers)]
        self._processes = {port: self._start(port) for port in self.ports}

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        plan = self._plan
        argv = [sys.executable, "-I", "-S", str(WORKER), str(port), str(plan.load_s), str(plan.service_s)]
        process = subprocess.Popen([*argv, str(plan.width), self._lying], stdin=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, {self._core})
        return process

    async def restart(self, port: int) -> None:
        """Kill a worker, and start it again a moment later."""
        process = self._processes[port]
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        await asyncio.sleep(self._plan.down_s)
        self._processes[port] = self._start(port)

    def end(self) -> None:
        """End them all."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


@contextmanager
def _workers(plan: Plan, core: int, *, lying: bool) -> Iterator[Workers]:
    workers = Workers(plan, core, lying=lying)
    try:
        yield workers
    finally:
        workers.end()


def answered(port: int) -> str:
    """Return why a proxy does not answer, nothing where it does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/v2/models/m/infer", "{}", {"Content-Type": "application/json"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
    return "" if status == 200 else f"status {status}"


def play(setup: Setup, plan: Plan, *, lying: bool, cores: tuple[int, int] = (0, 1)) -> Outcome:
    """Play one row; workers and load run on the first core, the proxy on the second.

    Raises:
        Missing: this machine lacks the proxy.
        BenchError: it does not answer.
    """
    workers_core, proxy_core = cores
    os.sched_setaffinity(0, {workers_core})
    with (
        tempfile.TemporaryDirectory(prefix="warmroute-restart-") as text,
        _workers(plan, workers_core, lying=lying) as workers,
    ):
        directory = Path(text)
        port = free_port()
        argv = setup.argv(directory, port, workers.ports)
        with running(setup.name.split(",")[0].lower(), argv, port, proxy_core, directory, answered):
            time.sleep(plan.load_s + plan.settle_s)  # by then every worker has loaded, and every check has seen it
            summary = uvloop.run(_drive(port, workers, plan))
    return outcome(summary)


async def _drive(port: int, workers: Workers, plan: Plan) -> Summary:
    async def roll() -> None:
        await asyncio.sleep(plan.lead_s)
        for worker in workers.ports:
            await asyncio.gather(workers.restart(worker), asyncio.sleep(plan.period_s))

    rolling = asyncio.create_task(roll())
    summary = Summary()
    address = f"http://127.0.0.1:{port}"
    sender = Sender(address, summary.add, max_connections=MOST_CONNECTIONS, timeout_s=GIVE_UP_S)
    json_type = (("Content-Type", "application/json"),)
    times = poisson(plan.rate, plan.duration_s, random.Random(plan.seed))  # noqa: S311
    await sender.run(Timed(at_s, "POST", "/v2/models/m/infer", json_type, b"{}") for at_s in times)
    await rolling
    return summary


def outcome(summary: Summary) -> Outcome:
    """Read a summary. A request that failed has no time; it counts among the failures."""
    took = sorted(summary.latencies_s)

    def ms(q: float) -> float:
        took_s = quantile(took, q)
        return float("inf") if took_s is None else 1000 * took_s

    return Outcome(
        summary.requests,
        summary.failures,
        dict(summary.errors),
        ms(0.5),
        ms(0.99),
        ms(0.999),
        1000 * max(summary.lags_s, default=0.0),
    )


def rows(setups: Sequence[Setup]) -> Iterator[tuple[Setup, bool]]:
    """Yield what is played: each row with readiness that tells the truth, and those with checks with one that lies."""
    for lying in (False, True):
        for setup in setups:
            if setup.checks or not lying:
                yield setup, lying
