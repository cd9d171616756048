from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation, GivenUpError
from worker.loading import HashedFrom, Loaded, LoadError, StrategyName, Verify
from worker.loading.chunked import Chunked
from worker.loading.digests import BLOCK_BYTES
from worker.loading.hash_cache import HashCache
from worker.loading.mapped import Populate
from worker.loading.mapping import Mapping, cached_ratio
from worker.loading.model_loader import STRATEGIES, ModelLoader
from worker.loading.reading import Wanted
from worker.loading.settings import LoadDescription
from worker.loading.task import LoadTask
from worker.loading.version_files import version_files
from worker.stages import Stage, Stages
from worker.store import ModelFiles

NAMES = sorted(STRATEGIES)
OTHER_BYTES = os.urandom(1 << 20)


@pytest.fixture
def hashes(tmp_path: Path) -> HashCache:
    (tmp_path / "shm").mkdir()
    return HashCache(tmp_path / "shm", ReadableLog(), wall_ns=lambda: 1 << 62)


def version(root: Path, content: bytes = b"0123456789", extra: bytes = b"abc", **load: object) -> ModelFiles:
    (root / "weights").mkdir(parents=True)
    (root / "model.onnx").write_bytes(content)
    (root / "weights" / "part").write_bytes(extra)
    return ModelFiles("m", "1", root, root / "model.onnx", load=LoadDescription(**load))  # type: ignore[arg-type]


def big(root: Path, size_bytes: int = BLOCK_BYTES + (1 << 20)) -> ModelFiles:
    """A version with one file of more than one block, most of it holes."""
    files = version(root)
    with (root / "model.onnx").open("r+b") as file:
        file.seek(size_bytes - len(OTHER_BYTES))
        file.write(OTHER_BYTES)
    return files


def load(
    files: ModelFiles,
    strategy: StrategyName = StrategyName.AUTO,
    progress: Callable[[int, int], None] = lambda *_: None,
    cancellation: Cancellation | None = None,
    threads: int = 2,
) -> Loaded:
    loaded = ModelLoader(strategy, threads=threads).load(files, progress, cancellation or Cancellation(), Stages())
    loaded.release()
    return loaded


@pytest.mark.parametrize("strategy", NAMES)
def test_every_strategy_finds_the_same_hash_and_tells_its_progress(tmp_path: Path, strategy: StrategyName) -> None:
    files = big(tmp_path / "v")
    total = BLOCK_BYTES + (1 << 20) + 3
    seen: list[tuple[int, int]] = []
    loaded = load(files, strategy, lambda *step: seen.append(step))
    assert loaded.content_hash == load(files, StrategyName.FULL, threads=1).content_hash
    assert (loaded.strategy, loaded.hashed_from, loaded.bytes_total) == (strategy, HashedFrom.BYTES, total)
    assert loaded.bytes_read == total
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert loaded.first_access_s is not None
    assert loaded.first_access_s < 10


def test_the_hash_is_that_of_names_and_content_whatever_the_path(tmp_path: Path) -> None:
    first = load(version(tmp_path / "a")).content_hash
    assert len(first) == 32
    assert load(version(tmp_path / "b")).content_hash == first
    assert load(version(tmp_path / "c", content=b"0123456780")).content_hash != first
    assert load(version(tmp_path / "d", content=b"0123456789a", extra=b"bc")).content_hash != first
    assert first == "58d0674ca311ffe28be0fd1676c279c2", "replicas of one fleet compare it: it must not change"


def test_what_describes_a_version_or_is_hidden_is_not_its_content(tmp_path: Path) -> None:
    files = version(tmp_path / "v")
    first = load(files).content_hash
    for name in ("model.yaml", "SHA256SUMS", ".part"):
        (tmp_path / "v" / name).write_text("")
    (tmp_path / "v" / ".git").mkdir()
    (tmp_path / "v" / ".git" / "x").write_text("x")
    assert load(files).content_hash == first
    (tmp_path / "v" / "weights" / "model.yaml").write_text("one that the model itself reads")
    assert load(files).content_hash != first


@pytest.mark.parametrize("strategy", [*NAMES, StrategyName.AUTO])
def test_an_empty_file_and_no_file_are_no_trouble(tmp_path: Path, strategy: StrategyName) -> None:
    assert load(version(tmp_path / "v", b"", b""), strategy).bytes_total == 0
    (tmp_path / "empty").mkdir()
    loaded = load(ModelFiles("m", "1", tmp_path / "empty"), strategy)
    assert (loaded.content_hash, loaded.hashed_from, loaded.first_access_s) == ("", HashedFrom.NOTHING, None)
    assert load(ModelFiles("m", "1"), strategy).content_hash == ""


@pytest.mark.parametrize("strategy", NAMES)
def test_it_can_be_given_up(tmp_path: Path, strategy: StrategyName) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(GivenUpError):
        load(big(tmp_path / "v"), strategy, cancellation=cancellation)


@pytest.mark.parametrize("strategy", NAMES)
def test_a_file_that_is_cut_short_while_it_is_loaded_is_an_error_and_no_signal(
    tmp_path: Path, strategy: StrategyName
) -> None:
    files = big(tmp_path / "v")

    def progress(done: int, _: int) -> None:
        if not done:
            os.truncate(tmp_path / "v" / "model.onnx", 5000)

    with pytest.raises(LoadError) as caught:
        load(files, strategy, progress)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/v/model.onnx: ")
    assert "changed from 17825792 to 5000 bytes while it was loaded" in text


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("strategy", [StrategyName.MMAP, StrategyName.POPULATE])
@pytest.mark.parametrize("why", ["cut", "given up"])
def test_a_load_that_fails_has_nothing_mapped_however_long_its_error_is_kept(
    tmp_path: Path, strategy: StrategyName, why: str
) -> None:
    files, cancellation = big(tmp_path / "v"), Cancellation()

    def progress(done: int, _: int) -> None:
        if why == "given up":
            cancellation.cancel()
        elif not done:
            os.truncate(tmp_path / "v" / "weights" / "part", 1)

    with pytest.raises((LoadError, GivenUpError)) as kept:
        load(files, strategy, progress, cancellation)
    assert kept.value.__traceback__ is not None, "it has what it went through"
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_file_that_is_cut_short_under_its_mapping_is_an_error_too(tmp_path: Path) -> None:
    path = big(tmp_path / "v").model_file
    assert path is not None
    mapping = Mapping(path)
    assert mapping.populate(0, 1 << 20)
    os.truncate(path, 5000)
    with pytest.raises(
        LoadError, match=f"^{path}: a page within bytes 1048576 to 2097152 cannot be brought in: the fil"
    ):
        mapping.populate(1 << 20, 1 << 20)
    mapping.close()
    mapping.close()


@pytest.mark.parametrize("strategy", NAMES)
def test_a_file_that_goes_away_is_named(tmp_path: Path, strategy: StrategyName) -> None:
    files = version(tmp_path / "v")

    def progress(done: int, _: int) -> None:
        if not done:
            (tmp_path / "v" / "weights" / "part").unlink()

    with pytest.raises(LoadError) as caught:
        load(files, strategy, progress)
    assert str(caught.value).endswith("No such file or directory")
    assert str(caught.value).startswith(f"{tmp_path}/v/weights/part: ")


def test_a_change_after_the_load_is_found(tmp_path: Path) -> None:
    files = version(tmp_path / "v")
    loaded = load(files)
    loaded.check()
    (tmp_path / "other").write_bytes(b"0123456789")
    (tmp_path / "other").rename(tmp_path / "v" / "model.onnx")
    with pytest.raises(
        LoadError, match=r"v/model.onnx: changed while it was loaded; put a new version together beside"
    ):
        loaded.check()


def test_populate_holds_every_page_until_it_is_released(tmp_path: Path) -> None:
    loaded = ModelLoader(StrategyName.POPULATE).load(
        big(tmp_path / "v"), lambda *_: None, Cancellation(), stages := Stages()
    )
    assert loaded.residency_ratio == 1.0
    assert [mapping.held_pages() for mapping in loaded.mappings] == [(4352, 4352), (1, 1)]
    assert set(stages.seconds()) == {Stage.OPEN, Stage.PAGE_IN, Stage.CHECKSUM}
    loaded.release()
    assert [mapping.held_pages() for mapping in loaded.mappings] == [(0, 0), (0, 0)]


def test_populate_fails_where_the_pages_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mapping, "held_pages", lambda _: (99, 100))
    touched: list[tuple[int, int]] = []
    monkeypatch.setattr(Mapping, "missing", lambda _: [(0, 4096)])
    populate = Mapping.populate

    def touch(mapping: Mapping, offset: int, length: int) -> bool:
        touched.append((offset, length))
        return populate(mapping, offset, length)

    monkeypatch.setattr(Mapping, "populate", touch)
    files = version_files(version(tmp_path / "v").directory or tmp_path)
    task = LoadTask(files, 1, lambda *_: None, Cancellation(), Stages())
    with pytest.raises(LoadError) as caught:
        Populate(touches=2).bring_in(task)
    assert str(caught.value) == (
        f"{tmp_path}/v/model.onnx: 0.9900 of the pages are resident after 2 tries, and 0.997 must be: "
        f"memory does not suffice; give the worker more, or load with mmap or chunked"
    )
    assert touched == [(0, 10), (0, 3), *[(0, 4096)] * 4]
    assert Populate(0.99).bring_in(task).bytes_read == 13
    assert Populate(must_hold=False).bring_in(task).bytes_read == 13


def test_chunked_holds_no_more_than_its_window(tmp_path: Path) -> None:
    files = version(tmp_path / "v", os.urandom(12 << 20))
    with (tmp_path / "v" / "model.onnx").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found = version_files(tmp_path / "v")
    before = cached_ratio(found)
    if before is None or before > 0.01:
        pytest.skip(f"this file system gives no page back: {before} are cached")
    held: list[float] = []
    task = LoadTask(
        found,
        1,
        lambda *_: held.append(cached_ratio(found) or 0.0),
        Cancellation(),
        Stages(),
        Wanted(frozenset(file.name for file in found)),
    )
    brought = Chunked().bring_in(task)
    assert len(held) == 13
    assert max(held) <= 3 / 12, "the chunk that is read, the one that was asked for, and one to spare"
    assert (cached_ratio(found) or 0.0) <= 1 / 12
    assert brought.digests == STRATEGIES[StrategyName.FULL]().bring_in(task).digests
    Chunked().bring_in(task)
    assert cached_ratio(found) == 1.0, "what was cached before stays"
    assert load(files).strategy is StrategyName.FULL


def test_a_versions_own_strategy_comes_first(tmp_path: Path) -> None:
    assert load(version(tmp_path / "a", strategy=StrategyName.MMAP), StrategyName.FULL).strategy is StrategyName.MMAP
    assert load(version(tmp_path / "b"), StrategyName.PREFETCH).strategy is StrategyName.PREFETCH


def test_a_version_that_was_hashed_before_is_not_read_to_hash_it(tmp_path: Path, hashes: HashCache) -> None:
    def again(verify: Verify = Verify.CACHED) -> Loaded:
        again_files = ModelFiles("m", "1", tmp_path / "v", load=LoadDescription(verify=verify))
        return ModelLoader(StrategyName.MMAP, hashes).load(again_files, lambda *_: None, Cancellation(), Stages())

    version(tmp_path / "v")
    first, second = again(), again()
    assert (first.hashed_from, first.bytes_read) == (HashedFrom.BYTES, 13)
    assert (second.hashed_from, second.bytes_read) == (HashedFrom.CACHE, 0)
    assert second.content_hash == first.content_hash
    assert again(Verify.ALWAYS).hashed_from is HashedFrom.BYTES
    path = tmp_path / "v" / "model.onnx"
    status = path.stat()
    path.write_bytes(b"9876543210")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    third = again()
    assert (third.hashed_from, third.bytes_read) == (HashedFrom.BYTES, 10)
    assert third.content_hash != first.content_hash
