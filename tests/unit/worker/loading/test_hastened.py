"""Loads that are told to be quick: what only brings pages in is left out, what is hashed is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading import HashedFrom, Loaded, LoadError, StrategyName, Verify
from worker.loading.digests import BLOCK_BYTES
from worker.loading.hash_cache import HashCache
from worker.loading.mapping import Mapping
from worker.loading.model_loader import ModelLoader
from worker.loading.reading import BlockReader, Wanted
from worker.loading.settings import LoadDescription
from worker.loading.shm import ShmStore
from worker.loading.version_files import version_files
from worker.numa import Plan
from worker.stages import Stages
from worker.store import ModelFiles

if TYPE_CHECKING:
    from worker.numa import Placer

BYTES = BLOCK_BYTES + 10
CUTS = [StrategyName.FULL, StrategyName.POPULATE, StrategyName.PREFETCH]
"""The strategies that bring in more than what must be hashed."""


def version(root: Path, strategy: StrategyName, verify: Verify = Verify.MANIFEST) -> ModelFiles:
    """A version of two blocks, most of it holes, whose sums are written down, and believed where ``verify`` says so."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "model.onnx").open("wb") as file:
        file.truncate(BYTES)
    with (root / "model.onnx").open("rb") as file:
        summed = hashlib.file_digest(file, "sha256").hexdigest()
    (root / "SHA256SUMS").write_text(f"{summed}  model.onnx\n")
    return ModelFiles("m", "1", root, root / "model.onnx", load=LoadDescription(strategy, verify))


class Quick(Cancellation):
    """One that is hastened from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.hasten()


def load(files: ModelFiles, cancellation: Cancellation, loader: ModelLoader | None = None) -> Loaded:
    return (loader or ModelLoader()).load(files, lambda *_: None, cancellation, Stages())


@pytest.mark.parametrize("strategy", CUTS)
def test_no_page_is_brought_in_and_the_content_is_the_same(tmp_path: Path, strategy: StrategyName) -> None:
    files = version(tmp_path / "v", strategy)
    whole, quick = load(files, Cancellation()), load(files, Quick())
    assert (whole.strategy, whole.bytes_read) == (strategy, BYTES)
    assert (quick.strategy, quick.bytes_read) == ("lazy", 0)
    assert quick.content_hash == whole.content_hash
    assert quick.facts()["strategy"] == "lazy"


@pytest.mark.parametrize("strategy", [StrategyName.MMAP, StrategyName.CHUNKED])
def test_where_nothing_is_left_out_the_strategy_is_what_it_was(tmp_path: Path, strategy: StrategyName) -> None:
    assert load(version(tmp_path / "v", strategy), Quick()).strategy is strategy


@pytest.mark.parametrize("verify", [Verify.CACHED, Verify.ALWAYS])
@pytest.mark.parametrize("strategy", [*CUTS, StrategyName.MMAP, StrategyName.CHUNKED])
def test_what_must_be_hashed_is_read_to_its_end(tmp_path: Path, strategy: StrategyName, verify: Verify) -> None:
    files = version(tmp_path / "v", strategy, verify)
    whole, quick = load(files, Cancellation()), load(files, Quick())
    assert quick.hashed_from is whole.hashed_from is HashedFrom.BYTES
    assert quick.content_hash == whole.content_hash
    (tmp_path / "v" / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(LoadError, match=r"v/model.onnx: its SHA-256 is [0-9a-f]{64}, and .*/SHA256SUMS says"):
        load(files, Quick())


def test_only_what_is_not_known_yet_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    loader = ModelLoader(cache=HashCache(tmp_path / "shm", ReadableLog(), wall_ns=lambda: 1 << 62))
    files = version(tmp_path / "v", StrategyName.FULL, Verify.CACHED)
    load(files, Cancellation(), loader)
    known = load(files, Quick(), loader)
    assert (known.bytes_read, known.hashed_from, known.strategy) == (0, HashedFrom.CACHE, "lazy")
    (tmp_path / "v" / "labels.txt").write_text("abc")
    one_more = load(files, Quick(), loader)
    assert (one_more.bytes_read, one_more.hashed_from, one_more.strategy) == (3, HashedFrom.BYTES, "lazy")
    assert one_more.content_hash == load(files, Cancellation()).content_hash


def test_reading_stops_between_two_chunks(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "a").write_bytes(b"x" * 40)
    (tmp_path / "v" / "b").write_bytes(b"x" * 40)
    found = version_files(tmp_path / "v")
    answers = iter([False, False, True, True])  # before the first chunk, after it, after the second; before b

    def read(wanted: Wanted, hastened: Callable[[], bool]) -> tuple[int, bool, int]:
        noted = 0

        def note(count: int) -> None:
            nonlocal noted
            noted += count

        with BlockReader(wanted, 1, buffer_bytes=10, hastened=hastened) as reader:
            reader.read_all(found)
            tally = reader.finish(Cancellation(), note)
        return tally.bytes_read, tally.cut, noted

    assert read(Wanted(), lambda: next(answers)) == (20, True, 20)
    assert read(Wanted(frozenset("b")), lambda: True) == (40, True, 40)
    assert read(Wanted(frozenset("ab")), lambda: True) == (80, False, 80)


def test_populating_stops_between_two_blocks_and_what_is_mapped_stays_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancellation, populated = Cancellation(), []
    populate = Mapping.populate

    def and_hasten(mapping: Mapping, offset: int, length: int) -> bool:
        populated.append((offset, length))
        cancellation.hasten()
        return populate(mapping, offset, length)

    monkeypatch.setattr(Mapping, "populate", and_hasten)
    monkeypatch.setattr(Mapping, "held_pages", lambda _: (0, 100))  # no mark is asked for of what is cut
    loaded = load(version(tmp_path / "v", StrategyName.POPULATE), cancellation)
    assert populated == [(0, BLOCK_BYTES)]
    assert (loaded.strategy, loaded.residency_ratio) == ("lazy", 0.0)
    assert [mapping.address > 0 for mapping in loaded.mappings] == [True]
    loaded.release()


class Nodes:
    """Places on one node, and remembers what it was to hold."""

    def __init__(self) -> None:
        self.held: list[int] = []

    @contextmanager
    def placing(self, size_bytes: int) -> Iterator[Plan]:
        yield Plan({0: size_bytes}, 0.0)

    def hold(self, mappings: Sequence[Mapping], _: Plan) -> None:
        self.held.append(len(mappings))


def test_what_is_left_out_is_not_locked_in_memory(tmp_path: Path) -> None:
    nodes = Nodes()
    loader = ModelLoader(placer=cast("Placer", nodes))
    files = version(tmp_path / "v", StrategyName.POPULATE)
    load(files, Quick(), loader).release()
    assert nodes.held == []
    load(files, Cancellation(), loader).release()
    assert nodes.held == [1]


def test_a_copy_into_shared_memory_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    store = ShmStore(tmp_path / "shm", "ns.w", ReadableLog(), keep=True, limit_bytes=1 << 30, memory=lambda: None)
    files = version(tmp_path / "v", StrategyName.FULL)
    loaded = load(files, Quick(), ModelLoader(shm=store))
    assert loaded.strategy == "copied"
    assert loaded.model_file is not None
    assert loaded.model_file.stat().st_size == BYTES
    loaded.release()
