from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sidecar.children import Backoff, Child, Exit, RestartPolicy, signal_name
from sidecar.pids import kill_exactly, start_ticks
from sidecar.signals import Signals


def test_the_first_restart_is_at_once_then_doubles_to_the_cap() -> None:
    backoff = Backoff(RestartPolicy())
    assert [backoff.died(0.5) for _ in range(9)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_long_life_is_a_fresh_start() -> None:
    backoff = Backoff(RestartPolicy())
    for _ in range(4):
        backoff.died(1.0)
    assert backoff.died(10.0) == 0.0
    assert backoff.died(1.0) == 0.1


def test_thousands_of_deaths_stay_at_the_cap() -> None:
    backoff = Backoff(RestartPolicy())
    assert {backoff.died(0.0) for _ in range(5000)} >= {5.0}
    assert backoff.died(0.0) == 5.0


def test_failed_starts_are_counted_in_a_row() -> None:
    backoff = Backoff(RestartPolicy(start_s=2.0))
    backoff.died(0.1)
    backoff.died(1.9)
    assert backoff.failed_starts == 2
    backoff.died(2.0)
    assert backoff.failed_starts == 0


def wait_for(child: Child, now: float) -> Exit:
    with Signals((signal.SIGCHLD,)) as signals:
        while (ended := child.reap(now)) is None:
            signals.wait(0.05)
    return ended


@pytest.mark.parametrize(
    ("code", "exit_code", "exit_signal"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", None, "SIGKILL"),
        ("", 0, ""),
    ],
)
def test_how_a_life_ended_is_told(code: str, exit_code: int | None, exit_signal: str) -> None:
    child = Child("it", (sys.executable, "-I", "-S", "-c", code))
    pid = child.start(100.0)
    ended = wait_for(child, 103.5)
    assert ended.pid == pid
    assert (ended.code, ended.signal, ended.lived_s) == (exit_code, exit_signal, 3.5)
    assert child.pid is None
    assert child.settled
    assert child.reap(104.0) is None


def test_a_restart_is_due_after_the_delay_and_counts() -> None:
    child = Child("it", (sys.executable, "-I", "-S", "-c", ""))
    child.start(0.0)
    ended = wait_for(child, 0.5)
    assert child.plan_restart(ended, 0.5) == 0.0
    due = [child.restart_at]
    child.start(0.6)
    due.append(child.restart_at)
    assert due == [0.5, None]
    assert child.starts == 2
    ended = wait_for(child, 0.9)
    child.plan_restart(ended, 1.0)
    assert child.restart_at == pytest.approx(1.1)
    assert child.failed_starts == 2
    assert not child.settled


def test_a_child_is_out_of_the_terminal_s_process_group_and_inherits_only_what_it_is_given() -> None:
    read_fd, write_fd = os.pipe()
    other_read, other_write = os.pipe()
    code = f"import os; os.write({write_fd}, f\"{{os.getpgid(0)}} {{os.listdir('/proc/self/fd')}}\".encode())"
    child = Child("it", (sys.executable, "-I", "-S", "-c", code), pass_fds=(write_fd,))
    try:
        pid = child.start(0.0)
        wait_for(child, 0.0)
        group, _, fds = os.read(read_fd, 4096).decode().partition(" ")
        assert int(group) == pid
        assert str(write_fd) in fds
        assert {other_read, other_write}.isdisjoint(int(fd) for fd in fds.strip("[]").replace("'", "").split(", "))
    finally:
        for fd in (read_fd, write_fd, other_read, other_write):
            os.close(fd)


def test_a_process_is_named_by_pid_and_start() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        assert not kill_exactly(process.pid, ticks + 1, signal.SIGKILL)
        assert process.poll() is None
        assert kill_exactly(process.pid, ticks, signal.SIGKILL)
    finally:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert start_ticks(process.pid) is None
    assert not kill_exactly(process.pid, ticks, signal.SIGKILL)


def test_a_zombie_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(process.pid) is None
    process.wait()


def test_signals_arrive_in_order_and_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGHUP)
    with Signals((signal.SIGUSR1, signal.SIGHUP)) as signals:
        assert signals.wait(0.0) == ()
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGHUP)
        assert signals.wait(5.0) == (signal.SIGUSR1, signal.SIGHUP)
        assert signals.wait(-1.0) == ()
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGHUP)) == before


def test_signal_names_without_one_in_this_python() -> None:
    assert signal_name(15) == "SIGTERM"
    assert signal_name(40) == "SIG40"
