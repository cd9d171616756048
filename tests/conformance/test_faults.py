"""What breaks behind or before a real sidecar: nothing is lost, doubled or mixed up, and memory stays bounded.

The harnesses under ``faults/`` judge: a ledger of what was asked, executed and answered, and pressure from clients that
do not read, do not stop sending, or open connections until there are none.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import redis

from sidecar.faults.processes import FaultKeeper, ProcessFault
from sidecar.up.settings import NAMESPACE
from tests.support.sidecar_process import SidecarProcess, free_port, sidecar_process
from tests.support.sidecars import Process, until
from tests.support.state_writer import StateWriter, worker_record
from tests.support.up_fleet import Fleet, fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.model import EndpointRecord

HARNESS = Path(__file__).with_name("faults")

NEVER = ("lost", "wrong", "hang", "clean_cut")

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


def settings(*ports: int, **model: object) -> dict[str, Any]:
    endpoints = [f"http://127.0.0.1:{port}" for port in ports]
    return {
        "models": [{"name": "default", "default": True, "endpoints": endpoints, **model}],
        "timeouts": {"drain_s": 2},
    }


INJECTED = (
    {"kind": "delay", "delay_ms": 40, "jitter_ms": 20, "distribution": "exponential"},
    {"kind": "first_byte", "delay_ms": 30},
    {"kind": "slow_close", "delay_ms": 30},
    {"kind": "slicing", "piece_bytes": 7},
    {"kind": "slicing", "piece_bytes": 11, "direction": "request"},
    {"kind": "bandwidth", "bytes_per_s": 20_000},
    {"kind": "abort", "status": 500},
    {"kind": "reset", "direction": "request"},
    {"kind": "reset", "after_bytes": 200},
    {"kind": "black_hole", "direction": "response"},
    {"kind": "truncate", "after_bytes": 20},
    {"kind": "cut_stream", "after_events": 1},
)
"""Everything that a network does on the way to a worker, but for wrong bytes."""


@pytest.mark.beside
@pytest.mark.parametrize("idempotent", [False, True])
def test_injected_faults_lose_and_double_nothing(tmp_path: Path, idempotent: bool) -> None:
    ports = [free_port(), free_port()]
    script = [sys.executable, str(HARNESS / "ledger.py")]
    with ExitStack() as stack:
        for name, port in zip("AB", ports, strict=True):
            argv = [*script, "origin", "--listen", f"127.0.0.1:{port}", "--id", name, "--file", f"{name}.ledger"]
            stack.enter_context(Process(argv, tmp_path / f"{name}.log", cwd=tmp_path))
        made = settings(*ports, idempotent=idempotent)
        made["timeouts"] |= {"response_head_s": 0.5, "stream_idle_s": 1.0}
        made["policies"] = {
            "breaker": {"failure_ratio": 1.0, "surge": False},
            "quarantine": {"base_s": 0.05, "max_s": 0.05},
        }
        made["faults"] = {"rules": [one | {"ratio": 0.06} for one in INJECTED]}
        sidecar = stack.enter_context(sidecar_process(tmp_path, made))
        ledgers = ",".join(str(tmp_path / f"{name}.ledger") for name in "AB")
        argv = [*script, "load", "--target", sidecar.listen, "--origins", ledgers, "--seconds", "2", "--clients", "24"]
        done = subprocess.run(
            [*argv, *(["--idempotent"] if idempotent else [])], capture_output=True, text=True, timeout=60, check=False
        )
        metrics = sidecar.read("/metrics")[1].decode()
        assert sidecar.stop() == 0
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["requests"] > 100
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    if not idempotent:
        assert report["doubled"] == 0
    for one in {str(one["kind"]) for one in INJECTED}:
        assert f'warmroute_faults_struck_total{{kind="{one}"}} 0' not in metrics


def judged(argv: list[str], log: Path, strike: Callable[[], None]) -> dict[str, Any]:
    """Put load on a sidecar, ``strike`` meanwhile, and return the ledgers' comparison."""
    with Process(argv, log, stdout=subprocess.PIPE, text=True) as load:
        strike()
        assert load.popen.poll() is None, "the load ended before the faults did"
        out, _ = load.popen.communicate(timeout=60)
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert report["requests"] > 150
    return report


def ledger_under(directory: Path, strike: Callable[[int], None], seconds: float, *, idempotent: bool) -> dict[str, Any]:
    """Put load on two origins, and ``strike`` the one whose process id it is given; return the ledgers' comparison."""
    ports = [free_port(), free_port()]
    script = [sys.executable, str(HARNESS / "ledger.py")]
    with ExitStack() as stack:
        origins = [
            stack.enter_context(
                Process(
                    [*script, "origin", "--listen", f"127.0.0.1:{port}", "--id", name, "--file", f"{name}.ledger"],
                    directory / f"{name}.log",
                    cwd=directory,
                )
            )
            for name, port in zip("AB", ports, strict=True)
        ]
        sidecar = stack.enter_context(sidecar_process(directory, settings(*ports, idempotent=idempotent)))
        ledgers = ",".join(str(directory / f"{name}.ledger") for name in "AB")
        argv = [*script, "load", "--target", sidecar.listen, "--origins", ledgers, "--clients", "12"]
        argv += ["--seconds", f"{seconds:g}", *(["--idempotent"] if idempotent else [])]

        def when_both_work() -> None:
            until(lambda: all((directory / f"{name}.ledger").exists() for name in "AB"), "both origins have requests")
            strike(origins[0].pid)

        report = judged(argv, directory / "load.log", when_both_work)
        assert sidecar.stop() == 0
    return report


def killed(pid: int) -> None:
    time.sleep(1.0)  # of traffic
    os.kill(pid, signal.SIGKILL)


@pytest.mark.beside
def test_an_idempotent_model_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    report = ledger_under(tmp_path, killed, 5, idempotent=True)
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    # only an answer that had begun may be cut, and with two origins that is one that was streaming
    unanswered = {outcome for outcome in report["outcomes"] if not outcome.endswith(" ok")}
    assert unanswered <= {"stream cut mid-body"}


@pytest.mark.roomy
def test_nothing_is_executed_twice_unless_declared_idempotent(tmp_path: Path) -> None:
    report = ledger_under(tmp_path, killed, 5, idempotent=False)
    assert {name: report[name] for name in (*NEVER, "doubled", "get_retried")} == dict.fromkeys(
        (*NEVER, "doubled", "get_retried"), 0
    )
    # what was under way at the dead worker is answered 502 or cut, and nobody else's
    failed = sum(count for outcome, count in report["outcomes"].items() if not outcome.endswith(" ok"))
    assert failed <= 12
    assert report["bad_window_s"] < 1


def strike_process(pid: int) -> None:
    """Bring each fault of a process about in turn. All but the last end, and leave one behind that serves again."""
    with FaultKeeper() as keeper:
        for kind, share in (("stop", None), ("slow", 0.1), ("out_of_memory", None), ("full_disk", None)):
            kept = keeper.begin(ProcessFault(kind, pid=pid, share=share))
            time.sleep(1.0)  # in force
            assert kept.end()
            time.sleep(0.3)  # without one
        keeper.begin(ProcessFault("kill", pid=pid))


@pytest.mark.beside
@pytest.mark.parametrize("idempotent", [False, True])
def test_faults_of_a_process_lose_and_double_nothing(tmp_path: Path, idempotent: bool) -> None:
    report = ledger_under(tmp_path, strike_process, 9, idempotent=idempotent)
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    if idempotent:
        unanswered = {outcome for outcome in report["outcomes"] if not outcome.endswith(" ok")}
        assert unanswered <= {"stream cut mid-body"}
    else:
        assert report["doubled"] == 0
        assert report["get_retried"] == 0


STORE_FAULTS = ("pause", "read_only", "failover", "refused", "stop", "restart")
STARTED_AGAIN = "state store: died; started again, empty"


@pytest.mark.beside
def test_faults_of_the_state_store_cost_nobody_anything(tmp_path: Path) -> None:
    """Origins are known by the store alone, and not idempotent: whatever becomes of it, each request has its answer."""
    settings = {"version": 1, "models": [{"name": "m", "default": True}]}
    (tmp_path / "warmroute.yaml").write_text(json.dumps(settings))
    script = [sys.executable, str(HARNESS / "ledger.py")]
    ports = {"A": free_port(), "B": free_port()}
    with ExitStack() as stack:
        for name, port in ports.items():
            argv = [*script, "origin", "--listen", f"127.0.0.1:{port}", "--id", name, "--file", f"{name}.ledger"]
            stack.enter_context(Process(argv, tmp_path / f"{name}.log", cwd=tmp_path))
        flags = ("--workers", "1", "--processes", "1", "--config", str(tmp_path / "warmroute.yaml"))
        short = Path(stack.enter_context(TemporaryDirectory()))  # a socket's path has 107 bytes, moved aside too
        up = stack.enter_context(fleet(short, *flags))
        url = f"unix://{up.places['redis_socket']}"
        records = [worker_record(name, port=port) for name, port in ports.items()]
        stack.enter_context(heartbeats(StateWriter(url, NAMESPACE), *records))
        until(lambda: open_to_both(up), "both origins are known")

        def strike() -> None:
            with FaultKeeper() as keeper:
                for kind in STORE_FAULTS:
                    kept = keeper.begin(ProcessFault(f"store_{kind}", url=url))
                    time.sleep(0.8)  # in force, and heartbeats are lost
                    kept.end()
                    if kind in ("stop", "restart"):
                        count = 1 + (kind == "restart")
                        until(lambda count=count: up.output().count(STARTED_AGAIN) == count, "it starts again")  # type: ignore[misc]
                    until(lambda: answers(url), "the store answers")

        ledgers = ",".join(str(tmp_path / f"{name}.ledger") for name in ports)
        argv = [
            *script,
            "load",
            "--target",
            up.places["listen"],
            "--origins",
            ledgers,
            "--clients",
            "12",
            "--seconds",
            "9",
        ]
        report = judged(argv, tmp_path / "load.log", strike)
        until(lambda: open_to_both(up), "both origins are known again")
    never = (*NEVER, "doubled", "get_retried")
    assert {name: report[name] for name in never} == dict.fromkeys(never, 0)
    assert [outcome for outcome in report["outcomes"] if not outcome.endswith(" ok")] == []


def answers(url: str) -> bool:
    client = redis.Redis.from_url(url, socket_timeout=1.0)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


def open_to_both(up: Fleet) -> bool:
    status, body = up.ask(up.places["admin"], "/routes")
    routes = {route["key"]: route for route in json.loads(body)["routes"]} if status == 200 else {}
    return "m" in routes and sum(row["reason"] is None for row in routes["m"]["candidates"]) == 2


@contextmanager
def heartbeats(writer: StateWriter, *records: EndpointRecord) -> Iterator[None]:
    """Keep endpoints registered inside the block, from a thread of its own."""
    over = threading.Event()

    async def beat() -> None:
        async with writer.beating(*records, every_s=0.5):
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(beat()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def pressure(sidecar: SidecarProcess, origin: int, tests: str, *options: str) -> str:
    argv = [sys.executable, str(HARNESS / "pressure_check.py"), "--target", sidecar.listen, "--tests", tests]
    argv += ["--origin", f"127.0.0.1:{origin}", "--pids", str(sidecar.process.pid), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert len(verdicts) == len(tests.split(",")), done.stdout + done.stderr
    return "\n".join(verdicts)


@pytest.mark.roomy
def test_memory_is_bounded_whatever_clients_do(tmp_path: Path) -> None:
    """Twenty of a kind have a megabyte each. Limits as shipped, but for bodies of 200 MB to be taken at all."""
    origin = free_port()
    config = settings(origin) | {"limits": {"body_bytes": 256 << 20}}
    with sidecar_process(tmp_path, config) as sidecar:
        verdicts = pressure(sidecar, origin, "slow_reader,slow_upload,many_idle", "--limit-mb", "20")
        assert "FAIL" not in verdicts, verdicts
        assert sidecar.stop() == 0


@pytest.mark.roomy
def test_a_flood_of_connections_passes(tmp_path: Path) -> None:
    origin = free_port()
    with sidecar_process(tmp_path, settings(origin)) as sidecar:
        verdicts = pressure(sidecar, origin, "fd_flood", "--flood", "4500")
        assert "FAIL" not in verdicts, verdicts
        assert sidecar.stop() == 0


@contextmanager
def toxic(directory: Path, origin: int) -> Iterator[tuple[int, Callable[[dict[str, Any]], dict[str, Any]]]]:
    """Put a proxy that does harm in front of ``origin``; yield its port, and what tells it which."""
    port, control = free_port(), free_port()
    argv = [sys.executable, str(HARNESS / "toxics.py"), "--listen", f"127.0.0.1:{port}", "--to", f"127.0.0.1:{origin}"]
    with Process([*argv, "--control", f"127.0.0.1:{control}"], directory / "toxics.log"):
        until(lambda: listens(control) and listens(port), "the proxy listens")
        with socket.create_connection(("127.0.0.1", control), timeout=5) as sock, sock.makefile("rwb") as file:

            def tell(what: dict[str, Any]) -> dict[str, Any]:
                file.write(json.dumps(what).encode() + b"\n")
                file.flush()
                state: dict[str, Any] = json.loads(file.readline())
                return state

            yield port, tell


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def ask(sidecar: SidecarProcess, body: bytes, within_s: float = 10.0) -> tuple[int, bytes, float]:
    """POST ``body``; return the status, what came of the answer (all of it, or status -1) and the seconds it took."""
    connection = http.client.HTTPConnection(sidecar.listen, timeout=within_s)
    began = time.monotonic()
    try:
        connection.request("POST", "/echo", body)
        response = connection.getresponse()
        try:
            return response.status, response.read(), time.monotonic() - began
        except (http.client.IncompleteRead, OSError):
            return -1, b"", time.monotonic() - began
    finally:
        connection.close()


BODY = bytes(range(256)) * 400

TOXINS: list[tuple[dict[str, Any], int, float, float]] = [
    ({"down": {"stall": True}}, 504, 0.9, 2.5),  # the worker took the request and says nothing
    ({"up": {"stall": True}}, 504, 0.9, 2.5),  # the request never gets there
    ({"down": {"limit": 20, "limit_end": "rst"}}, 502, 0.0, 1.0),  # inside the head
    ({"down": {"limit": 20, "limit_end": "fin"}}, 502, 0.0, 1.0),
    ({"down": {"limit": 50_000, "limit_end": "rst"}}, -1, 0.0, 1.0),  # inside the body: cut, and seen to be
    ({"down": {"limit": 50_000, "limit_end": "fin"}}, -1, 0.0, 1.0),
    ({"down": {"rate": 100_000}}, 200, 0.5, 4.0),  # slow is not broken
    ({"up": {"rate": 200_000}}, 200, 0.2, 4.0),
    ({"down": {"latency": 0.05, "slice": 20_000}}, 200, 0.2, 4.0),
    ({"refuse_rst": True}, 502, 0.0, 1.0),  # as soon as it stood, or as it was made: then nobody is left for a retry
]


@pytest.mark.roomy
def test_a_sick_network_to_a_worker_is_told_apart_from_a_slow_one(tmp_path: Path) -> None:
    """Each toxin for one request; the one after it, without any, is served at once."""
    origin = free_port()
    script = [sys.executable, str(Path(__file__).parents[1] / "chaos" / "origin.py"), str(origin)]
    with ExitStack() as stack:
        stack.enter_context(Process(script, tmp_path / "origin.log"))
        until(lambda: listens(origin), "the origin listens")
        port, tell = stack.enter_context(toxic(tmp_path, origin))
        config = settings(port) | {
            "timeouts": {"response_head_s": 1.0, "drain_s": 2},
            "policies": {"quarantine": {"base_s": 0.05, "max_s": 0.05}, "breaker": {"minimum_calls": 1000}},
        }
        sidecar = stack.enter_context(sidecar_process(tmp_path, config))
        for toxin, status, least_s, most_s in TOXINS:
            until(lambda: ask(sidecar, BODY)[:2] == (200, BODY), f"served, before {toxin}")
            # the next connection is a new one, which the toxin holds for; one may come as others are ended
            until(lambda: bool(tell({"kill": "fin"})) and tell({"stats": 1})["open"] == 0, "no connection")
            tell({"set": toxin})
            got, body, seconds = ask(sidecar, BODY)
            assert got == status, (toxin, got, seconds)
            assert least_s <= seconds <= most_s, (toxin, got, seconds)
            assert got != 200 or body == BODY
            tell({"set": {}})
        assert sidecar.stop() == 0
