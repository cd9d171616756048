"""``warmroute up`` with everything real, and what it leaves behind: nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from sidecar.faults.processes import FaultKeeper, ProcessFault
from tests.support.sidecars import Process, gone, until
from tests.support.up_fleet import MODEL, Fleet, fleet

SMALL = ("--workers", "1", "--processes", "1")
"""For what is said of each worker and each data process."""


def test_ctrl_c_leaves_nothing_and_everything_was_private(tmp_path: Path) -> None:
    with fleet(tmp_path) as up:
        assert up.infer() == 200
        run_dir = Path(up.places["run_dir"])
        assert run_dir.stat().st_mode & 0o777 == 0o700
        assert Path(up.places["admin_socket"]).stat().st_mode & 0o777 == 0o600
        assert Path(up.places["redis_socket"]).stat().st_mode & 0o777 == 0o600
        assert len({*up.pids}) == len(up.pids) == 8
        up.process.send(signal.SIGINT)
        assert up.process.wait() == 0
        up.assert_nothing_is_left()
        assert "nothing left behind" in up.output()
        assert "killed" not in up.output()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.5])
def test_a_start_that_is_broken_off_leaves_nothing(after_s: float, signum: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-P", "-m", "sidecar.cli.main", "up", "--listen", "127.0.0.1:0", "--admin"]
    command += ["127.0.0.1:0", "--engine", "deterministic", "--model", MODEL, "--", "--load-s", "30"]
    with (tmp_path / "out").open("wb") as out:
        environ = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1"}
        process = Process(command, tmp_path / "err", stdout=out, cwd=tmp_path, env=environ)
    with process:
        until(lambda: "starting in" in (tmp_path / "out").read_text(), "it starts")
        time.sleep(after_s)  # somewhere in the midst of it, wherever this machine has come to
        run_dir = next((tmp_path / "tmp").iterdir())
        if after_s:
            until(lambda: bool(_running_in(run_dir)), "something of it runs")
        process.send(signum)
        assert process.wait() == (0 if signum is signal.SIGINT else -signal.SIGKILL)
        # One that had just begun when its parent was killed does not follow it yet: it has the janitor's 26 s to end.
        until(lambda: not run_dir.exists(), "the run directory is removed", within_s=40)
        until(lambda: not _running_in(run_dir), "no process of it is left")


def test_sigkill_of_the_parent_lets_a_running_request_finish_and_leaves_nothing(tmp_path: Path) -> None:
    with fleet(tmp_path, *SMALL) as up:
        statuses: list[int] = []
        caller = threading.Thread(target=lambda: statuses.append(up.infer(service_ms=5000)))
        caller.start()
        until(lambda: b'"in_flight":1' in _stats(up), "the request runs")
        up.process.send(signal.SIGKILL)
        up.process.wait()
        caller.join(30)
        assert statuses == [200]
        up.assert_nothing_is_left()


def running(up: Fleet) -> dict[str, int | None]:
    """Return the workers' process ids as the ready file has them now."""
    places = json.loads((up.scratch / "ready.json").read_bytes())
    return {worker["id"]: worker["pid"] for worker in places["workers"]}


def test_a_killed_worker_is_started_again(tmp_path: Path) -> None:
    with fleet(tmp_path) as up:
        victim = up.places["workers"][0]
        os.kill(victim["pid"], signal.SIGKILL)
        until(lambda: "worker-1: ended (SIGKILL), starting again in 0.0 s" in up.output(), "it says so")

        def both_warm() -> bool:
            status, body = up.ask(up.places["admin"], "/routes")
            rows = json.loads(body)["routes"][0]["candidates"] if status == 200 else []
            warm = {row["endpoint"]: row["address"] for row in rows if row["state"] == "warm" and not row["reason"]}
            return len(warm) == 2 and warm["worker-1"] != victim["address"]

        until(both_warm, "both workers are routed to again")
        until(lambda: running(up)["worker-1"] not in (None, victim["pid"]), "the ready file names its successor")
        assert running(up)["worker-2"] == up.places["workers"][1]["pid"]
        assert up.infer() == 200
        up.process.send(signal.SIGTERM)
        assert up.process.wait() == 0
        up.assert_nothing_is_left()


def test_a_killed_store_is_started_again_and_requests_go_on(tmp_path: Path) -> None:
    with fleet(tmp_path, *SMALL) as up:
        os.kill(up.places["redis_pid"], signal.SIGKILL)
        assert [up.infer() for _ in range(20)] == [200] * 20
        until(lambda: "state store: died; started again, empty" in up.output(), "it says so")
        assert up.infer() == 200
        up.process.send(signal.SIGTERM)
        assert up.process.wait() == 0
        up.assert_nothing_is_left()


def test_a_store_that_a_fault_keeps_away_comes_back_when_nobody_keeps_it(tmp_path: Path) -> None:
    again = "state store: died; started again, empty"
    with fleet(tmp_path, *SMALL) as up:
        fault = ProcessFault("store_stop", url=f"unix://{up.places['redis_socket']}", for_s=300)
        with FaultKeeper() as keeper:
            kept = keeper.begin(fault)
            assert kept.memo["pid"] == up.places["redis_pid"]
            for _ in range(5):
                os.kill(up.process.pid, signal.SIGCHLD)  # it looks after its children
                assert up.infer() == 200
            assert again not in up.output()
            kept.end()
            until(lambda: again in up.output(), "the store is back")
            until(lambda: there(up.places["redis_socket"]), "it answers")
            keeper.begin(fault)
            os.kill(keeper.pid, signal.SIGKILL)
            until(lambda: up.output().count(again) == 2, "the store is back")
        assert up.infer() == 200


def there(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(path) == 0


def test_a_killed_sidecar_comes_back_on_the_same_addresses(tmp_path: Path) -> None:
    with fleet(tmp_path, *SMALL) as up:
        os.kill(up.places["sidecar_pid"], signal.SIGKILL)
        until(lambda: "sidecar: ended (SIGKILL)" in up.output(), "it says so")

        def serves() -> bool:
            try:
                return up.infer() == 200 and up.ask(up.places["admin"], "/readyz")[0] == 200
            except (OSError, http.client.HTTPException):
                return False

        until(serves, "the sidecar serves again")
        until(lambda: gone(up.places["control_pid"]), "the control process of before has left")
        up.process.send(signal.SIGTERM)
        assert up.process.wait() == 0
        up.assert_nothing_is_left()


def test_a_second_ctrl_c_cuts_a_long_request_short(tmp_path: Path) -> None:
    with fleet(tmp_path, *SMALL) as up:
        caller = threading.Thread(target=lambda: _swallow(lambda: up.infer(service_ms=60_000)))
        caller.start()
        until(lambda: b'"in_flight":1' in _stats(up), "the request runs")
        up.process.send(signal.SIGINT)
        until(lambda: "draining" in up.output(), "it drains")
        up.process.send(signal.SIGINT)
        assert up.process.wait(25) == 1  # before the 30 s are over that a drain may take
        caller.join(30)
        assert not caller.is_alive()
        up.assert_nothing_is_left()


def test_the_run_directory_can_be_kept(tmp_path: Path) -> None:
    with fleet(tmp_path, *SMALL, "--keep-run-dir") as up:
        up.process.send(signal.SIGTERM)
        assert up.process.wait() == 0
        run_dir = Path(up.places["run_dir"])
        assert {path.name for path in (run_dir / "log").iterdir()} == {"worker-1.log", "sidecar.log"}
        assert not (run_dir / "admin.sock").exists()
        assert not (run_dir / "state.sock").exists()
        assert "version: 1" in (run_dir / "warmroute.yaml").read_text()


def _running_in(run_dir: Path) -> list[str]:
    """Return the command lines of processes that name the run directory, or have it as their temporary directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(run_dir) in text:
            found.append(text.decode(errors="replace"))
    return found


def _stats(up: Fleet) -> bytes:
    return b"".join(up.ask(worker["address"], "/stats")[1] for worker in up.places["workers"]).replace(b" ", b"")


def _swallow(action: object) -> None:
    assert callable(action)
    try:
        action()
    except (OSError, http.client.HTTPException):
        return  # cut: that is what the test is about
