"""``warmroute sidecar`` with its real roles: drain, restarts, orphans, and what a successor finds."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.http_origin import Handler, HttpOrigin
from tests.support.sidecars import Process, gone, until


class Origin(HttpOrigin):
    """A worker's part: answers at once, or on ``/held`` once it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.let_go = threading.Event()
        origin = self

        class Answers(Handler):
            def get(self) -> None:
                if self.path == "/held":
                    origin.started.set()
                    origin.let_go.wait(100)
                self.answer(b"answer")

        super().__init__(Answers)

    def stop(self) -> None:
        self.let_go.set()
        super().stop()


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as started:
        yield started


@contextmanager
def sidecar(
    tmp_path: Path,
    origin: Origin,
    at: tuple[str, str] = ("127.0.0.1:0", "127.0.0.1:0"),
    log: str = "sidecar.log",
    drain_s: float = 10.0,
    **timeouts: float,
) -> Iterator[Process]:
    """Run a sidecar that listens, and serves its admin API, ``at`` these addresses."""
    command = [sys.executable, "-P", "-m", "sidecar.cli.main", "sidecar", "--listen", at[0], "--to", origin.url]
    command += ["--admin", at[1], "--admin-socket", str(tmp_path / "run" / "admin.sock")]
    environ = dict(os.environ)
    for name, value in {"drain_s": drain_s, **timeouts}.items():
        environ[f"WARMROUTE__TIMEOUTS__{name.upper()}"] = str(value)
    with Process(command, tmp_path / log, env=environ) as process:
        until(lambda: get(listen(process), "/")[0] == 200, "it serves")
        until(lambda: get(admin(process), "/readyz")[0] == 200, "it is ready")
        yield process


def listen(process: Process) -> str:
    return str(process.await_event("listener.open")["address"])


def admin(process: Process) -> str:
    return str(process.await_event("admin.open", count=2)["address"])


def get(address: str, path: str) -> tuple[int, bytes]:
    """Return status and body; status 0 where no answer came."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def children(process: Process) -> list[int]:
    return [process.child(name) for name in ("control", "data-0", "data-1")]


def test_sigterm_finishes_what_runs_refuses_what_comes_and_ends_with_zero(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin) as process:
        pids, address, place = children(process), listen(process), admin(process)
        answers: list[tuple[int, bytes]] = []
        caller = threading.Thread(target=lambda: answers.append(get(address, "/held")))
        caller.start()
        assert origin.started.wait(30)
        process.await_event("process.accepting", count=2)  # one that has only just begun ends by the signal itself
        process.send(signal.SIGTERM)
        until(lambda: get(place, "/readyz")[0] == 503, "it is not ready while it drains")
        host, _, port = address.rpartition(":")

        def refused() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex((host, int(port))) != 0

        until(refused, "nothing is accepted any more")
        assert process.popen.poll() is None
        origin.let_go.set()
        caller.join(30)
        assert answers == [(200, b"answer")]
        assert process.wait() == 0
        assert all(gone(pid) for pid in pids)
        assert not (tmp_path / "run" / "admin.sock").exists()
        assert not process.events("process.killed")
        assert {event["code"] for event in process.events("process.exited")} == {0}


def test_before_it_closes_it_gives_load_balancers_their_time(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin, drain_wait_s=2.0) as process:
        address, place = listen(process), admin(process)
        kept = http.client.HTTPConnection(address, timeout=10)
        process.send(signal.SIGTERM)
        told_at = time.monotonic()
        until(lambda: get(place, "/readyz")[0] == 503, "not ready at once")
        asked = 0
        while True:
            kept.request("GET", "/")
            response = kept.getresponse()
            answers = (response.read(), response.getheader("Connection")), get(address, "/")
            if process.events("drain.began"):  # by which the listener is closed
                break
            assert answers == ((b"answer", None), (200, b"answer"))
            asked += 1
        assert time.monotonic() - told_at >= 2.0
        assert asked > 3
        kept.close()
        until(lambda: get(address, "/")[0] == 0, "then nothing is accepted")
        assert process.wait() == 0
        assert process.await_event("drain.waiting")["wait_s"] == 2.0


def test_what_the_end_of_the_grace_period_cuts_is_still_an_end_in_order(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin, drain_s=0.3) as process:
        answers: list[tuple[int, bytes]] = []
        caller = threading.Thread(target=lambda: answers.append(get(listen(process), "/held")))
        caller.start()
        assert origin.started.wait(30)
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        caller.join(30)
        assert answers != [(200, b"answer")]
        assert process.await_event("drain.cut")["requests"] == 1
        assert not process.events("process.killed")


def test_a_killed_data_process_is_replaced_and_serves(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin) as process:
        before = children(process)
        os.kill(before[1], signal.SIGKILL)
        process.await_event("process.started", count=2, name="data-0")
        assert [get(listen(process), "/")[0] for _ in range(20)] == [200] * 20
        assert children(process)[1] != before[1]
        assert children(process)[2] == before[2]


def test_the_control_process_is_back_and_no_request_fails(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin) as process:
        address, place = listen(process), admin(process)
        os.kill(process.child("control"), signal.SIGKILL)
        assert [get(address, "/")[0] for _ in range(50)] == [200] * 50
        until(lambda: get(place, "/readyz")[0] == 200, "ready again")  # in two seconds: tests/acceptance
        assert json.loads(get(place, "/routes")[1])["routes"][0]["candidates"][0]["state"] == "warm"


def test_a_killed_supervisor_leaves_no_process_and_a_successor_takes_over(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin) as process:
        pids, address = children(process), listen(process)
        caller_answers: list[tuple[int, bytes]] = []
        caller = threading.Thread(target=lambda: caller_answers.append(get(address, "/held")))
        caller.start()
        assert origin.started.wait(30)
        process.send(signal.SIGKILL)
        process.wait()
        origin.let_go.set()
        caller.join(30)
        assert caller_answers == [(200, b"answer")]
        for pid in pids:
            until(lambda pid=pid: gone(pid), f"{pid} is gone")  # type: ignore[misc]
    (tmp_path / "sidecar.log").unlink()
    with sidecar(tmp_path, origin) as successor:  # on the same admin socket
        successor.send(signal.SIGTERM)
        assert successor.wait() == 0
    assert not (tmp_path / "run" / "admin.sock").exists()


def test_a_successor_need_not_wait_for_what_a_killed_supervisor_left_running(tmp_path: Path, origin: Origin) -> None:
    with sidecar(tmp_path, origin, drain_s=100.0) as process:
        pids, at = children(process), (listen(process), admin(process))
        caller_answers: list[tuple[int, bytes]] = []
        caller = threading.Thread(target=lambda: caller_answers.append(get(at[0], "/held")))
        caller.start()
        assert origin.started.wait(30)
        process.send(signal.SIGKILL)
        process.wait()
        until(lambda: not any(taken(address) for address in at), "the addresses are free", within_s=20)
        with sidecar(tmp_path, origin, at, "successor.log") as successor:
            assert not all(gone(pid) for pid in pids), "this was to be tried while they still run"
            origin.let_go.set()
            caller.join(30)
            assert caller_answers == [(200, b"answer")]
            assert get(at[0], "/")[0] == 200
            for pid in pids:
                until(lambda pid=pid: gone(pid), f"{pid} is gone")  # type: ignore[misc]
            assert get(at[1], "/readyz")[0] == 200
            successor.send(signal.SIGTERM)
            assert successor.wait() == 0


def taken(address: str) -> bool:
    """Tell whether somebody listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0
