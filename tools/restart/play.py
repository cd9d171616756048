"""One row played: four workers, a proxy, the load, and each worker killed and started again in turn."""

from __future__ import annotations

import asyncio
import http.client
import math
import os
import random
import signal
import socket
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
from tools.bench.processes import BenchError, free_port, program, running

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from typing import Any

    from sidecar.traffic.samples import Sample
    from tools.restart.setups import Setup

    Script = Callable[["Workers", "Plan"], Coroutine[Any, Any, None]]

WORKER = Path(__file__).with_name("worker.py")
PRIORITY = 10
"""Real-time priority (sched(7)) of what is played so; of workers that start 1, as nobody waits for that."""
GIVE_UP_S = 20.0
MOST_CONNECTIONS = 4096


@dataclass(frozen=True)
class Plan:
    """What is played. Seconds; ``share`` is the load's part of what all workers together can serve.

    ``period_s`` is over the 10 s for which nginx leaves a worker alone that refused: two at once would be too few left.
    ``down_s``: how long a worker that was killed is away. ``absent_s``: where it is above 0, the first one is taken
    away for so long after all have been restarted, and added again cold. ``spread``: requests take ``service_s`` in
    the mean, lognormal with this deviation of the logarithm; 0: all of them just so.
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
    absent_s: float = 0.0
    spread: float = 0.0
    seed: int = 1

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.share * self.workers * self.width / self.service_s

    @property
    def duration_s(self) -> float:
        """How long the load of one row lasts."""
        return self.lead_s + len(self.restarts) * self.period_s

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """Who is killed when, and how long it is away."""
        downs_s = [self.down_s] * self.workers + [self.absent_s] * (self.absent_s > 0)
        return tuple(
            Restart(self.lead_s + number * self.period_s, number % self.workers, down_s)
            for number, down_s in enumerate(downs_s)
        )


@dataclass(frozen=True)
class Restart:
    """One worker, by its number, killed ``at_s`` and started again ``down_s`` later."""

    at_s: float
    worker: int
    down_s: float


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
        before = [program("chrt", "util-linux"), "--rr", "1"] if os.sched_getscheduler(0) == os.SCHED_RR else []
        argv = [*before, sys.executable, "-I", "-S", str(WORKER), str(port), str(plan.load_s), str(plan.service_s)]
        process = subprocess.Popen([*argv, str(plan.width), self._lying], stdin=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, {self._core})
        return process

    @staticmethod
    def _started(process: subprocess.Popen[bytes]) -> None:
        """Have a worker that has started run as everything else does."""
        if os.sched_getscheduler(0) == os.SCHED_RR and process.poll() is None:
            os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(PRIORITY))

    def await_listening(self) -> None:
        """Wait until each accepts: nginx would leave one alone for long that refused its first request.

        Raises:
            BenchError: one does not within 10 s.
        """
        deadline = time.monotonic() + 10
        for port in self.ports:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise BenchError(f"the worker on port {port} does not listen: {error}") from error
                    time.sleep(0.01)
            self._started(self._processes[port])

    async def restart(self, port: int, down_s: float) -> None:
        """Kill a worker, and start it again ``down_s`` later."""
        process = self._processes[port]
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        await asyncio.sleep(down_s)
        started = self._processes[port] = self._start(port)
        asyncio.get_running_loop().call_later(self._plan.load_s / 2, self._started, started)

    def fail(self, port: int) -> None:
        """Have a worker be broken from now on."""
        self._processes[port].send_signal(signal.SIGUSR1)

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
    """Play one row, each worker restarted in turn; as :func:`drive`."""
    summary = Summary()
    drive(setup, plan, summary.add, lying=lying, cores=cores)
    return outcome(summary)


def drive(
    setup: Setup,
    plan: Plan,
    take: Callable[[Sample], None],
    *,
    lying: bool,
    cores: tuple[int, int],
    script: Script | None = None,
) -> None:
    """Send a plan's requests to a proxy, ``take`` what became of each, and meanwhile do to its workers what is written.

    Workers and load run on the first core, the proxy on the second. ``script`` is :func:`roll` where none is given.

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
        workers.await_listening()
        argv = setup.argv(directory, port, workers.ports)
        with running(setup.name.split(",")[0].lower(), argv, port, proxy_core, directory, answered):
            time.sleep(plan.load_s + plan.settle_s)  # by then every worker has loaded, and every check has seen it
            uvloop.run(_drive(port, workers, plan, take, script or roll))


async def roll(workers: Workers, plan: Plan) -> None:
    """Restart each worker in its turn."""
    await asyncio.sleep(plan.lead_s)
    for restart in plan.restarts:
        port = workers.ports[restart.worker]
        await asyncio.gather(workers.restart(port, restart.down_s), asyncio.sleep(plan.period_s))


async def _drive(port: int, workers: Workers, plan: Plan, take: Callable[[Sample], None], script: Script) -> None:
    acting = asyncio.create_task(script(workers, plan))
    sender = Sender(f"http://127.0.0.1:{port}", take, max_connections=MOST_CONNECTIONS, timeout_s=GIVE_UP_S)
    await sender.run(trace(plan))
    await acting


def trace(plan: Plan) -> Iterator[Timed]:
    """Yield the requests of a plan: the same ones for everybody, drawn by its seed."""
    services = random.Random(f"services {plan.seed}")  # noqa: S311
    middle = math.log(1000 * plan.service_s) - plan.spread**2 / 2
    fields = (("Content-Type", "application/json"),)
    for at_s in poisson(plan.rate, plan.duration_s, random.Random(plan.seed)):  # noqa: S311
        takes = (("x-service-ms", f"{services.lognormvariate(middle, plan.spread):.3f}"),) if plan.spread else ()
        yield Timed(at_s, "POST", "/v2/models/m/infer", fields + takes, b"{}")


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
