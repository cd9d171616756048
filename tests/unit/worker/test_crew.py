from __future__ import annotations

import _thread
import threading
from pathlib import Path

import pytest

from worker.crew import Crew
from worker.engines import Cancellation
from worker.loading import reading
from worker.loading.reading import BlockReader, Wanted
from worker.loading.version_files import version_files


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def never_begins(*_: object) -> int:
    """As a thread that finds no memory for its first step."""
    return 1


def cannot_start(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def test_all_that_began_are_waited_for() -> None:
    crew, go, done = Crew(), threading.Event(), []

    def work() -> None:
        assert go.wait(10)
        done.append(1)

    crew.start(work)
    crew.start(work)
    assert not crew.wait(0)
    go.set()
    assert crew.wait(10)
    assert crew.is_over
    assert done == [1, 1]
    assert crew.end(0)


def test_one_that_finds_no_memory_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        raise MemoryError

    crew = Crew()
    monkeypatch.setattr(_thread, "start_new_thread", lambda run, args: run(*args))
    crew.start(work)
    assert crew.is_over
    assert crew.end(0)


def test_one_that_never_begins_is_not_waited_for_and_does_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, late = Clock(), []
    crew = Crew(clock)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", lambda run, args: late.append((run, args)))
        crew.start(lambda: late.clear())
    over = [crew.is_over]  # it may be coming yet
    clock.now = 1.5
    over.append(crew.is_over)
    assert over == [False, True]
    assert crew.end(0)
    run, args = late[0]
    run(*args)
    assert late, "what it was for has ended"
    monkeypatch.setattr(_thread, "start_new_thread", cannot_start)
    with pytest.raises(MemoryError, match="can't start new thread"):
        Crew().start(lambda: None)


@pytest.mark.parametrize("lacks", ["begin", "start", "buffer"])
def test_a_load_without_memory_for_its_threads_fails(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w").write_bytes(b"x" * 100)
    files = version_files(tmp_path)
    buffer_bytes = 1 << 60 if lacks == "buffer" else 4096
    if lacks != "buffer":
        monkeypatch.setattr(_thread, "start_new_thread", never_begins if lacks == "begin" else cannot_start)
        monkeypatch.setattr(reading, "Crew", lambda: Crew(iter(range(0, 100, 2)).__next__))

    def load() -> None:
        with BlockReader(Wanted(), 2, buffer_bytes=buffer_bytes) as reader:
            reader.read_all(files)
            reader.finish(Cancellation())

    with pytest.raises(MemoryError):
        load()
