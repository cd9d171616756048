"""What a shard's loader holds to what is written down of it, and what it says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tensors import arrays, write_safetensors
from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading import HashedFrom, LoadError, Verify
from worker.loading.hash_cache import HashCache
from worker.loading.model_loader import ModelLoader
from worker.loading.settings import LoadDescription
from worker.sharding import onnx_file, safetensors
from worker.sharding.loader import LoadedShard, ShardLoader
from worker.sharding.manifest import make_manifest, tensors_of, write_manifest
from worker.stages import Stages
from worker.store import HeldShard, ModelFiles

READERS = (("*.safetensors", safetensors.read_tensors), ("*.onnx", onnx_file.read_tensors))
WEIGHTS = "model.safetensors"


class Split:
    """A version split in two, a graph for each shard, loaded as shard 1."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "v"
        write_safetensors(self.directory / WEIGHTS, arrays())
        write_manifest(make_manifest(self.directory, tensors_of(self.directory, READERS), 2), self.directory)
        for shard in range(2):
            (self.directory / f"shard-{shard}.onnx").write_bytes(b"graph %d" % shard)
        (root / "shm").mkdir()
        self.hashes = HashCache(root / "shm", ReadableLog(), wall_ns=lambda: 1 << 62)
        self.steps: list[tuple[int, int]] = []

    def sums(self, **wrong: str) -> None:
        """Write the sums of all files; of those in ``wrong``, other ones."""
        text = ""
        for path in sorted(self.directory.iterdir()):
            right = hashlib.sha256(path.read_bytes()).hexdigest()
            text += f"{wrong.get(path.name, right)}  {path.name}\n" if path.name != "SHA256SUMS" else ""
        (self.directory / "SHA256SUMS").write_text(text)

    def load(self, verify: Verify = Verify.CACHED, described: dict[str, str] | None = None) -> LoadedShard:
        self.steps.clear()
        files = ModelFiles(
            "m",
            "1",
            self.directory,
            self.directory / "shard-1.onnx",
            sha256=described or {},
            load=LoadDescription(verify=verify),
            shard=HeldShard(1, 2),
        )
        loaded = ShardLoader(ModelLoader(), self.hashes, 2).load(
            files, lambda *step: self.steps.append(step), Cancellation(), Stages()
        )
        assert isinstance(loaded, LoadedShard)
        loaded.release()
        return loaded


@pytest.mark.parametrize("name", ["shard-1.onnx", "manifest.json", WEIGHTS])
@pytest.mark.parametrize("where", ["SHA256SUMS", "model.yaml"])
def test_what_a_shard_reads_is_held_to_its_sums(tmp_path: Path, name: str, where: str) -> None:
    split = Split(tmp_path)
    split.sums(**{name: "0" * 64} if where == "SHA256SUMS" else {})
    found = hashlib.sha256((split.directory / name).read_bytes()).hexdigest()
    described = {name: "0" * 64} if where == "model.yaml" else {}
    if where == "model.yaml":
        (split.directory / "SHA256SUMS").unlink()
    for _ in range(2):
        with pytest.raises(LoadError) as caught:
            split.load(described=described)
        said = f"{split.directory / name}: its SHA-256 is {found}, and {split.directory / where} says {'0' * 64}"
        assert str(caught.value).startswith(said)


def test_what_other_shards_read_is_not_looked_at(tmp_path: Path) -> None:
    split = Split(tmp_path)
    split.sums(**{"shard-0.onnx": "0" * 64})
    before = split.load().content_hash
    (split.directory / "shard-0.onnx").unlink()
    assert split.load().content_hash == before


def test_files_are_hashed_once_and_slices_each_time(tmp_path: Path) -> None:
    split = Split(tmp_path)
    split.sums()
    size = sum((split.directory / name).stat().st_size for name in ("shard-1.onnx", "manifest.json", WEIGHTS))
    first, steps = split.load(), list(split.steps)
    assert (first.hashed_from, first.bytes_read) == (HashedFrom.BYTES, first.bytes_total + size)
    assert steps[-1] == (first.bytes_read, first.bytes_read)
    assert {total for _, total in steps} == {first.bytes_read}
    assert steps == sorted(steps)
    again = split.load()
    assert (again.hashed_from, again.bytes_read) == (HashedFrom.CACHE, again.bytes_total)
    assert again.content_hash == first.content_hash
    always = split.load(Verify.ALWAYS)
    assert (always.bytes_read, always.content_hash) == (first.bytes_read, first.content_hash)


def test_sums_that_are_believed_are_not_read_for_and_slices_are_checked(tmp_path: Path) -> None:
    split = Split(tmp_path)
    split.sums()
    loaded = split.load(Verify.MANIFEST)
    assert (loaded.hashed_from, loaded.bytes_read) == (HashedFrom.MANIFEST, loaded.bytes_total)
    text = (split.directory / "SHA256SUMS").read_text()
    (split.directory / "SHA256SUMS").write_text("".join(line for line in text.splitlines(True) if "graph" in line))
    with pytest.raises(LoadError, match=r"load.verify is manifest, and neither SHA256SUMS nor files in model.yaml has"):
        split.load(Verify.MANIFEST)


def change_graph(split: Split) -> None:
    (split.directory / "shard-1.onnx").write_bytes(b"other")


def change_labels(split: Split) -> None:
    (split.directory / "labels.txt").write_bytes(b"a\nb\n")


@pytest.mark.parametrize("change", [change_graph, change_labels])
def test_the_content_hash_is_that_of_slices_and_whole_files(tmp_path: Path, change: Callable[[Split], None]) -> None:
    split = Split(tmp_path)
    before = split.load().content_hash
    split.sums()
    assert split.load().content_hash == before  # whether it is held to sums says nothing of the content
    (split.directory / "SHA256SUMS").unlink()
    change(split)
    assert split.load().content_hash != before


def test_a_change_while_it_was_loaded_and_after_is_found(tmp_path: Path) -> None:
    split = Split(tmp_path)
    loaded = split.load()
    assert {file.name for file in loaded.files} == {"shard-1.onnx", "manifest.json", WEIGHTS}
    loaded.check()
    (split.directory / "shard-1.onnx").write_bytes(b"another graph")
    with pytest.raises(LoadError, match=r"shard-1\.onnx: changed from 7 to 13 bytes"):
        loaded.check()
