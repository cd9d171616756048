"""What breaks behind or before a real sidecar: nothing is lost, doubled or mixed up, and memory stays bounded.

The harnesses under ``faults/`` judge: a ledger of what was asked, executed and answered, and pressure from clients that
do not read, do not stop sending, or open connections until there are none.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sidecar_process import SidecarProcess, free_port, sidecar_process
from tests.support.sidecars import Process, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def ledger_under(directory: Path, faults: dict[float, str], seconds: float, *, idempotent: bool) -> dict[str, Any]:
    """Bring commands about, by second, under load on two origins; return the ledgers' comparison.

    ``{pid}`` in a command is the first origin's.
    """
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
        for at, command in faults.items():
            argv += ["--fault", f"at={at:g};cmd={command.format(pid=origins[0].pid)}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.count("rc 0") == len(faults), f"not all faults were injected: {done.stdout}{done.stderr}"
        assert sidecar.stop() == 0
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["requests"] > 150
    return report


def test_an_idempotent_model_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    report = ledger_under(tmp_path, {2: "kill -9 {pid}"}, 6, idempotent=True)
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    # only an answer that had begun may be cut, and with two origins that is one that was streaming
    unanswered = {outcome for outcome in report["outcomes"] if not outcome.endswith(" ok")}
    assert unanswered <= {"stream cut mid-body"}


def test_nothing_is_executed_twice_unless_declared_idempotent(tmp_path: Path) -> None:
    report = ledger_under(tmp_path, {2: "kill -9 {pid}"}, 6, idempotent=False)
    assert {name: report[name] for name in (*NEVER, "doubled", "get_retried")} == dict.fromkeys(
        (*NEVER, "doubled", "get_retried"), 0
    )
    # what was under way at the dead worker is answered 502 or cut, and nobody else's
    failed = sum(count for outcome, count in report["outcomes"].items() if not outcome.endswith(" ok"))
    assert failed <= 12
    assert report["bad_window_s"] < 1


def test_nothing_is_lost_under_faults_of_a_process(tmp_path: Path) -> None:
    """The last of them is its death. Those that end leave a process behind that serves again."""
    fault = f"{sys.executable} -P -m sidecar.cli.main fault process"
    lasting = ("stop", "slow --share 0.1", "out_of_memory", "full_disk")
    faults = {1 + 1.5 * number: f"{fault} {kind} --pid {{pid}} --for-s 1" for number, kind in enumerate(lasting)}
    report = ledger_under(tmp_path, faults | {8.0: f"{fault} kill --pid {{pid}}"}, 10, idempotent=True)
    assert {name: report[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    unanswered = {outcome for outcome in report["outcomes"] if not outcome.endswith(" ok")}
    assert unanswered <= {"stream cut mid-body"}


def pressure(sidecar: SidecarProcess, origin: int, tests: str, *options: str) -> str:
    argv = [sys.executable, str(HARNESS / "pressure_check.py"), "--target", sidecar.listen, "--tests", tests]
    argv += ["--origin", f"127.0.0.1:{origin}", "--pids", str(sidecar.process.pid), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert len(verdicts) == len(tests.split(",")), done.stdout + done.stderr
    return "\n".join(verdicts)


def test_memory_is_bounded_whatever_clients_do(tmp_path: Path) -> None:
    """Twenty of a kind have a megabyte each. Limits as shipped, but for bodies of 200 MB to be taken at all."""
    origin = free_port()
    config = settings(origin) | {"limits": {"body_bytes": 256 << 20}}
    with sidecar_process(tmp_path, config) as sidecar:
        verdicts = pressure(sidecar, origin, "slow_reader,slow_upload,many_idle", "--limit-mb", "20")
        assert "FAIL" not in verdicts, verdicts
        assert sidecar.stop() == 0


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
