"""Workers that take turns at one address: loaded before they are needed, and there when the one before them is gone."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar_process import free_port
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess

BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}


class Line:
    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.port = free_port()
        self.flags = ["--listen", f"127.0.0.1:{self.port}", "--standby", "--shm-dir", str(place)]
        self.flags += ["--model", "m", "--engine", "deterministic", "--settle-s", "0"]
        self._stack = stack

    def begin(self, *flags: str) -> WorkerProcess:
        return self._stack.enter_context(WorkerProcess(*self.flags, *flags))

    def join(self, *flags: str) -> WorkerProcess:
        worker = self.begin(*flags)
        worker.warm("m")
        return worker


def answered_by(worker: WorkerProcess) -> Any:
    try:
        status, _, headers = worker.ask("/v2/models/m/infer", BODY)
    except OSError:
        return None
    return headers["warmroute-worker"] if status == 200 else None


def test_the_next_in_line_is_loaded_and_takes_over_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        line = Line(tmp_path, stack)
        first = line.join("--id", "first")
        first.listening()
        second = line.join("--id", "second")
        second.event("worker.stands_by")
        third = line.join("--id", "third")
        assert answered_by(first) == "first"
        first.process.kill()
        killed = time.monotonic()
        second.address = third.address = first.address
        until(lambda: answered_by(second) == "second", "the next one answers")
        assert time.monotonic() - killed < 1.0  # it starts nothing: this is how long a test's own machine may be busy
        assert len([one for one in second.events if one["event"] == "model.warm"]) == 1
        second.terminate()
        until(lambda: answered_by(third) == "third", "the third answers")
        assert second.wait() == 0


def test_one_that_still_loads_does_not_stand_by_and_takes_over_all_the_same(tmp_path: Path) -> None:
    with ExitStack() as stack:
        line = Line(tmp_path, stack)
        first = line.join()
        first.listening()
        loaded = line.begin("--load-s", "0.3")
        assert loaded.event("worker.stands_by")["warm"] == ["m@1"]
        names = [one["event"] for one in loaded.events]
        assert "model.warm" in names[: names.index("worker.stands_by")]
        loaded.terminate()
        assert loaded.wait() == 0
        slow = line.begin("--load-s", "60")
        slow.event("model.state", to="loading")
        first.process.kill()
        slow.event("worker.takes_over")
        slow.listening()
        assert slow.ask("/v2/health/ready")[0] == 503
        assert "worker.stands_by" not in {one["event"] for one in slow.events}


def test_one_that_stands_by_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with ExitStack() as stack:
        line = Line(tmp_path, stack)
        first = line.join()
        first.listening()
        second = line.join()
        second.event("worker.stands_by")
        second.terminate()
        assert second.wait() == 0
        assert answered_by(first) is not None


def test_what_is_served_is_handed_over_before_a_drain_ends(tmp_path: Path) -> None:
    with ExitStack() as stack:
        line = Line(tmp_path, stack)
        first = line.join("--id", "first", "--service-ms", "8000")  # longer than a busy machine takes to hand over
        first.listening()
        second = line.join("--id", "second")
        second.event("worker.stands_by")
        second.address = first.address
        slow: list[Any] = []
        asking = threading.Thread(target=lambda: slow.append(answered_by(first)))
        asking.start()
        until(lambda: first.ask("/stats")[1]["in_flight"] == 1, "it runs")
        first.terminate()
        second.event("worker.takes_over")  # who asks before that may still get the first one, and its 8 s
        until(lambda: answered_by(second) == "second", "the next one answers")
        assert first.process.poll() is None
        asking.join()
        assert slow == ["first"]
        assert first.wait() == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--listen", "127.0.0.1:0"], "name it with --listen HOST:PORT"),
        (["--listen", "127.0.0.1:9", "--grpc-listen", "127.0.0.1:0"], "not with --grpc-listen"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(flags: list[str], text: str) -> None:
    with WorkerProcess(*flags, "--standby", "--model", "m", "--engine", "deterministic") as worker:
        assert worker.wait() == 2
        worker._reader.join(5)
        said = []
        while (line := worker._lines.get_nowait()) is not None:
            said.append(line)
        assert text in "".join(said)
