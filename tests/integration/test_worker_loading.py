"""How real workers bring real models into memory, on a model with its weights in a file of its own."""

from __future__ import annotations

import gzip
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker_process import WorkerProcess
from worker.bench.synthetic import write_model


@pytest.fixture
def version(tmp_path: Path) -> Path:
    write_model(tmp_path / "models" / "s" / "1", 1_000_000)
    (tmp_path / "shm").mkdir()
    return tmp_path / "models" / "s" / "1"


def start(version: Path, *flags: str, end: int = signal.SIGTERM) -> dict[str, Any]:
    """Start a worker, and return its event model.warm once it has ended."""
    root = version.parents[2]
    with WorkerProcess("--models", str(root / "models"), "--shm-dir", str(root / "shm"), *flags) as worker:
        worker.listening()
        warm = worker.event("model.warm")
        worker.process.send_signal(end)
        worker.wait()
        return warm


def test_weights_in_shared_memory_outlive_the_worker_however_it_ends(version: Path) -> None:
    flags = ("--shm", "--id", "w1", "--settle-s", "0")
    first = start(version, *flags, end=signal.SIGKILL)
    second = start(version, *flags)
    (version / "model.onnx").rename(version / "model.old")
    (version / "model.old").rename(version / "model.onnx")  # which changes its ctime, so that it counts as another
    third = start(version, *flags)
    assert [one["strategy"] for one in (first, second, third)] == ["copied", "shm", "copied"]
    assert [one["bytes_read"] > 0 for one in (first, second, third)] == [True, False, True]
    assert second["stages"].get("page_in", 0.0) == 0.0


def test_a_relative_repository_is_hashed_and_brought_in_as_any_other(version: Path) -> None:
    root = version.parents[2]
    flags = ("--shm-dir", str(root / "shm"), "--settle-s", "0")
    relative = os.path.relpath(root / "models")
    with WorkerProcess("--models", relative, *flags) as worker:
        near = worker.event("model.warm")
    far = start(version, "--settle-s", "0")
    assert near["bytes_total"] == far["bytes_total"] == sum(path.stat().st_size for path in version.iterdir())
    assert near["hashed_from"] != "nothing"
    (version / "SHA256SUMS").write_text(f"{'0' * 64}  model.onnx\n")
    with WorkerProcess("--models", relative, *flags) as worker:
        assert "its SHA-256 is" in worker.event("model.state", to="failed")["reason"]


def test_what_is_wrong_with_a_copy_in_shared_memory_is_said_of_the_repositorys_file(version: Path) -> None:
    (version / "model.onnx").write_bytes(b"no graph")
    root = version.parents[2]
    with WorkerProcess(
        "--models", str(root / "models"), "--shm-dir", str(root / "shm"), "--shm", "--id", "w"
    ) as worker:
        reason = worker.event("model.state", to="failed")["reason"]
    assert reason.startswith(f"{version}/model.onnx: ")
    assert str(root / "shm") not in reason


def test_packed_models_are_served(version: Path) -> None:
    plain = start(version)
    for path in list(version.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    packed = start(version)
    assert (plain["strategy"], packed["strategy"]) == ("full", "unpacked")
    assert packed["stages"]["decompress"] > 0
    assert packed["bytes_total"] == plain["bytes_total"]
    left = [path.name for path in (version.parents[2] / "shm").glob("warmroute-*/weights/*")]
    assert left == []


def test_models_that_wait_for_a_request_are_read_ahead(version: Path) -> None:
    root = version.parents[2]
    flags = ("--models", str(root / "models"), "--shm-dir", str(root / "shm"), "--lazy", "--prefetch")
    with WorkerProcess(*flags) as worker:
        event = worker.event("model.prefetched", model="s", version="1")
        assert event["bytes"] == sum(path.stat().st_size for path in version.iterdir())
        assert not any(event["event"] == "model.warm" for event in worker.events)


def test_a_worker_takes_a_model_from_a_warm_one_and_from_its_successor(version: Path, tmp_path: Path) -> None:
    root = version.parents[2]
    has = ("--models", str(root / "models"), "--shm-dir", str(root / "shm"), "--peer-listen", "127.0.0.1:0")
    empty = tmp_path / "empty" / "s" / "1"
    empty.mkdir(parents=True)
    (empty / "model.yaml").write_text("load: {source: peers}\n")
    with WorkerProcess(*has) as gone, WorkerProcess(*has) as there:
        gone.event("model.warm")
        there.event("model.warm")
        peers = [worker.event("peers.listening")["address"] for worker in (gone, there)]
        gone.process.kill()
        gone.wait()
        with WorkerProcess("--models", str(tmp_path / "empty"), "--peers", ",".join(peers)) as worker:
            warm = worker.event("model.warm")
            ours, theirs = warm["bytes_fetched"], there.event("model.warm")["bytes_total"]
            assert (warm["strategy"], ours) == ("stream", theirs)
            assert worker.event("model.fetched")["bytes"] == theirs
