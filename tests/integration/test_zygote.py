"""Workers that a zygote forks, as processes: in all that can be seen of them they are workers as any other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.worker_process import ROOT, WorkerProcess, echo_body

ECHO = ("--engine", "deterministic", "--model", "m", "--settle-s", "0")
CLIENT = "worker.zygote_client"
CLOSED = ("sh", "-c", 'exec "$@" <&- >&-', "sh")


def zygote_at(path: Path, through: tuple[str, ...] = ()) -> WorkerProcess:
    """Start a zygote; of its two ``--listen`` the last one counts."""
    return WorkerProcess("--listen", str(path), "--engine", "deterministic", module="worker.zygote", through=through)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "z"


@pytest.fixture
def zygote(path: Path) -> Iterator[WorkerProcess]:
    with zygote_at(path) as process:
        process.event("zygote.listening")
        yield process


def forked(path: Path, *flags: str, through: tuple[str, ...] = ()) -> WorkerProcess:
    return WorkerProcess("--zygote", str(path), *flags, module=CLIENT, through=through)


def soon(check: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_forked_worker_serves_and_drains_as_any_other(zygote: WorkerProcess, path: Path) -> None:
    with forked(path, *ECHO) as worker:
        pid = worker.event("worker.started")["pid"]
        assert pid not in (worker.process.pid, zygote.process.pid)
        assert zygote.event("zygote.forked")["worker"] == pid
        worker.listening()
        worker.warm("m")
        status, answer, _ = worker.ask("/v2/models/m/infer", echo_body(7.0))
        assert (status, answer["outputs"][0]["data"]) == (200, [7.0])
        assert os.getsid(pid) == os.getpgid(pid) == pid, "a group of its own: a terminal's Ctrl-C is the stand-in's"
        assert Path(f"/proc/{pid}/cwd").readlink() == Path.cwd()
        descriptors = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
        assert not any(name.startswith("pidfd") or "pidfd" in name for name in descriptors)
        worker.terminate()
        assert worker.wait() == 0
        worker.event("worker.stopped")
        assert zygote.event("zygote.worker_ended", worker=pid)["code"] == 0
        assert not alive(pid), "reaped"


def test_it_inherits_from_its_stand_in_not_from_the_zygote(zygote: WorkerProcess, path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        "import os, resource, sys; os.chdir(sys.argv[2]); os.umask(0o27); os.environ['WANTED'] = 'yes'\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (123, 1000))\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "os.execv(sys.executable, [sys.executable, '-P', '-m', 'worker.zygote_client', '--zygote', sys.argv[1],"
        " '--engine', 'deterministic', '--model', 'm', '--settle-s', '0'])\n"
    )
    with (
        told.open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(tmp_path)],
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as client,
    ):
        pid = zygote.event("zygote.forked")["worker"]
        soon(lambda: "worker.listening" in told.read_text())
        status = Path(f"/proc/{pid}/status").read_text()
        assert "Umask:\t0027" in status
        assert f"Cpus_allowed_list:\t{min(os.sched_getaffinity(0))}\n" in status
        assert "Max open files            123                  1000" in Path(f"/proc/{pid}/limits").read_text()
        assert Path(f"/proc/{pid}/cwd").readlink() == tmp_path
        assert Path(f"/proc/{pid}/fd/2").readlink() == told
        client.terminate()
        assert client.wait(20) == 0


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [(("--queue", "x"), 2, "argument --queue"), (("--models", "/nonexistent"), 2, "/nonexistent: not a directory")],
)
def test_what_cannot_start_ends_as_any_other(
    zygote: WorkerProcess, path: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", CLIENT, "--zygote", str(path), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code
    assert said in done.stderr
    zygote.event("zygote.worker_ended", code=code)


def test_one_that_is_killed_ends_its_stand_in_by_the_same_signal(zygote: WorkerProcess, path: Path) -> None:
    with forked(path, *ECHO) as worker:
        os.kill(worker.event("worker.started")["pid"], signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    with forked(path, *ECHO) as worker:
        os.kill(worker.event("worker.started")["pid"], signal.SIGSEGV)
        assert worker.wait() == -signal.SIGSEGV


def test_it_drains_when_its_stand_in_is_killed(zygote: WorkerProcess, path: Path) -> None:
    with forked(path, *ECHO, "--service-ms", "300", "--settle-s", "0.5") as worker:
        pid = worker.event("worker.started")["pid"]
        worker.listening()
        worker.warm("m")
        worker.process.kill()
        worker.event("worker.draining")
        assert worker.ask("/v2/models/m/infer", echo_body())[0] == 200, "one signal, so the drain is not cut"
        worker.event("worker.stopped")
        assert zygote.event("zygote.worker_ended", worker=pid)["code"] == 0


def test_it_drains_when_its_stand_ins_parent_is_killed(zygote: WorkerProcess, path: Path, tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-P', '-m', 'worker.zygote_client', '--zygote', sys.argv[1], '--engine',"
        " 'deterministic', '--model', 'm', '--settle-s', '0', '--parent-pid', str(os.getpid())],"
        " stderr=open(sys.argv[2], 'w'))\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", code, str(path), str(log)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        soon(lambda: "model.warm" in log.read_text())
        parent.kill()
    soon(lambda: "worker.stopped" in log.read_text())
    assert zygote.event("zygote.worker_ended")["code"] == 0


def test_workers_outlive_a_zygote_that_is_killed(zygote: WorkerProcess, path: Path) -> None:
    with forked(path, *ECHO) as worker:
        pid = worker.event("worker.started")["pid"]
        worker.listening()
        worker.warm("m")
        zygote.process.kill()
        zygote.wait()
        assert worker.ask("/v2/models/m/infer", echo_body())[0] == 200
        worker.terminate()
        worker.event("worker.stopped")
        assert worker.wait() == 1, "its exit code nobody knows"
        soon(lambda: not alive(pid))
    with forked(path, *ECHO) as worker:
        assert worker.event("zygote.unavailable")["reason"] == f"{path}: [Errno 111] Connection refused"
        worker.listening()
        assert worker.event("worker.started")["pid"] == worker.process.pid, "it became the worker itself"
        worker.terminate()
        assert worker.wait() == 0


def test_a_zygote_that_is_told_to_stop_waits_for_its_workers(zygote: WorkerProcess, path: Path) -> None:
    with forked(path, *ECHO) as worker:
        worker.listening()
        zygote.terminate()
        soon(lambda: not path.exists())
        assert worker.ask("/v2/health/live")[0] == 200
        worker.terminate()
        assert worker.wait() == 0
    assert zygote.wait() == 0
    zygote.event("zygote.stopped")


def test_only_one_listens_and_a_dead_ones_socket_is_taken_over(path: Path) -> None:
    with zygote_at(path) as first:
        first.event("zygote.listening")
        assert oct(path.stat().st_mode & 0o777) == "0o600"
        with zygote_at(path) as second:
            error = second.event("zygote.failed")["error"]
            assert error == f"--listen {path}: Address already in use; another zygote listens there"
            assert second.wait() == 2
        first.process.kill()
    with zygote_at(path) as third:
        third.event("zygote.listening")


def test_without_standard_input_and_output_they_are_as_ever(path: Path) -> None:
    with zygote_at(path, CLOSED) as zygote:
        zygote.event("zygote.listening")
        for through in (CLOSED, ()):
            with forked(path, *ECHO, through=through) as worker:
                pid = worker.event("worker.started")["pid"]
                assert zygote.event("zygote.forked", worker=pid)
                worker.listening()
                worker.warm("m")
                assert worker.ask("/v2/models/m/infer", echo_body(7.0))[0] == 200
                for descriptor in (0, 1) if through else (0,):
                    assert Path(f"/proc/{pid}/fd/{descriptor}").readlink() == Path(os.devnull)
                worker.process.kill()
                zygote.event("zygote.worker_ended", worker=pid)  # the pipe that it would hear of that by is no stream's


def test_nonsense_is_refused_and_changes_nothing(zygote: WorkerProcess, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as wrong:
        silent.connect(str(path))
        wrong.connect(str(path))
        wrong.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert wrong.recv(100) == b"refused not a request to a zygote of this version\n"
    assert zygote.event("zygote.refused")["reason"] == "not a request to a zygote of this version"
    with forked(path, *ECHO) as worker:
        worker.listening()
        worker.terminate()
        assert worker.wait() == 0
