from __future__ import annotations

import gzip
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation, GivenUpError
from worker.loading import Loaded, LoadError
from worker.loading.digests import BLOCK_BYTES
from worker.loading.hash_cache import HashCache
from worker.loading.model_loader import ModelLoader
from worker.loading.private import own_root
from worker.loading.shm import ShmStore
from worker.loading.unpacking import CHUNK_BYTES
from worker.memory import Memory
from worker.stages import Stage, Stages
from worker.store import ModelFiles, StoreError, scan

CONTENT = np.arange(700_000, dtype=">u4").tobytes()
PACKING: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 1),
    ".zst": lambda data: zstandard.ZstdCompressor(1, write_checksum=True).compress(data),
}


def version(directory: Path, files: dict[str, bytes]) -> ModelFiles:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    model = next(name for name in files if name.startswith("model.onnx"))
    return ModelFiles("m", "1", directory, directory / model)


class Rig:
    def __init__(self, tmp_path: Path, *, keep: bool = False, limit_bytes: int = 1 << 40) -> None:
        self.place = tmp_path / "shm"
        self.place.mkdir(exist_ok=True)
        self.log = ReadableLog()
        self.memory: Memory | None = None
        self.store = ShmStore(self.place, "ns.w1", self.log, keep=keep, limit_bytes=limit_bytes)
        self.stages = Stages()
        self.cancellation = Cancellation()
        self.hashes = HashCache(self.place, self.log, wall_ns=lambda: 1 << 62)

    def load(self, files: ModelFiles, progress: Callable[[int, int], None] = lambda *_: None) -> Loaded:
        loader = ModelLoader(cache=self.hashes, shm=self.store, memory=lambda: self.memory)
        return loader.load(files, progress, self.cancellation, self.stages)

    def refusal(self, files: ModelFiles) -> str:
        with pytest.raises(LoadError) as caught:
            self.load(files)
        assert not list(own_root(self.place).glob("weights/*/m@1*"))
        return str(caught.value)

    def left(self) -> list[str]:
        return [path.name for path in own_root(self.place).glob("weights/*/*") if path.is_dir()]


@pytest.mark.parametrize("suffix", PACKING)
def test_a_single_packed_model_goes_into_memory_without_a_name(tmp_path: Path, suffix: str) -> None:
    rig = Rig(tmp_path)
    files = version(tmp_path / "v", {f"model.onnx{suffix}": PACKING[suffix](CONTENT)})
    loaded = rig.load(files)
    assert loaded.strategy == "unpacked"
    assert loaded.bytes_total == len(CONTENT)
    assert loaded.model_file is not None
    assert str(loaded.model_file).startswith("/proc/self/fd/")
    assert loaded.model_file.read_bytes() == CONTENT
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(loaded.model_file, 5)
    assert rig.stages.seconds()[Stage.DECOMPRESS] > 0
    assert rig.left() == []
    loaded.check()
    loaded.release()
    assert not loaded.model_file.exists()
    plain = rig.load(version(tmp_path / "plain", {"model.onnx": CONTENT}))
    assert plain.content_hash == loaded.content_hash


def test_a_packed_model_with_other_files_gets_a_directory_until_it_is_unloaded(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    contents = {"model.onnx": b"graph", "weights/a": CONTENT, "weights/b": b"plain"}
    packed = version(
        tmp_path / "v",
        {
            "model.onnx.gz": gzip.compress(b"graph"),
            "weights/a.zst": zstandard.ZstdCompressor().compress(CONTENT),
            "weights/b": b"plain",
        },
    )
    seen: list[tuple[int, int]] = []
    loaded = rig.load(packed, lambda *step: seen.append(step))
    assert loaded.model_file is not None
    root = loaded.model_file.parent
    assert {name: (root / name).read_bytes() for name in contents} == contents
    assert loaded.content_hash == rig.load(version(tmp_path / "plain", contents)).content_hash
    total = sum(path.stat().st_size for path in (tmp_path / "v").rglob("*") if path.is_file())
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert seen == sorted(seen)
    loaded.keep()
    loaded.release()
    assert rig.left() == [], "nobody asked to keep it"
    rig.store.close()
    assert list((own_root(rig.place) / "weights").iterdir()) == []


def test_what_was_unpacked_is_kept_with_the_rest(tmp_path: Path) -> None:
    packed = version(tmp_path / "v", {"model.onnx.gz": gzip.compress(CONTENT, 1)})
    first = Rig(tmp_path, keep=True)
    loaded = first.load(packed)
    loaded.keep()
    second = Rig(tmp_path, keep=True)
    again = second.load(packed)
    assert (loaded.strategy, again.strategy, again.content_hash) == ("unpacked", "shm", loaded.content_hash)
    assert again.model_file is not None
    assert again.model_file.read_bytes() == CONTENT
    assert Stage.DECOMPRESS not in second.stages.seconds()


def test_content_over_several_blocks_hashes_as_if_it_were_plain(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    content = bytes(BLOCK_BYTES + CHUNK_BYTES + 5)
    packed = rig.load(version(tmp_path / "v", {"model.onnx.gz": gzip.compress(content, 1)}))
    plain = rig.load(version(tmp_path / "plain", {"model.onnx": content}))
    assert packed.content_hash == plain.content_hash


@pytest.mark.parametrize("suffix", PACKING)
def test_several_members_are_one_file(tmp_path: Path, suffix: str) -> None:
    pack = PACKING[suffix]
    loaded = Rig(tmp_path).load(version(tmp_path / "v", {f"model.onnx{suffix}": pack(b"a" * 70_000) + pack(b"b")}))
    assert loaded.model_file is not None
    assert loaded.model_file.read_bytes() == b"a" * 70_000 + b"b"


@pytest.mark.parametrize("suffix", PACKING)
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda data: data[:-7], "it ends in the middle"),
        (lambda data: b"", "it ends in the middle"),
        (lambda data: b"PK\3\4" + data, None),
        (lambda data: data + b"garbage", None),
        (lambda data: data[:5000] + bytes(50) + data[5050:], None),
    ],
)
def test_what_is_damaged_is_refused(
    tmp_path: Path, suffix: str, spoil: Callable[[bytes], bytes], error: str | None
) -> None:
    rig = Rig(tmp_path)
    files = version(tmp_path / "v", {f"model.onnx{suffix}": spoil(PACKING[suffix](CONTENT)), "other": b""})
    text = rig.refusal(files)
    assert text.startswith(f"{tmp_path}/v/model.onnx{suffix}: cannot be unpacked: {error or ''}")
    assert text.endswith("; it is damaged, or was not copied whole: put it there again")


def test_it_goes_no_further_than_memory_does(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.memory = Memory(len(CONTENT), 1 << 40)
    files = version(tmp_path / "v", {"model.onnx.gz": gzip.compress(CONTENT, 1)})
    assert rig.refusal(files) == (
        f"{tmp_path}/v/model.onnx.gz: cannot be unpacked: {len(CONTENT)} bytes are more than 80% of the {len(CONTENT)} "
        f"that memory has free; unpack it beside its place, and put that there instead"
    )
    assert Stage.DECOMPRESS not in rig.stages.seconds(), "it is not begun"
    untold = zstandard.ZstdCompressor().compressobj()
    packed = untold.compress(bytes(len(CONTENT))) + untold.flush()
    assert rig.refusal(version(tmp_path / "w", {"model.onnx.zst": packed})) == (
        f"{tmp_path}/w/model.onnx.zst: cannot be unpacked: it unpacks to over {len(CONTENT) * 8 // 10} bytes, for "
        f"which there is no room"
    )


def test_without_a_place_for_several_files_it_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.place.rename(tmp_path / "away")
    packed = gzip.compress(CONTENT)
    text = rig.refusal(version(tmp_path / "v", {"model.onnx.gz": packed, "other": b"plain"}))
    assert text == (
        f"{tmp_path}/v/model.onnx.gz: cannot be unpacked: the version's files need {len(CONTENT) + 5} bytes below "
        f"--shm-dir: {rig.place}: no such directory; --shm-dir says where there is shared memory; or unpack it beside "
        f"its place, and put that there instead"
    )
    assert rig.log.events("load.shm") == []


def test_several_files_need_room_for_what_they_hold_and_no_more(tmp_path: Path) -> None:
    files = version(tmp_path / "v", {"model.onnx.gz": gzip.compress(CONTENT, 1), "other": bytes(4096)})
    need = len(CONTENT) + 4096
    text = Rig(tmp_path, limit_bytes=need - 1).refusal(files)
    assert f"cannot be unpacked: the version's files need {need} bytes below --shm-dir: " in text
    assert f": no room for {need} bytes, 1 too many; raise --shm-limit-bytes or mount a larger " in text
    loaded = Rig(tmp_path, limit_bytes=need).load(files)
    assert (loaded.strategy, loaded.bytes_total) == ("unpacked", need)
    loaded.release()


def test_what_does_not_say_how_much_it_holds_goes_no_further_than_the_limit(tmp_path: Path) -> None:
    untold = zstandard.ZstdCompressor().compressobj()
    packed = untold.compress(bytes(1 << 20)) + untold.flush()
    files = version(tmp_path / "v", {"model.onnx.zst": packed, "other": b"plain"})
    limit = 1 << 19
    text = Rig(tmp_path, limit_bytes=limit).refusal(files)
    assert text.endswith(f"it unpacks to over {limit - 5} bytes, for which there is no room")


def test_packed_and_plain_at_once_is_refused(tmp_path: Path) -> None:
    files = version(tmp_path / "v", {"model.onnx": b"x", "model.onnx.gz": gzip.compress(b"x")})
    assert Rig(tmp_path).refusal(files) == (
        f"{tmp_path}/v/model.onnx: is there packed and plain, or packed twice; take all but one away"
    )


def test_sums_are_of_the_packed_file(tmp_path: Path) -> None:
    packed = gzip.compress(CONTENT, 1)
    files = version(tmp_path / "v", {"model.onnx.gz": packed})
    (tmp_path / "v" / "SHA256SUMS").write_text(f"{hashlib.sha256(packed).hexdigest()}  model.onnx.gz\n")
    Rig(tmp_path).load(files)
    (tmp_path / "v" / "SHA256SUMS").write_text(f"{hashlib.sha256(CONTENT).hexdigest()}  model.onnx.gz\n")
    assert "its SHA-256 is" in Rig(tmp_path).refusal(files)


def test_zstandard_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    files = version(tmp_path / "v", {"model.onnx.zst": PACKING[".zst"](b"x")})
    assert Rig(tmp_path).refusal(files) == (
        f"{tmp_path}/v/model.onnx.zst: cannot be unpacked: it needs the library zstandard; install warmroute[zstd]"
    )


def test_it_can_be_given_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.cancellation.cancel()
    files = replace(version(tmp_path / "v", {"model.onnx.gz": gzip.compress(CONTENT, 1)}), name="given-up")
    with pytest.raises(GivenUpError):
        rig.load(files)
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [link for link in links if "given-up" in link]


def test_the_repository_finds_packed_models(tmp_path: Path) -> None:
    version(tmp_path / "a" / "1", {"model.onnx.zst": b""})
    version(tmp_path / "b" / "1", {"model.onnx.gz": b""})
    assert [files.model_file for files in scan(tmp_path, (), "model.onnx")] == [
        tmp_path / "a" / "1" / "model.onnx.zst",
        tmp_path / "b" / "1" / "model.onnx.gz",
    ]
    (tmp_path / "c" / "1").mkdir(parents=True)
    with pytest.raises(StoreError, match=f"{tmp_path}/c/1/model.onnx: no such file"):
        scan(tmp_path, ("c",), "model.onnx")
