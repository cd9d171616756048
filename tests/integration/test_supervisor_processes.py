"""The real supervisor over real processes that only play the sidecar's roles."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from sidecar.handover import HandoverError, Inheritance
from tests.support.sidecars import Process, gone, stand_in, until


def connect(process: Process) -> socket.socket:
    host, _, port = process.await_event("listener.open")["address"].rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.settimeout(10)
    return sock


def served_by(sock: socket.socket) -> int:
    return int(sock.makefile("r").readline())


def await_up(tmp_path: Path, process: Process) -> list[int]:
    """Return the children's pids once each of them has answered: its signal handlers are in place then."""
    expected = set(pids(process)[1:])

    def all_answered() -> bool:
        with connect(process) as sock:
            expected.discard(served_by(sock))
        return not expected

    until(all_answered, "every data process answers")
    ask_control(tmp_path)
    return pids(process)


def ask_control(tmp_path: Path) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(tmp_path / "admin.sock"))
        answer: dict[str, object] = json.loads(sock.makefile().read())
        return answer


def pids(process: Process) -> list[int]:
    return [process.child(name) for name in ("control", "data-0", "data-1")]


def test_a_killed_data_process_is_started_again_behind_the_same_socket(tmp_path: Path) -> None:
    with stand_in(tmp_path, {"listeners": [{"address": "127.0.0.1:0", "processes": 1}]}) as process:
        with connect(process) as sock:
            first = served_by(sock)
        os.kill(first, signal.SIGSTOP)  # what connects now waits in the accept queue
        waiting = connect(process)
        os.kill(first, signal.SIGKILL)
        with waiting:
            second = served_by(waiting)  # and is served by the successor
        assert second != first
        exited = process.await_event("process.exited", name="data-0")
        assert exited["signal"] == "SIGKILL"
        assert process.await_event("process.restarting", name="data-0")["delay_s"] == 0.0
        assert process.child("data-0") == second


def test_a_killed_control_process_is_back_within_two_seconds_under_the_same_name(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        process.child("control")
        before = ask_control(tmp_path)
        data = process.child("data-0")
        os.kill(process.child("control"), signal.SIGKILL)
        until(lambda: process.events("process.started", name="control", start=2), "a second start", within_s=2.0)
        after = ask_control(tmp_path)
        assert after["id"] == before["id"]
        assert after["pid"] != before["pid"]
        assert process.child("data-0") == data


def test_restarts_of_a_child_that_keeps_dying_back_off(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        for life in (1, 2, 3):
            pid = process.await_event("process.started", count=life, name="data-1")["pid"]
            os.kill(pid, signal.SIGKILL)
            process.await_event("process.restarting", count=life, name="data-1")
        delays = [event["delay_s"] for event in process.events("process.restarting", name="data-1")]
        assert delays == [0.0, 0.1, 0.2]


def test_sigterm_drains_nothing_is_accepted_after_and_the_exit_code_is_zero(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        children = await_up(tmp_path, process)
        address = process.await_event("listener.open")["address"].rpartition(":")
        open_sockets = [connect(process) for _ in range(4)]
        for sock in open_sockets:
            served_by(sock)
        process.send(signal.SIGTERM)
        process.await_event("sidecar.draining")

        def refused() -> bool:
            try:
                socket.create_connection((address[0], int(address[2])), timeout=5).close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused, "the listener is closed")
        assert ask_control(tmp_path)["pid"] == children[0]  # the admin API serves on
        for sock in open_sockets:
            sock.sendall(b"still here")
            assert sock.recv(64) == b"still here"
            sock.close()
        assert process.wait() == 0
        assert all(gone(pid) for pid in children)
        assert not (tmp_path / "admin.sock").exists()
        assert {event["code"] for event in process.events("process.exited")} == {0}


def test_a_terminal_s_ctrl_c_reaches_only_the_supervisor(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        children = await_up(tmp_path, process)
        groups = {os.getpgid(pid) for pid in children}
        assert os.getpgid(process.pid) not in groups
        process.send(signal.SIGINT)
        assert process.wait() == 0
        (event,) = process.events("sidecar.draining")
        assert event["why"] == "SIGINT"


def test_who_overstays_the_grace_period_is_killed_and_the_exit_code_says_so(tmp_path: Path) -> None:
    settings = {"models": [{"name": "data-hangs"}], "timeouts": {"drain_s": 0.2}}
    with stand_in(tmp_path, settings) as process:
        children = await_up(tmp_path, process)
        with connect(process) as sock:
            served_by(sock)
            process.send(signal.SIGTERM)
            assert process.wait() == 1
        assert {event["name"] for event in process.events("process.killed")} == {"data-0", "data-1"}
        assert all(gone(pid) for pid in children)


def test_a_data_process_that_dies_while_it_drains_is_no_end_in_order(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        children = await_up(tmp_path, process)
        with connect(process) as sock:
            pid = served_by(sock)
            process.send(signal.SIGTERM)
            process.await_event("sidecar.draining")
            os.kill(pid, signal.SIGKILL)
            assert process.wait() == 1
        assert not process.events("process.killed")
        assert all(gone(pid) for pid in children)


def test_a_second_signal_cuts_the_drain_short_and_says_so_in_the_exit_code(tmp_path: Path) -> None:
    settings = {"models": [{"name": "data-hangs"}], "timeouts": {"drain_s": 3600.0}}
    with stand_in(tmp_path, settings) as process:
        children = await_up(tmp_path, process)
        with connect(process) as sock:
            served_by(sock)
            process.send(signal.SIGINT)
            process.await_event("sidecar.draining")
            process.send(signal.SIGINT)
            assert process.wait() == 1
        assert process.events("sidecar.drain_cut_short")
        assert all(gone(pid) for pid in children)


def test_without_a_source_sighup_is_told_to_be_unsupported_and_changes_nothing(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        children = await_up(tmp_path, process)
        process.send(signal.SIGHUP)
        process.await_event("config.reload_unsupported")
        with connect(process) as sock:
            assert served_by(sock) in children


def test_one_that_another_program_started_hands_over_to_nobody(tmp_path: Path) -> None:
    with stand_in(tmp_path, {}) as process:
        children = await_up(tmp_path, process)
        process.send(signal.SIGUSR2)
        assert "warmroute up" in process.await_event("upgrade.refused")["why"]
        with pytest.raises(HandoverError, match="belongs to the program that started it"):
            Inheritance.claim([process.await_event("listener.open")["address"]], "9.9")
        with connect(process) as sock:
            assert served_by(sock) in children


def test_children_leave_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with stand_in(tmp_path, {"models": [{"name": "control-leaves"}]}) as process:
        children = await_up(tmp_path, process)
        with connect(process) as sock:
            assert served_by(sock) in children
            process.send(signal.SIGKILL)
            process.wait()
            sock.sendall(b"finish me")  # what runs may end
            assert sock.recv(64) == b"finish me"
        until(lambda: all(gone(pid) for pid in children), "every child is gone")


@pytest.mark.parametrize(("fault", "who"), [("data-fails", "data processes"), ("control-fails", "control process")])
def test_a_sidecar_that_cannot_start_gives_up(tmp_path: Path, fault: str, who: str) -> None:
    with stand_in(tmp_path, {"models": [{"name": fault}]}) as process:
        assert process.wait() == 1
        (event,) = process.events("sidecar.giving_up")
        assert event["who"] == who
        started = {event["pid"] for event in process.events("process.started")}
        assert all(gone(pid) for pid in started)


def test_what_the_kernel_granted_is_logged(tmp_path: Path) -> None:
    listener = {"address": "127.0.0.1:0", "processes": 1, "backlog": 65535, "name": "front"}
    with stand_in(tmp_path, {"listeners": [listener]}) as process:
        event = process.await_event("listener.open")
        most = int(Path("/proc/sys/net/core/somaxconn").read_text())
        assert (event["listener"], event["backlog"], event["backlog_asked"]) == ("front", min(65535, most), 65535)
        if most < 65535:
            assert "sysctl net.core.somaxconn=65535" in event["remedy"]


def test_systemd_hears_ready_and_stopping(tmp_path: Path) -> None:
    path = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        notify.settimeout(10)
        with stand_in(tmp_path, {}, notify_socket=str(path)) as process:
            assert notify.recv(256).startswith(b"READY=1")
            process.send(signal.SIGTERM)
            assert notify.recv(256).startswith(b"STOPPING=1")
            assert process.wait() == 0
