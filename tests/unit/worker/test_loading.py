from __future__ import annotations

from pathlib import Path

import pytest

from worker.engines import Cancellation, GivenUpError
from worker.loading import LoadError
from worker.loading.page_cache import PageCacheLoader
from worker.stages import Stage, Stages
from worker.store import ModelFiles


def version(root: Path, content: bytes = b"0123456789", extra: bytes = b"abc") -> ModelFiles:
    root.mkdir(parents=True)
    (root / "model.onnx").write_bytes(content)
    (root / "weights").mkdir()
    (root / "weights" / "part").write_bytes(extra)
    return ModelFiles("m", "1", root, root / "model.onnx")


def load_hash(files: ModelFiles, chunk_bytes: int = 4) -> str:
    return PageCacheLoader(chunk_bytes).load(files, lambda *_: None, Cancellation(), Stages()).content_hash


def test_progress_goes_from_nothing_to_everything(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    stages = Stages()
    loaded = PageCacheLoader(4).load(version(tmp_path / "v"), lambda *step: seen.append(step), Cancellation(), stages)
    assert list(stages.seconds()) == [Stage.OPEN, Stage.PAGE_IN, Stage.CHECKSUM]
    assert seen == [(0, 13), (4, 13), (8, 13), (10, 13), (13, 13)]
    assert loaded.bytes_read == 13


def test_the_hash_is_that_of_names_and_content_whatever_the_path_or_chunk(tmp_path: Path) -> None:
    first = load_hash(version(tmp_path / "a"))
    assert len(first) == 32
    assert load_hash(version(tmp_path / "b"), chunk_bytes=1000) == first
    assert load_hash(version(tmp_path / "c", content=b"0123456780")) != first
    assert load_hash(version(tmp_path / "d", content=b"0123456789a", extra=b"bc")) != first


def test_it_can_be_given_up_between_chunks(tmp_path: Path) -> None:
    cancellation = Cancellation()
    seen: list[int] = []

    def progress(done: int, _: int) -> None:
        seen.append(done)
        if done == 4:
            cancellation.cancel()

    with pytest.raises(GivenUpError):
        PageCacheLoader(4).load(version(tmp_path / "v"), progress, cancellation, Stages())
    assert seen == [0, 4]


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    files = version(tmp_path / "v")

    def progress(done: int, _: int) -> None:
        if done == 4:
            (tmp_path / "v" / "weights" / "part").unlink()

    with pytest.raises(LoadError) as caught:
        PageCacheLoader(4).load(files, progress, Cancellation(), Stages())
    assert str(caught.value) == f"{tmp_path}/v/weights/part: No such file or directory"


def test_nothing_on_disk_is_nothing_to_do() -> None:
    loaded = PageCacheLoader().load(ModelFiles("m", "1"), lambda *_: None, Cancellation(), Stages())
    assert (loaded.content_hash, loaded.bytes_read) == ("", 0)
