from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading.prefetch import prefetcher
from worker.memory import Memory
from worker.sharding.__main__ import main
from worker.store import ModelFiles


def version(tmp_path: Path) -> ModelFiles:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "model.onnx").write_bytes(b"0123456789")
    return ModelFiles("m", "1", tmp_path / "v")


def test_what_is_read_ahead_is_told(tmp_path: Path) -> None:
    log = ReadableLog()
    prefetcher(log, lambda: None)(version(tmp_path), Cancellation())
    prefetcher(log, lambda: None)(ModelFiles("none", "1"), Cancellation())
    (event,) = log.events("model.prefetched")
    assert (event["model"], event["version"], event["bytes"]) == ("m", "1", 10)


def test_what_memory_has_no_room_for_is_left(tmp_path: Path) -> None:
    log = ReadableLog()
    files = version(tmp_path)
    prefetcher(log, lambda: Memory(12, 100))(files, Cancellation())
    assert log.events("model.not_prefetched")[0]["error"] == "10 bytes are more than 80% of the 12 that are free"
    (tmp_path / "v" / "model.onnx").unlink()
    (tmp_path / "v").rmdir()
    prefetcher(log, lambda: None)(files, Cancellation())
    assert log.events("model.not_prefetched")[1]["error"] == f"{tmp_path}/v: No such file or directory"
    assert log.events("model.prefetched") == []


def test_a_drain_ends_it(tmp_path: Path) -> None:
    log = ReadableLog()
    cancellation = Cancellation()
    cancellation.cancel()
    prefetcher(log, lambda: None)(version(tmp_path), cancellation)
    assert log.events() == []


def test_the_command_reads_and_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version(tmp_path)
    (tmp_path / "shm").mkdir()
    assert main(["prefetch", str(tmp_path / "v"), "--shm-dir", str(tmp_path / "shm")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path}/v: 10 bytes in ")
    assert len(said.split()[-1]) == 32
    assert main(["prefetch", str(tmp_path / "none"), "--shm-dir", str(tmp_path / "shm")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/none: No such file or directory\n"


@pytest.mark.parametrize("place", ["v", "./v", "../here/v"])
def test_the_command_takes_a_relative_path(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    version(tmp_path / "here")
    (tmp_path / "shm").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["prefetch", place, "--shm-dir", str(tmp_path / "shm")]) == 0
    relative = capsys.readouterr().out
    assert main(["prefetch", str(tmp_path / "here" / "v"), "--shm-dir", str(tmp_path / "shm")]) == 0
    assert ": 10 bytes in " in relative
    assert relative.split()[-1] == capsys.readouterr().out.split()[-1]
