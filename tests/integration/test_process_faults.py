"""Faults of processes, on real ones, and the keeper that ends them whatever becomes of who asked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.cli.main import main
from sidecar.faults.processes import FaultKeeper, ProcessFault, ProcessFaultError
from sidecar.pids import start_ticks
from tests.support.sidecars import gone, until

COUNTS = "import itertools\nfor number in itertools.count():\n    print(number, flush=True)"
DRILL = """
import sys, time
from sidecar.faults.processes import FaultKeeper, ProcessFault
keeper = FaultKeeper()
kept = keeper.begin(ProcessFault(sys.argv[1], pid=int(sys.argv[2]), for_s=float(sys.argv[3])))
print(keeper.pid, flush=True)
time.sleep(300)
"""


class Counting:
    """A process that counts as fast as its reader reads."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", COUNTS], stdout=subprocess.PIPE)
        self.count()

    @property
    def pid(self) -> int:
        return self.process.pid

    def count(self) -> int:
        """Return the next number; waits for it as long as the process stands."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    @property
    def stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def target() -> Iterator[Counting]:
    counting = Counting()
    try:
        yield counting
    finally:
        counting.end()


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``warmroute fault process`` in a process group of its own."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "sidecar.cli.main", "fault", "process", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def keeper() -> Iterator[FaultKeeper]:
    with FaultKeeper() as keeper:
        yield keeper


def test_a_stopped_process_goes_on_at_the_end(keeper: FaultKeeper, target: Counting) -> None:
    kept = keeper.begin(ProcessFault("stop", pid=target.pid))
    until(lambda: target.stopped, "it stands")
    assert keeper.in_force() == (kept.number,)
    assert kept.undone == "the process goes on"
    assert kept.end()
    assert not target.stopped
    assert keeper.in_force() == ()
    assert not kept.end(), "there is nothing left to undo"


def test_a_fault_ends_at_its_lifetime(keeper: FaultKeeper, target: Counting) -> None:
    kept = keeper.begin(ProcessFault("stop", pid=target.pid, for_s=0.2))
    until(lambda: target.stopped, "it stands")
    until(lambda: not kept.in_force, "the fault ended by itself")
    assert not target.stopped


def test_a_slow_process_stands_and_goes_in_turn(keeper: FaultKeeper, target: Counting) -> None:
    kept = keeper.begin(ProcessFault("slow", pid=target.pid, share=0.5))
    for _ in range(3):
        until(lambda: target.stopped, "it stands")
        until(lambda: not target.stopped, "it goes")
    kept.end()
    assert not target.stopped


def test_a_killed_process_is_killed(keeper: FaultKeeper, target: Counting) -> None:
    kept = keeper.begin(ProcessFault("kill", pid=target.pid))
    assert target.process.wait(10) == -signal.SIGKILL
    assert "warmroute up" in kept.undone
    assert not kept.end()


@pytest.mark.parametrize("kind", ["stop", "slow"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_when_the_drill_dies(kind: str, signum: signal.Signals, target: Counting) -> None:
    drill = subprocess.Popen(
        [sys.executable, "-P", "-c", DRILL, kind, str(target.pid), "300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert drill.stdout is not None
    try:
        keeper = int(drill.stdout.readline())
        until(lambda: target.stopped, "the fault is in force")
        os.killpg(drill.pid, signum)  # all that the terminal would reach
    finally:
        drill.kill()
        drill.wait()
        drill.stdout.close()
    until(lambda: gone(keeper), "the keeper has left")
    assert not target.stopped
    target.count()


def test_nothing_stays_while_the_drill_stands(target: Counting) -> None:
    drill = subprocess.Popen([sys.executable, "-P", "-c", DRILL, "stop", str(target.pid), "1"], stdout=subprocess.PIPE)
    assert drill.stdout is not None
    try:
        drill.stdout.readline()
        drill.send_signal(signal.SIGSTOP)
        until(lambda: not target.stopped, "the fault ended at its lifetime")
    finally:
        drill.kill()
        drill.wait()
        drill.stdout.close()


def test_what_a_killed_keeper_began_is_undone_from_here(target: Counting) -> None:
    with FaultKeeper() as keeper:
        kept = keeper.begin(ProcessFault("stop", pid=target.pid))
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: gone(keeper.pid), "the keeper is killed")
        until(lambda: target.stopped, "it stands")
        assert kept.in_force
        with pytest.raises(ProcessFaultError, match="the keeper of faults is gone: start another"):
            keeper.begin(ProcessFault("stop", pid=target.pid))
        assert kept.end()
        assert not target.stopped


def test_closing_undoes_what_a_killed_keeper_began(target: Counting) -> None:
    keeper = FaultKeeper()
    keeper.begin(ProcessFault("slow", pid=target.pid))
    os.kill(keeper.pid, signal.SIGKILL)
    keeper.close()
    assert not target.stopped
    keeper.close()


def test_only_what_is_named_and_ours_is_touched(keeper: FaultKeeper, target: Counting) -> None:
    ticks = start_ticks(target.pid)
    assert ticks is not None
    for fault, text in (
        (ProcessFault("stop", pid=target.pid, ticks=ticks + 1), "the process that was meant is gone"),
        (ProcessFault("stop", pid=os.getpid()), "name the process of a worker or of a state store"),
        (ProcessFault("kill", pid=keeper.pid), "name the process of a worker or of a state store"),
        (ProcessFault("kill", pid=1), "name the process of a worker or of a state store"),
        (ProcessFault("kill"), "name the process of a worker or of a state store"),
        (ProcessFault("kill", pid=2**30), "there is no such process"),
        (ProcessFault("slow", pid=target.pid, share=1.5), "share 1.5: must be from 0.02 to 0.95"),
    ):
        with pytest.raises(ProcessFaultError, match=text):
            keeper.begin(fault)
    assert keeper.in_force() == ()
    assert not target.stopped
    assert keeper.begin(ProcessFault("stop", pid=target.pid, ticks=ticks)).in_force


def test_a_process_that_somebody_else_stopped_is_left_alone(keeper: FaultKeeper, target: Counting) -> None:
    target.process.send_signal(signal.SIGSTOP)
    until(lambda: target.stopped, "it is stopped")
    with pytest.raises(ProcessFaultError, match=rf"is stopped already \(kill -CONT {target.pid} lets it go on\)"):
        keeper.begin(ProcessFault("stop", pid=target.pid))
    keeper.close()
    until(lambda: target.stopped, "it stands")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_a_process_of_another_user_is_left_alone(keeper: FaultKeeper) -> None:
    other = subprocess.Popen(["/bin/sleep", "60"], user=65534, group=65534, extra_groups=[])
    try:
        with pytest.raises(
            ProcessFaultError, match=rf"pid {other.pid}: belongs to user 65534, not to the one who asks"
        ):
            keeper.begin(ProcessFault("kill", pid=other.pid))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_command_stays_until_ctrl_c(target: Counting) -> None:
    with command("stop", "--pid", str(target.pid), "--for-s", "300") as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == f"stop: pid {target.pid}: in force for 5 min 00 s, Ctrl-C ends it\n"
        until(lambda: target.stopped, "it stands")
        os.killpg(asking.pid, signal.SIGINT)
        assert asking.stdout.readline() == "stop: ended by Ctrl-C: the process goes on\n"
        assert asking.wait(10) == 130
    assert not target.stopped


def test_the_command_ends_with_the_lifetime(target: Counting) -> None:
    with command("slow", "--pid", str(target.pid), "--for-s", "0.3", "--share", "0.5") as asking:
        out, err = asking.communicate(timeout=20)
    assert (asking.returncode, err) == (0, "")
    assert out.endswith("slow: ended: the process goes on at its own speed\n")
    assert not target.stopped


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["slow", "--pid", "2", "--share", "2"], 'Invalid value "2.0" for --share. Must be <= 0.95.'),
        (["stop", "--pid", "2", "--share", "0.5"], "stop: share does not belong to it; leave it out"),
        (["store_stop", "--url", "http://h"], "store_stop: http://h: must be unix:///PATH or redis://127.0.0.1:PORT: "),
        (["store_stop", "--url", "redis://10.0.0.1:1"], "store_stop: redis://10.0.0.1:1: must be unix:///PATH or "),
        (["store_stop", "--url", "redis://localhost:x"], "store_stop: redis://localhost:x: Port could not be cast"),
    ],
)
def test_wrong_use_of_the_command_begins_nothing(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fault", "process", *words]) == 2
    assert capsys.readouterr().err.startswith(f"warmroute: {says}")


def test_nothing_stays_when_the_command_is_terminated(target: Counting) -> None:
    with command("stop", "--pid", str(target.pid)) as asking:
        until(lambda: target.stopped, "it stands")
        asking.terminate()
        asking.wait(10)
    until(lambda: not target.stopped, "it goes on")


def test_the_command_knows_the_workers_of_a_ready_file(target: Counting, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    workers = [{"id": "worker-1", "pid": target.pid, "address": ""}, {"id": "worker-2", "pid": None, "address": ""}]
    ready.write_text(json.dumps({"redis_socket": str(tmp_path / "none.sock"), "workers": workers, "listen": ""}))
    for words, code, text in (
        (
            ("stop", "--worker", "worker-3", "--ready-file", str(ready)),
            2,
            "no worker 'worker-3' in .*: worker-1, worker-2",
        ),
        (
            ("stop", "--worker", "worker-2", "--ready-file", str(ready)),
            1,
            "worker-2 does not run now; it is being started",
        ),
        (("stop", "--worker", "worker-1"), 2, "--worker worker-1: name the --ready-file of `warmroute up`"),
        (("stop", "--ready-file", str(ready)), 2, "name one of its workers with --worker"),
        (("stop",), 2, "name one: --pid, --url, --worker with --ready-file"),
        (("explode", "--pid", "4"), 2, "no kind 'explode'; there are: full_disk, kill, "),
        (
            ("store_restart", "--worker", "worker-1", "--ready-file", str(ready)),
            2,
            "--worker worker-1: is asked of a store by its address: name its --url, or --ready-file alone",
        ),
        (("store_read_only", "--pid", str(target.pid)), 2, f"--pid {target.pid}: is asked of a store by its address"),
        (("store_pause", "--ready-file", str(ready)), 1, "store_pause: unix:.*none.sock: No such file or directory"),
        (("kill", "--worker", "worker-1", "--ready-file", str(ready)), 0, f"kill: pid {target.pid}: done; not undone"),
    ):
        with command(*words) as asking:
            out, err = asking.communicate(timeout=20)
        assert asking.returncode == code, (words, out, err)
        assert re.search(text, out + err), (words, out, err)
    assert target.process.wait(10) == -signal.SIGKILL
