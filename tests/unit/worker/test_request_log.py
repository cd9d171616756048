"""The request log: which requests leave a line, what it says, and what becomes of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker_parts import ReadableLog
from worker.execution import Executor
from worker.models import Models
from worker.request_log import MAX_ID_CHARS, RequestLog
from worker.serving.errors import RequestError
from worker.serving.inference import Inference

KIB = 1 << 10


class Clock:
    """One that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def request_log(path: Path, events: ReadableLog, limit_bytes: int = 64 * KIB, clock: Clock | None = None) -> RequestLog:
    return RequestLog(path, limit_bytes, "w1", "e1", events, clock or Clock(), lambda: 1_796_000_000.25)


def leave(log: RequestLog, name: str, status: int = 200, **head: str) -> bool:
    note = log.begin("m", lambda field: {"x-request-id": name, **head}.get(field))
    if note is None:
        return False
    note.end(status)
    return True


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_a_line_says_who_when_and_how_long(tmp_path: Path) -> None:
    clock = Clock()
    log = request_log(tmp_path / "log", ReadableLog(), clock=clock)
    note = log.begin("m", lambda name: {"x-request-id": "a", "warmroute-attempt": "2"}.get(name))
    assert note is not None
    clock.now = 0.5
    note.version, note.queue_s, note.run_s = "3", 0.1, 0.25
    note.end(200)
    leave(log, "b", 503)
    log.close()
    assert written(tmp_path / "log") == [
        {
            "request_id": "a",
            "attempt": 2,
            "worker": "w1",
            "epoch": "e1",
            "seq": 1,
            "model": "m",
            "version": "3",
            "at": 1_796_000_000.25,
            "took_s": 0.5,
            "status": 200,
            "queue_s": 0.1,
            "run_s": 0.25,
        },
        {
            "request_id": "b",
            "attempt": 1,
            "worker": "w1",
            "epoch": "e1",
            "seq": 2,
            "model": "m",
            "version": "",
            "at": 1_796_000_000.25,
            "took_s": 0.0,
            "status": 503,
            "failed": True,
        },
    ]
    assert (tmp_path / "log").stat().st_mode & 0o137 == 0


@pytest.mark.parametrize("name", ["", "é", "\udc80", "x" * (MAX_ID_CHARS + 1)])
def test_what_cannot_be_joined_leaves_none(tmp_path: Path, name: str) -> None:
    log = request_log(tmp_path / "log", ReadableLog())
    assert not leave(log, name)
    assert log.begin("m", lambda _: None) is None
    log.close()
    assert written(tmp_path / "log") == []


@pytest.mark.parametrize("said", ["", "-1", "²", "9" * 5000, "one"])
def test_an_attempt_that_is_none_counts_as_the_first(tmp_path: Path, said: str) -> None:
    log = request_log(tmp_path / "log", ReadableLog())
    note = log.begin("\udc80" * 1000, lambda field: {"x-request-id": "a", "warmroute-attempt": said}.get(field))
    assert note is not None
    note.end(404)
    log.close()
    (line,) = written(tmp_path / "log")
    assert (line["attempt"], line["model"]) == (1, "\\udc80" * 128)


def test_a_file_of_its_size_makes_room_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 64 * KIB)
    log = request_log(path, ReadableLog())
    leave(log, "a")
    log.close()
    assert [line["request_id"] for line in written(path)] == ["a"]
    assert (tmp_path / "log.1").stat().st_size == 64 * KIB


def test_a_call_that_finds_no_room_leaves_one_too(tmp_path: Path) -> None:
    """Of gRPC: before its message is received nobody knows for which model it is."""
    log = request_log(tmp_path / "log", ReadableLog())
    executor = Executor(1, 0)
    inference = Inference(Models(), executor, requests=log)

    def head(field: str) -> str | None:
        return "a" if field == "x-request-id" else None

    with inference.receiving(head), pytest.raises(RequestError), inference.receiving(head):
        pass
    with inference.receiving(head):
        pass
    log.close()
    (line,) = written(tmp_path / "log")
    assert (line["request_id"], line["model"], line["status"]) == ("a", "", 503)


def test_workers_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * (64 * KIB - 100) + "\n")
    logs = [request_log(path, ReadableLog()) for _ in range(4)]
    for number, log in enumerate(logs * 3):
        leave(log, str(number))
    for log in logs:
        log.close()
    assert (tmp_path / "log.1").stat().st_size > 32 * KIB  # it was moved away once, and not what came after it as well
    assert sorted(int(line["request_id"]) for line in written(path)) == list(range(12))


def test_a_place_where_there_can_be_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        request_log(tmp_path / "nowhere" / "log", ReadableLog())
