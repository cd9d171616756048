"""A worker dies under load: who notices, what is lost (only answers that had begun), and how it comes back."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.load import Load, infer
from tests.support.product import PROCESSES, Sidecar, running
from tests.support.redis_server import RedisServer
from tests.support.sidecar_process import free_port
from tests.support.sidecars import Process, until
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.load import Answer

pytestmark = [pytest.mark.acceptance, pytest.mark.roomy, pytest.mark.timeout(120)]

LEDGER = Path(__file__).parents[1] / "conformance" / "faults" / "ledger.py"
MODEL = "toy"
WORKERS = ("worker-a", "worker-b")
LOAD_S = 2.0
RAMP_S = 10.0
WORK_MS = 200
"""Long beside what else a request takes, so that the origin dies with some under way whose answers have not begun."""
NEVER = ("lost", "wrong", "hang", "clean_cut")


def worker(id_: str, port: int, redis: RedisServer, load_s: float = 0.0) -> WorkerProcess:
    return WorkerProcess(
        *("--listen", f"127.0.0.1:{port}", "--state", redis.url, "--namespace", "test", "--id", id_),
        *("--engine", "deterministic", "--model", MODEL, "--concurrency", "16"),
        *("--service-ms", "40", "--load-s", str(load_s)),
    )


def share(answers: Iterable[Answer], id_: str) -> float:
    served = [answer.worker for answer in answers]
    assert len(served) > 100
    return served.count(id_) / len(served)


def attempts(sidecar: Sidecar, endpoint: str, result: str = "") -> float:
    labels = {"endpoint": endpoint} | ({"result": result} if result else {})
    return sidecar.metric("warmroute_attempts_total", **labels)


def refused_unasked(sidecar: Sidecar, endpoint: str) -> float:
    """Return how often an endpoint refused, less the probes that end its quarantines (and lengthen them)."""
    refused = attempts(sidecar, endpoint, "connect_refused")
    ejections = sidecar.process.events("endpoint.ejected", endpoint=endpoint, cause="quarantine")
    return refused - len([event for event in ejections if event["step"] > 1])


def test_a_killed_worker_costs_no_request_and_comes_back_warm_before_it_is_asked(tmp_path: Path) -> None:
    victim, survivor = WORKERS
    settings = {
        "state": {"url": f"unix://{tmp_path}/redis.sock", "namespace": "test"},
        "models": [{"name": MODEL, "idempotent": True}],
    }
    with ExitStack() as stack:
        redis = RedisServer(tmp_path)
        redis.start()
        stack.callback(redis.stop)
        port = free_port()  # it comes back on the same one, as under any supervisor
        first = stack.enter_context(worker(victim, port, redis))
        other = stack.enter_context(worker(survivor, 0, redis))
        for one in (first, other):
            one.warm(MODEL)
        sidecar = stack.enter_context(running(tmp_path, settings=settings))
        until(lambda: sidecar.open_to(MODEL) == set(WORKERS), "both are routed to")
        load = stack.enter_context(Load(sidecar.listen, [infer(MODEL)], clients=16, rate_per_s=140))
        until(lambda: {answer.worker for answer in load.answers[16:]} == set(WORKERS), "both are asked")

        first.process.kill()
        killed_at = time.monotonic()
        sidecar.process.await_event("endpoint.ejected", endpoint=victim, cause="quarantine")
        until(lambda: sidecar.candidates(MODEL)[victim]["reason"] == "quarantined", "it is out", within_s=1)
        assert sidecar.metric("warmroute_endpoint_quarantined", endpoint=victim) == 1
        time.sleep(0.5)  # seventy requests, half of which would meet it
        assert refused_unasked(sidecar, victim) <= PROCESSES

        until(lambda: sidecar.candidates(MODEL)[survivor]["ramp"] == 1, "the survivor's own ramp is over")
        again = stack.enter_context(worker(victim, port, redis, LOAD_S))
        again.listening()
        loading = []
        while (stats := again.ask("/stats")[1]["models"][MODEL])["state"] != "warm":
            loading.append(stats)
            time.sleep(0.05)
        assert len(loading) > 10  # loading was there to be seen
        assert {(stats["executed"], stats["before_warm"]) for stats in loading} == {(0, 0)}
        warm_at = time.monotonic() - stats["warm_for_s"]
        until(lambda: victim in sidecar.open_to(MODEL), "it is routed to again", within_s=2)
        assert sidecar.candidates(MODEL)[victim]["ramp"] < 0.4
        time.sleep(max(0.0, warm_at + RAMP_S + 4 - time.monotonic()))
        assert sidecar.candidates(MODEL)[victim]["ramp"] == 1
        load.stop()

        assert again.ask("/stats")[1]["models"][MODEL]["before_warm"] == 0
        asked = [answer for answer in load.answers if answer.worker == victim and answer.ended > killed_at + 0.1]
        assert min(answer.began for answer in asked) >= warm_at - 0.1
        early, late = (
            share(load.between(warm_at + start, warm_at + end), victim) for start, end in ((0, 1), (RAMP_S, RAMP_S + 4))
        )
        # with a ramp of r it is compared in 4r / (1 + r) of choices, and then taken in its turn or if less busy
        assert 0 < early < 0.4, (early, late)
        assert 0.4 < late < 0.6, (early, late)
        assert late - early > 0.08, (early, late)
        assert [answer for answer in load.failed() if not answer.begun] == [], load.summary()
        assert load.failed() == [], load.summary()  # this model's answers are too short to be caught half-way
        assert sidecar.stop() == 0


class Origin(Process):
    """One of the ledger's origins; it notes each execution in a file that outlives it."""

    def __init__(self, directory: Path, name: str, work_ms: int = 5) -> None:
        self.file = directory / f"{name}.ledger"
        self.file.touch()
        self.address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, str(LEDGER), "origin", "--listen", self.address, "--id", name]
        super().__init__([*command, "--work-ms", str(work_ms), "--file", str(self.file)], directory / f"{name}.log")
        host, _, port = self.address.rpartition(":")
        until(lambda: not closed(host, int(port)), f"origin {name} listens")


def closed(host: str, port: int) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex((host, port)) != 0


def to(origins: Iterable[Origin]) -> list[str]:
    return [part for origin in origins for part in ("--to", f"http://{origin.address}")]


def statuses(sidecar: Sidecar, times: int) -> list[int]:
    """Ask ``times`` times, each time on a connection of its own, so that both data processes are asked."""
    found = []
    for number in range(times):
        with closing(http.client.HTTPConnection(sidecar.listen, timeout=5)) as connection:
            connection.request("GET", "/get", headers={"X-Ledger-Id": f"probe-{number}"})
            response = connection.getresponse()
            response.read()
            found.append(response.status)
    return found


def test_the_first_refused_attempt_takes_an_endpoint_out(tmp_path: Path) -> None:
    with ExitStack() as stack:
        origins = [stack.enter_context(Origin(tmp_path, name)) for name in "AB"]
        settings = {
            "models": [{"name": "m", "default": True, "endpoints": [f"http://{origin.address}" for origin in origins]}],
            "policies": {"quarantine": {"base_s": 20}},  # no probe while this looks
        }
        sidecar = stack.enter_context(running(tmp_path, settings=settings))
        assert statuses(sidecar, 40) == [200] * 40
        until(lambda: sidecar.metric("warmroute_attempts_total") == 40, "all are counted")  # after they were answered
        victim = origins[0].address
        served = attempts(sidecar, victim)
        assert 0 < served < 40
        origins[0].popen.kill()
        origins[0].popen.wait()
        assert statuses(sidecar, 40) == [200] * 40
        assert sidecar.process.events("endpoint.ejected", endpoint=victim, cause="quarantine")
        refused = attempts(sidecar, victim, "connect_refused")
        assert 1 <= refused <= PROCESSES
        assert attempts(sidecar, victim) == served + refused, sidecar.samples("warmroute_attempts_total")
        assert sidecar.stop() == 0


@pytest.mark.parametrize("idempotent", [False, True], ids=["not-idempotent", "idempotent"])
def test_nothing_is_lost_and_nothing_is_executed_twice(tmp_path: Path, *, idempotent: bool) -> None:
    declared = ["--idempotent"] if idempotent else []
    with ExitStack() as stack:
        origins = [stack.enter_context(Origin(tmp_path, name, WORK_MS)) for name in "AB"]
        sidecar = stack.enter_context(running(tmp_path, *to(origins), *declared))
        argv = [sys.executable, str(LEDGER), "load", "--target", sidecar.listen, "--seconds", "6", "--clients", "16"]
        argv += ["--stream", "0.1"]
        argv += ["--origins", ",".join(str(origin.file) for origin in origins), *declared]
        argv += ["--fault", f"at=2;cmd=kill -9 {origins[0].pid}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert "rc 0" in done.stdout.partition("\n")[0], f"the fault was not injected: {done.stdout}{done.stderr}"
        assert done.returncode == 0, done.stdout
        assert sidecar.stop() == 0
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["requests"] > 200
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    unanswered = {outcome: count for outcome, count in report["outcomes"].items() if not outcome.endswith(" ok")}
    if idempotent:
        assert set(unanswered) <= {"stream cut mid-body"}, unanswered  # their answers had begun
    else:
        assert report["doubled"] == report["get_retried"] == 0
        assert 1 <= sum(unanswered.values()) <= 16, unanswered  # what clients had under way there, and nobody else's
        assert report["bad_window_s"] < 1
