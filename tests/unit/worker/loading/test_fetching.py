"""A version that names a source: fetched, gone on from after a failure, compared, put in its place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fetch_rig import BIG, CONTENT, HALVES, WEIGHTS, Rig, sums
from tests.support.file_store import FileStore
from worker.conditions import size_bytes
from worker.engines import Cancellation, GivenUpError
from worker.loading import HashedFrom, LoadError, StrategyName
from worker.loading.digests import BLOCK_BYTES
from worker.loading.model_loader import ModelLoader
from worker.stages import Stage, Stages
from worker.store import ModelFiles, scan


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with FileStore({}) as store:
        yield Rig(tmp_path, store)


def test_what_has_come_is_told_of_before_it_is_brought_in(rig: Rig) -> None:
    rig.put(CONTENT)
    told: list[int] = []

    def no_memory(files: ModelFiles, cancellation: Cancellation) -> None:
        assert cancellation is rig.cancellation
        told.append(size_bytes(files))
        raise LoadError("there was no memory for it")

    with pytest.raises(LoadError, match="there was no memory for it"):
        rig.load(on_fetched=no_memory)
    assert told[0] >= sum(map(len, CONTENT.values()))
    assert rig.here() == CONTENT
    rig.load(on_fetched=no_memory)
    assert len(told) == 1, "it was here"


def test_a_version_is_fetched_hashed_and_loaded_and_then_it_is_here(rig: Rig, tmp_path: Path) -> None:
    rig.put(BIG)
    loaded = rig.load()
    assert rig.here() == BIG
    total = sum(map(len, BIG.values()))
    assert (loaded.strategy, loaded.bytes_fetched) == (StrategyName.STREAM, total)
    assert rig.seen[:2] == [(0, total), (5, total)]
    assert (total, total) in rig.seen
    assert rig.stages.seconds()[Stage.FETCH] > 0
    assert sorted(rig.store.bodies("m/1/weights/a b")) == sorted(HALVES)
    assert rig.log.events("model.fetched")[0]["source"] == f"{rig.store.url}/m/1"
    assert not (rig.directory / ".incoming").exists()
    plain = tmp_path / "plain"
    for name, data in BIG.items():
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_bytes(data)
    by_hand = ModelLoader().load(ModelFiles("m", "1", plain), lambda *_: None, Cancellation(), Stages())
    assert by_hand.content_hash == loaded.content_hash
    asked = len(rig.store.seen)
    again = rig.load()
    assert (again.bytes_fetched, again.content_hash, len(rig.store.seen)) == (0, loaded.content_hash, asked)


def test_a_connection_that_breaks_is_tried_again(rig: Rig) -> None:
    rig.put(BIG)
    rig.store.cut_after, rig.store.cuts = 100_000, 3
    assert rig.load().hashed_from is HashedFrom.CACHE, "what was hashed as it came is not read again"
    assert rig.here() == BIG


def test_a_fetch_that_failed_goes_on_from_there(rig: Rig) -> None:
    rig.put(BIG)
    rig.store.cut_after = 5 << 20  # so that whole blocks never come, but the last and the small files do
    text = rig.refusal()
    assert text.startswith(f"{rig.where}weights/a b: ")
    assert f"{5 << 20} of {BLOCK_BYTES} bytes from " in text
    assert not (rig.directory / "model.onnx").exists()
    assert (rig.directory / ".incoming").is_dir()
    rig.store.cut_after = None
    rig.store.seen.clear()
    loaded = rig.load()
    assert sorted(rig.store.bodies("m/1/weights/a b")) in (sorted(HALVES[:1]), sorted(HALVES))
    assert rig.here() == BIG
    assert loaded.bytes_fetched < sum(map(len, BIG.values()))


def test_what_became_another_meanwhile_is_fetched_anew(rig: Rig) -> None:
    rig.put(BIG)
    rig.store.cut_after = 5 << 20
    rig.refusal()
    rig.store.cut_after = None
    other = {**BIG, "weights/a b": bytes(len(WEIGHTS))}
    rig.put(other)
    rig.load()
    assert {name: (rig.directory / name).read_bytes() for name in other} == other


def test_what_becomes_another_on_the_way_is_refused(rig: Rig) -> None:
    def progress(done: int, _: int) -> None:
        if done:
            rig.put({**BIG, "weights/a b": bytes(len(WEIGHTS))})

    rig.put(BIG)
    rig.store.cut_after, rig.store.cuts = 5 << 20, 2
    with pytest.raises(LoadError) as caught:
        rig.load(progress)
    text = str(caught.value)
    assert "weights/a b: is another one by now" in text or "its SHA-256 is" in text


def test_what_does_not_fit_its_sums_is_refused(rig: Rig) -> None:
    rig.put({**CONTENT, "model.onnx": b"another"}, said=CONTENT)
    assert rig.refusal() == (
        f"{rig.directory}/model.onnx: its SHA-256 is {hashlib.sha256(b'another').hexdigest()}, as it came from "
        f"{rig.store.url}/m/1, and {rig.store.url}/m/1/SHA256SUMS says {hashlib.sha256(b'graph').hexdigest()}; it was "
        f"thrown away, and the next load fetches it again"
    )
    assert sorted(path.name for path in rig.directory.iterdir()) == [".incoming", "model.yaml"]


def test_what_was_damaged_there_is_fetched_again_once_it_is_repaired(rig: Rig) -> None:
    rig.put({**BIG, "model.onnx": b"grapx"}, said=BIG)
    rig.refusal()
    rig.put(BIG)
    rig.store.seen.clear()
    rig.load()
    assert rig.here() == BIG
    assert rig.store.bodies("m/1/weights/a b") == [], "what was whole is not fetched again"


def test_sums_that_were_wrong_there_are_asked_for_again(rig: Rig) -> None:
    rig.put(CONTENT, said={**CONTENT, "model.onnx": b"another"})
    rig.refusal()
    rig.put(CONTENT)
    assert rig.load().bytes_fetched > 0
    assert rig.here() == CONTENT


@pytest.mark.parametrize("name", ["model.onnx", "weights/a b"])
def test_what_was_fetched_and_is_damaged_since_is_fetched_again(rig: Rig, name: str) -> None:
    rig.load()
    (rig.directory / name).write_bytes(b"damaged")
    assert rig.refusal().endswith("; it was removed, and the next load fetches it again")
    rig.load()
    assert rig.here() == CONTENT


def test_what_is_damaged_and_comes_from_nowhere_else_stays(rig: Rig) -> None:
    rig.load()
    (rig.directory / "model.yaml").write_text("{}")
    (rig.directory / "weights/a b").write_bytes(b"damaged")
    assert rig.refusal().endswith("; bring the file again, or correct what is said of it")
    assert (rig.directory / "weights/a b").read_bytes() == b"damaged"


def test_sums_that_are_written_down_here_come_first(rig: Rig) -> None:
    (rig.directory / "SHA256SUMS").write_bytes(sums({"model.onnx": b"graph"}))
    assert rig.load().bytes_fetched == 5
    assert not (rig.directory / "weights").exists()
    assert ("GET", "m/1/SHA256SUMS", "") not in rig.store.seen


def test_a_full_disk_is_said_before_anything_is_fetched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put(BIG)

    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full())
    total = sum(map(len, BIG.values()))
    assert rig.refusal() == (
        f"{rig.directory}: cannot be fetched: it has {total} bytes, and the file system has 4096 left"
    )
    assert rig.store.bodies("m/1/model.onnx") == []


def test_it_can_be_given_up(rig: Rig) -> None:
    with pytest.raises(GivenUpError):
        rig.load(lambda *_: rig.cancellation.cancel())


def test_the_models_file_comes_last_and_tells_that_all_is_there(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put({**CONTENT, "model.onnx.data": b"weights"})
    rename, moved = Path.rename, []

    def note(self: Path, target: Path) -> Path:
        moved.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", note)
    rig.load()
    assert moved[-1] == "model.onnx"
    asked = len(rig.store.seen)
    (rig.directory / ".incoming").mkdir()
    rig.load()
    assert len(rig.store.seen) == asked, "what a crash left between the last move and the end is no reason to ask"


def test_a_packed_model_is_fetched_and_unpacked(rig: Rig) -> None:
    import gzip

    rig.put({"model.onnx.gz": gzip.compress(b"graph")})
    loaded = rig.load()
    assert loaded.bytes_total == 5
    asked = len(rig.store.seen)
    rig.load()
    assert len(rig.store.seen) == asked


def test_what_the_worker_brings_itself_is_no_change_of_the_repository(rig: Rig) -> None:
    def signature() -> str:
        (files,) = scan(rig.directory.parents[1], ("m",), "model.onnx")
        return files.signature

    before = signature()
    rig.load()
    assert signature() == before
    rig.describe(f"{rig.store.url}/m/2")
    assert signature() != before
