"""A new supervisor takes over from the one that runs: same sockets, nothing lost; where it fails, nothing changes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.load import Load, echo, stream
from tests.support.product import PROCESSES, WARMROUTE, Sidecar, running, write_config
from tests.support.sidecar_process import ROOT
from tests.support.sidecars import Process, gone, until
from tests.support.streaming_origin import streaming_origin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(120)]

AWAY_S = 15.0


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    with streaming_origin(tmp_path / "origin.log") as url:
        yield url


def settings(origin: str, tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "models": [{"name": "default", "default": True, "endpoints": [origin]}],
        "admin": {"socket": str(tmp_path / "admin.sock")},
        "timeouts": {"drain_idle_s": 1.0, "drain_s": 20},
        **more,
    }


@contextmanager
def upgradable(tmp_path: Path, settings: dict[str, Any]) -> Iterator[Sidecar]:
    """Run a sidecar; at the end every supervisor is killed that upgrades have left."""
    with running(tmp_path, settings=settings) as sidecar:
        try:
            yield sidecar
        finally:
            for pid in successors(sidecar):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def successors(sidecar: Sidecar) -> list[int]:
    """Return the pids of the supervisors that upgrades started; they log into the same file."""
    return [event["pid"] for event in sidecar.process.events("upgrade.started")]


def closing() -> Any:
    ask = echo()
    return type(ask)("fresh", ask.head + b"Connection: close\r\n", ask.body, ask.end)


def test_three_upgrades_under_load_lose_nothing(tmp_path: Path, origin: str) -> None:
    with (
        upgradable(tmp_path, settings(origin, tmp_path)) as sidecar,
        Load(sidecar.listen, [echo()], clients=16, rate_per_s=240) as kept,
        Load(sidecar.listen, [closing()], clients=4, rate_per_s=120) as fresh,
        Load(sidecar.listen, [stream(1.5)], clients=4, rate_per_s=100) as streams,  # one after the other, all the time
    ):
        until(lambda: len(kept.answers) > 100 and len(fresh.answers) > 50 and streams.answers, "the load runs")
        pid = sidecar.process.pid
        not_ready: list[object] = []
        for turn in range(1, 4):
            os.kill(pid, signal.SIGUSR2)
            while len(sidecar.process.events("upgrade.done")) < turn:
                answer = sidecar.read("/readyz")
                if answer[0] != 200:
                    not_ready.append(answer)
                time.sleep(0.02)
            os.kill(pid, signal.SIGTERM)  # as systemd sends it to all of them: it drains already
            if turn == 1:
                assert sidecar.process.wait() == 0  # with the last of its streams
            before, pid = pid, successors(sidecar)[-1]
            until(lambda before=before: gone(before), "the one before has left", AWAY_S)  # type: ignore[misc]
        time.sleep(0.3)
        for load in (kept, fresh, streams):
            load.stop()
            assert load.failed() == [], load.summary()
        assert not_ready == []
        assert len(fresh.answers) > 300
        assert len(sidecar.process.events("sidecar.draining_already")) == 3
        assert sidecar.ready()
        assert (tmp_path / "admin.sock").exists()
        os.kill(pid, signal.SIGTERM)
        until(lambda: gone(pid), "it leaves", AWAY_S)
        assert not (tmp_path / "admin.sock").exists()
        assert not sidecar.process.events("process.killed")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(place(sidecar.listen), timeout=2)


@contextmanager
def another(tmp_path: Path, name: str, *flags: str) -> Iterator[Process]:
    """Start another ``warmroute sidecar`` with the same configuration file, as one of another installation would be."""
    command = [WARMROUTE, "sidecar", "--config", str(tmp_path / "warmroute.yaml"), "--log-format", "json", *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    with Process(command, tmp_path / f"{name}.log", env=environ, cwd=ROOT) as process:
        yield process


def test_another_number_of_processes_and_what_else_needed_a_restart(tmp_path: Path, origin: str) -> None:
    first = settings(origin, tmp_path)
    with (
        running(tmp_path, settings=first) as old,
        Load(old.listen, [echo()], clients=8, rate_per_s=120) as kept,
        Load(old.listen, [closing()], clients=8, rate_per_s=200) as fresh,
    ):
        until(lambda: len(fresh.answers) > 50, "the load runs")
        more = {"address": old.listen, "processes": 3, "backlog": 128}  # named by what the kernel had chosen
        admin = {**first["admin"], "address": old.admin}
        write_config(tmp_path, {**first, "admin": admin, "listeners": [more], "logging": {"level": "debug"}})
        with another(tmp_path, "three", "--upgrade") as three:
            three.await_event("upgrade.done")
            assert old.process.wait() == 0
            assert three.await_event("listener.open")["sockets"] == 3
            assert three.await_event("listener.open")["backlog"] == 128
            assert (
                three.await_event("listener.granted", data_process=2)["backlog"] == 128
            )  # from when it is alone there
            served(fresh, 100)
            fewer = {"address": old.listen, "processes": 1}
            write_config(tmp_path, {**first, "admin": admin, "listeners": [fewer]})
            with another(tmp_path, "one", "--upgrade-from", old.listen) as one:
                one.await_event("upgrade.done")
                assert three.wait() == 0
                assert one.await_event("listener.open")["sockets"] == 3  # the one process accepts from all of them
                served(fresh, 200)
                processes = old.json("/healthz")["processes"]
                assert [process["pid"] for process in processes] == [one.child("data-0")]
                kept.stop()
                fresh.stop()
                one.send(signal.SIGTERM)
                assert one.wait() == 0
        assert kept.failed() == [], kept.summary()
        assert fresh.failed() == [], fresh.summary()


def served(load: Load, more: int) -> None:
    """Wait until so many more requests were answered."""
    before = len(load.answers)
    until(lambda: len(load.answers) >= before + more, f"{more} answers more")


def test_a_successor_that_fails_or_is_not_wanted_changes_nothing(tmp_path: Path, origin: str) -> None:
    with (
        running(tmp_path, settings=settings(origin, tmp_path)) as sidecar,
        Load(sidecar.listen, [echo()], clients=8, rate_per_s=120) as kept,
        Load(sidecar.listen, [closing()], clients=4, rate_per_s=100) as fresh,
    ):
        until(lambda: len(fresh.answers) > 20, "the load runs")
        at = ("--upgrade-from", sidecar.listen)
        with another(tmp_path, "bad", *at, "--processes", "0") as bad:  # its configuration is refused
            assert bad.wait() == 2
        taken = socket.create_server(("127.0.0.1", 0))
        with taken, another(tmp_path, "taken", *at, "--admin", f"127.0.0.1:{taken.getsockname()[1]}") as failing:
            assert failing.wait() == 2
            assert "is already taken by another process" in failing.text()
        sidecar.process.await_event("upgrade.failed", why="it left")
        with another(tmp_path, "killed", *at) as killed:
            killed.await_event("process.started", count=1 + PROCESSES)
            control = killed.child("control")
            os.kill(control, signal.SIGSTOP)  # so it does not get as far as to take over
            with another(tmp_path, "second", *at) as second:
                assert second.wait() == 2
                assert "takes over already: wait for it" in second.text()
            killed.popen.kill()
            killed.wait()
            with suppress(ProcessLookupError):
                os.kill(control, signal.SIGKILL)
        sidecar.process.await_event("upgrade.failed", count=2)
        with another(tmp_path, "nowhere", "--upgrade-from", "127.0.0.1:1") as nowhere:
            assert nowhere.wait() == 2
            assert "no sidecar of this user to take over from listens on 127.0.0.1:1" in nowhere.text()
        served(fresh, 100)
        assert sidecar.ready()
        assert all(not gone(pid) for pid in (sidecar.process.pid, *sidecar.data_pids))
        kept.stop()
        fresh.stop()
        assert kept.failed() == [], kept.summary()
        assert fresh.failed() == [], fresh.summary()
        with Load(sidecar.listen, [stream(3)], clients=1, rate_per_s=10, rounds=1) as one:
            until(lambda: len(one.ports) == 1, "a stream runs")
            sidecar.process.send(signal.SIGTERM)
            sidecar.process.await_event("sidecar.draining")
            with another(tmp_path, "late", *at) as late:
                assert late.wait() == 2
                assert "the sidecar is draining" in late.text()
            one.join()
        assert sidecar.process.wait() == 0
        assert not (tmp_path / "admin.sock").exists()


def test_unix_sockets_holds_and_faults_go_on_under_the_successor(tmp_path: Path, origin: str) -> None:
    path = tmp_path / "in.sock"
    first = settings(
        origin, tmp_path, listeners=[{"address": "127.0.0.1:0", "processes": 2}, {"address": f"unix:{path}"}]
    )
    with upgradable(tmp_path, first) as sidecar:
        held = origin[7:]
        command("endpoints", "drain", held, "--admin", f"unix:{tmp_path / 'admin.sock'}")
        until(lambda: sidecar.candidates("default")[held]["reason"] == "held", "it is held")
        inode = path.stat().st_ino
        sidecar.process.send(signal.SIGUSR2)
        sidecar.process.await_event("upgrade.done")
        assert sidecar.process.wait() == 0
        assert path.stat().st_ino == inode
        assert sidecar.candidates("default")[held]["reason"] == "held"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(str(path))
            sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 503 ")
            command("endpoints", "resume", held, "--admin", f"unix:{tmp_path / 'admin.sock'}")
            until(lambda: sidecar.open_to("default"), "it is open again")
            sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        (pid,) = successors(sidecar)
        os.kill(pid, signal.SIGTERM)
        until(lambda: gone(pid), "it leaves", AWAY_S)
        assert not path.exists()


def command(*arguments: str) -> None:
    subprocess.run([WARMROUTE, *arguments], check=True, capture_output=True, timeout=30)


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
