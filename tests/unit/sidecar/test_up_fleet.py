from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sidecar.up.fleet import OUTPUT, LogTail, SidecarView, WorkerView
from sidecar.up.run import find_models
from sidecar.up.show import Show

LIFE: list[dict[str, Any]] = [
    {"event": "worker.listening", "address": "http://127.0.0.1:40001"},
    {"event": "model.state", "model": "magika", "from": "cold", "to": "loading", "reason": ""},
    {"event": "model.loading", "model": "magika", "bytes_read": 1000, "bytes_total": 4000},
    {"event": "model.loading", "model": "magika", "bytes_read": 4000, "bytes_total": 4000},
    {"event": "model.state", "model": "magika", "from": "loading", "to": "warming", "reason": ""},
    {"event": "model.state", "model": "magika", "from": "warming", "to": "warm", "reason": ""},
    {"event": "model.warm", "model": "magika", "seconds": 0.125},
]


def test_a_worker_s_life_is_read_from_its_events() -> None:
    view = WorkerView("worker-1")
    seen = [view.summary()]
    for event in LIFE:
        view.apply(event)
        seen.append(view.summary())
    assert seen == [
        "starting",
        "starting",
        "loading magika",
        "loading magika",
        "loading magika",
        "warming magika",
        "warm magika",
        "warm magika after 0.12 s",
    ]
    assert view.loaded == (4000, 4000)
    assert view.warm(("magika",))
    assert not view.warm(("magika", "other"))


def test_a_worker_that_died_begins_again() -> None:
    view = WorkerView("worker-1")
    for event in LIFE:
        view.apply(event)
    view.reset()
    assert view.summary() == "starting"
    assert not view.warm(("magika",))
    assert view.loaded == (0, 0)


def test_warm_without_an_address_is_not_enough() -> None:
    view = WorkerView("worker-1")
    view.apply({"event": "model.state", "model": "m", "to": "warm"})
    assert not view.warm(("m",))


def test_the_sidecar_s_addresses_and_processes() -> None:
    view = SidecarView()
    for event in (
        {"event": "listener.open", "address": "127.0.0.1:8080"},
        {"event": "admin.open", "address": "unix:/run/admin.sock"},
        {"event": "admin.open", "address": "127.0.0.1:9901"},
        {"event": "process.started", "name": "control", "pid": 10},
        {"event": "process.started", "name": "data-0", "pid": 11},
        {"event": "process.started", "name": "data-0", "pid": 12},
        {"event": "route.changed"},
    ):
        view.apply(event)
    assert (view.listen, view.admin, view.control_pid, view.data_pids) == (
        "127.0.0.1:8080",
        "127.0.0.1:9901",
        10,
        {"data-0": 12},
    )


def test_a_log_is_read_line_by_line_however_it_is_written(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "worker.log")
    try:
        assert tail.read() == []
        os.write(tail.fd, b'{"event":"a.b","n":1}\n{"event":')
        assert tail.read() == [{"event": "a.b", "n": 1}]
        os.write(tail.fd, b'"c.d"}\nTraceback (most recent call last):\n[1, 2]\n\n{"no": "event"}\n\xff\n')
        events = tail.read()
        assert events[0] == {"event": "c.d"}
        assert [event["event"] for event in events[1:]] == [OUTPUT] * 4
        assert [event["text"] for event in events[1:]] == [
            "Traceback (most recent call last):",
            "[1, 2]",
            '{"no": "event"}',
            "\ufffd",
        ]
        assert tail.read() == []
    finally:
        tail.close()


def test_a_long_log_gives_back_what_was_read_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    tail = LogTail(path)
    line = json.dumps({"event": "x", "pad": "y" * 1000}).encode() + b"\n"
    written = read = 0
    try:
        for _ in range(6):
            written += 1024
            os.write(tail.fd, line * 1024)
            while batch := tail.read():
                read += len(batch)
        assert read == written
        assert path.stat().st_blocks * 512 < 5 << 20
        os.write(tail.fd, b'{"event":"last"}\n')
        assert tail.read() == [{"event": "last"}]
    finally:
        tail.close()


def test_what_is_written_while_it_looks_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = LogTail(tmp_path / "worker.log")
    line = json.dumps({"event": "x", "pad": "y" * 1000}).encode() + b"\n"
    look, written, late = os.pread, 0, 0

    def look_and_be_late(fd: int, count: int, offset: int) -> bytes:
        """Do as os.pread, and have the process write a line right after."""
        nonlocal late
        data = look(fd, count, offset)
        if late < 30:
            late += 1
            os.write(tail.fd, b'{"event":"late"}\n')
        return data

    monkeypatch.setattr(os, "pread", look_and_be_late)
    try:
        os.write(tail.fd, line * 10_000)
        written = 10_000
        seen = []
        while batch := tail.read():
            seen += [event["event"] for event in batch]
        assert (seen.count("x"), seen.count("late")) == (written, 30)
    finally:
        tail.close()


def test_the_log_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    LogTail(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_models_are_directories_with_a_numbered_version(tmp_path: Path) -> None:
    for path in ("magika/1", "iris/12", "notes/old", ".hidden"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "README").write_text("")
    assert find_models(tmp_path) == ("iris", "magika")
    assert find_models(tmp_path / "absent") == ()


def shown(*, terminal: bool = False) -> tuple[Show, io.StringIO]:
    out = io.StringIO()
    return Show(Console(file=out, force_terminal=terminal, width=40, highlight=False)), out


def test_plain_lines_come_only_when_something_changed() -> None:
    show, out = shown()
    view = WorkerView("worker-1")
    for event in LIFE:
        view.apply(event)
        show.workers([view])
        show.workers([view])
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "worker-1   starting",
        "worker-1   loading magika",
        "worker-1   loading magika 25 % of 0.0 MB",
        "worker-1   loading magika 100 % of 0.0 MB",
        "worker-1   warming magika",
        "worker-1   warm magika",
        "worker-1   warm magika after 0.12 s",
    ]


def test_a_terminal_gets_bars_and_lines_that_can_be_copied() -> None:
    show, out = shown(terminal=True)
    view = WorkerView("worker-1")
    for event in LIFE:
        view.apply(event)
    show.workers([view])
    show.settle()
    show.line("curl " + "x" * 100, "cyan")
    assert "worker-1" in out.getvalue()
    assert "curl " + "x" * 100 in out.getvalue()


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"event": "process.exited", "level": "warning", "ts": "t", "name": "data-0"},
            "it: process.exited name=data-0",
        ),
        ({"event": "process.restarting", "level": "info", "delay_s": 0.1}, "it: process.restarting delay_s=0.1"),
        (
            {"event": "model.state", "model": "m", "from": "warm", "to": "failed", "reason": "why"},
            "m warm → failed (why)",
        ),
        ({"event": OUTPUT, "text": "boom"}, "it: boom"),
        ({"event": "listener.open", "level": "info"}, ""),
    ],
)
def test_only_notable_events_are_shown(event: dict[str, Any], text: str) -> None:
    show, out = shown()
    show.event("it", event)
    assert text in out.getvalue()
    assert bool(out.getvalue()) == bool(text)
