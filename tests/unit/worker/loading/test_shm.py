from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading import HashedFrom, Loaded, LoadError, StrategyName, Verify
from worker.loading.model_loader import ModelLoader
from worker.loading.private import own_root
from worker.loading.settings import LoadDescription
from worker.loading.shm import ORPHAN_S, ShmError, ShmStore
from worker.loading.version_files import version_files
from worker.memory import Memory
from worker.stages import Stages
from worker.store import ModelFiles

HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_SH)
print("locked", flush=True)
sys.stdin.read()
"""


class Rig:
    """A version of two files, and stores that stand for one worker's processes after one another."""

    def __init__(self, tmp_path: Path) -> None:
        self.place = tmp_path / "shm"
        self.place.mkdir()
        self.directory = tmp_path / "models" / "m" / "1"
        (self.directory / "weights").mkdir(parents=True)
        (self.directory / "model.onnx").write_bytes(b"0123456789")
        (self.directory / "weights" / "part").write_bytes(b"abc")
        self.log = ReadableLog()
        self.memory: Memory | None = None
        self.now = time.time()
        self.stores: list[ShmStore] = []
        self.instances: dict[str, list[ShmStore]] = {}

    def store(
        self, instance: str = "ns.w1", *, keep: bool = True, limit_bytes: int = 1 << 20, beside: bool = False
    ) -> ShmStore:
        """Return another process's; the instance's ones before it have ended, unless it runs ``beside`` them."""
        for earlier in self.instances.get(instance, ()):
            if not beside:
                earlier.close()
        self.stores.append(
            ShmStore(
                self.place,
                instance,
                self.log,
                keep=keep,
                limit_bytes=limit_bytes,
                memory=lambda: self.memory,
                wall_s=lambda: self.now,
            )
        )
        if keep:
            self.instances.setdefault(instance, []).append(self.stores[-1])
        return self.stores[-1]

    def load(
        self,
        store: ShmStore,
        verify: Verify = Verify.CACHED,
        strategy: StrategyName | None = None,
        name: str = "m",
    ) -> Loaded:
        files = self.files(name, LoadDescription(strategy, verify))
        return ModelLoader(shm=store).load(files, lambda *_: None, Cancellation(), Stages())

    def files(self, name: str = "m", load: LoadDescription | None = None) -> ModelFiles:
        path = self.directory / "model.onnx"
        return ModelFiles(name, "1", self.directory, path, load=load or LoadDescription())

    @property
    def own(self) -> Path:
        return own_root(self.place) / "weights" / "ns.w1"

    def entries(self, instance: str = "ns.w1") -> list[str]:
        path = own_root(self.place) / "weights" / instance
        return sorted(one.name for one in path.iterdir() if one.is_dir()) if path.is_dir() else []

    def refusals(self) -> list[str]:
        return [event["error"] for event in self.log.events("load.shm")]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def test_the_next_process_finds_what_this_one_kept(rig: Rig) -> None:
    first = rig.load(rig.store())
    assert (first.strategy, first.hashed_from, first.bytes_read) == ("copied", HashedFrom.BYTES, 13)
    assert first.model_file is not None
    assert first.model_file.is_relative_to(rig.own)
    assert first.model_file.read_bytes() == b"0123456789"
    assert (first.model_file.parent / "weights" / "part").read_bytes() == b"abc"
    first.keep()
    first.release()
    second = rig.load(rig.store())
    assert (second.strategy, second.hashed_from, second.bytes_read) == ("shm", HashedFrom.CACHE, 0)
    assert (second.model_file, second.content_hash) == (first.model_file, first.content_hash)
    assert second.residency_ratio == 1.0
    assert rig.refusals() == []
    plain = ModelLoader().load(ModelFiles("m", "1", rig.directory), lambda *_: None, Cancellation(), Stages())
    assert plain.content_hash == first.content_hash


def test_what_is_unloaded_for_good_is_removed(rig: Rig) -> None:
    loaded = rig.load(rig.store())
    assert len(rig.entries()) == 1
    loaded.release()
    assert rig.entries() == []


def test_it_can_be_read_to_hash_each_time_and_damage_is_found(rig: Rig) -> None:
    first = rig.load(rig.store())
    first.keep()
    assert first.model_file is not None
    again = rig.load(rig.store(), Verify.ALWAYS)
    assert (again.strategy, again.hashed_from, again.bytes_read) == ("shm", HashedFrom.BYTES, 13)
    assert again.content_hash == first.content_hash
    with first.model_file.open("r+b") as file:
        file.write(b"X")
    assert rig.load(rig.store(), Verify.ALWAYS).content_hash != first.content_hash


def test_files_that_are_others_by_now_are_copied_again_and_the_old_ones_go(rig: Rig) -> None:
    rig.load(rig.store()).keep()
    (rig.directory / "model.onnx").write_bytes(b"9876543210")
    store = rig.store()
    loaded = rig.load(store)
    assert loaded.strategy == "copied"
    assert len(rig.entries()) == 1
    (rig.directory / "model.onnx").write_bytes(b"98765432")
    assert rig.load(store).strategy == "copied"
    assert len(rig.entries()) == 2, "what is loaded stays until it is given back"
    loaded.release()
    assert len(rig.entries()) == 1


def test_a_start_removes_what_is_not_served(rig: Rig) -> None:
    rig.load(rig.store()).keep()
    store = rig.store()
    store.sweep({"m@1"})
    assert len(rig.entries()) == 1
    store.sweep({"m@2"})
    assert rig.entries() == []


@pytest.mark.parametrize("damage", ["short", "gone", "open", "link", "manifest", "deep", "unfinished"])
def test_what_is_not_as_it_was_left_is_made_again(rig: Rig, damage: str, tmp_path: Path) -> None:
    first = rig.load(rig.store())
    first.keep()
    path = first.model_file
    assert path is not None
    if damage == "short":
        os.truncate(path, 5)
    elif damage == "gone":
        path.unlink()
    elif damage == "open":
        path.chmod(0o644)
    elif damage == "link":
        path.unlink()
        (tmp_path / "theirs").write_bytes(b"0123456789")
        path.symlink_to(tmp_path / "theirs")
    elif damage == "manifest":
        (path.parent / ".complete").write_bytes(b"{")
    elif damage == "deep":
        (path.parent / ".complete").write_bytes(b'{"x":' + b"[" * 100_000)
    else:
        (path.parent / ".complete").unlink()
    again = rig.load(rig.store())
    assert (again.strategy, again.content_hash) == ("copied", first.content_hash)
    assert again.model_file is not None
    assert again.model_file.read_bytes() == b"0123456789"
    assert not again.model_file.is_symlink()
    assert len(rig.entries()) == 1


@pytest.mark.parametrize("part", ["", "weights", "weights/ns.w1"])
def test_what_others_may_write_to_is_not_used(rig: Rig, part: str) -> None:
    rig.load(rig.store()).keep()
    path = own_root(rig.place) / part
    path.chmod(0o777)
    loaded = rig.load(rig.store())
    assert loaded.strategy == StrategyName.FULL
    assert rig.refusals() == [f"{path}: open to other users (mode 777); it must be 700"]


def test_another_users_directory_is_not_used(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    (rig.place / f"warmroute-{me + 1}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert rig.load(rig.store()).strategy == StrategyName.FULL
    assert "belongs to user" in rig.refusals()[0]


def test_without_room_it_is_loaded_from_where_it_is(rig: Rig) -> None:
    assert rig.load(rig.store(limit_bytes=12)).strategy == StrategyName.FULL
    rig.memory = Memory(16, 100)
    assert rig.load(rig.store()).strategy == StrategyName.FULL
    rig.memory = Memory(17, 100)
    assert rig.load(rig.store()).strategy == "copied"
    assert rig.refusals() == [
        f"{rig.own}: no room for 13 bytes, 1 too many; raise --shm-limit-bytes or mount a larger {rig.place}",
        "13 bytes are more than 80% of the 16 that memory has free",
    ]


def test_room_that_runs_out_on_the_way_leaves_nothing_behind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    loaded = rig.load(rig.store())
    assert (loaded.strategy, loaded.model_file) == (StrategyName.FULL, None)
    assert rig.refusals() == [f"the copy of {rig.directory}/model.onnx: cannot be written: No space left on device"]
    assert rig.entries() == []


def test_what_nobody_uses_makes_room(rig: Rig) -> None:
    rig.load(rig.store(limit_bytes=28 << 10), name="old").keep()  # two files and their digests, of a page each
    store = rig.store(limit_bytes=28 << 10)
    loaded = rig.load(store)
    assert len(rig.entries()) == 2
    (rig.directory / "model.onnx").write_bytes(b"x" * 5000)
    assert rig.load(store).strategy == "copied"
    assert [name.partition(".")[0] for name in rig.entries()] == ["m@1", "m@1"], "the one that no process uses went"
    assert loaded.model_file is not None
    assert loaded.model_file.exists()
    assert [event["reason"] for event in rig.log.events("load.shm_removed")] == ["room is needed"]


def test_a_version_loaded_beside_itself_gets_a_place_of_its_own(rig: Rig) -> None:
    store = rig.store()
    first, second = rig.load(store), rig.load(store)
    assert first.model_file != second.model_file
    second.keep()
    second.release()
    assert len(rig.entries()) == 1, "two of the same are not kept"
    first.keep()
    first.release()
    assert len(rig.entries()) == 1


def test_two_processes_of_one_instance_leave_each_others_alone(rig: Rig) -> None:
    first, second = rig.store(), rig.store(beside=True)
    files = rig.files()
    found = version_files(rig.directory)
    making = first.entry(files, found, 13)
    assert making is not None
    assert making.digests is None
    second.sweep(set())
    other = second.entry(files, found, 13)
    assert other is not None
    assert making.directory.is_dir(), "it is being made"
    assert other.directory != making.directory
    other.end()
    assert making.directory.is_dir()
    assert not other.directory.exists()
    for name in ("model.onnx", "weights/part"):
        os.close(making.create(name))
    making.finish({})
    using = second.entry(files, found, 13)
    assert using is not None
    assert using.directory == making.directory
    making.end()
    assert making.directory.is_dir(), "the other one uses it"
    using.end()
    assert not making.directory.exists()


def test_what_another_process_uses_makes_no_room(rig: Rig) -> None:
    first, second = rig.store(limit_bytes=16 << 10), rig.store(limit_bytes=16 << 10, beside=True)
    files = rig.files()
    held = first.entry(files, version_files(rig.directory), 8 << 10)
    with open(held.create("model.onnx"), "wb") as file:
        file.write(bytes(12 << 10))
    with pytest.raises(ShmError, match="no room for 8192 bytes, 4096 too many"):
        second.entry(files, version_files(rig.directory), 8 << 10)
    assert held.directory.is_dir()


def test_chunked_is_not_copied(rig: Rig) -> None:
    assert rig.load(rig.store(), strategy=StrategyName.CHUNKED).strategy == StrategyName.CHUNKED


def test_instances_do_not_see_each_other(rig: Rig) -> None:
    rig.load(rig.store()).keep()
    assert rig.load(rig.store("ns.w2")).strategy == "copied"
    assert len(rig.entries()) == len(rig.entries("ns.w2")) == 1


def test_what_an_instance_left_that_does_not_come_back_goes_after_an_hour(rig: Rig) -> None:
    gone = rig.store("ns.gone")
    rig.load(gone).keep()
    rig.load(rig.store("ns.lives")).keep()
    gone.close()
    rig.store().sweep(set())
    assert len(rig.entries("ns.gone")) == 1, "it may come back"
    rig.now += ORPHAN_S - 1
    rig.store("ns.w3").sweep(set())
    assert len(rig.entries("ns.gone")) == 1
    rig.now += 2
    rig.store("ns.w4").sweep(set())
    assert rig.entries("ns.gone") == []
    assert len(rig.entries("ns.lives")) == 1
    assert [event["reason"] for event in rig.log.events("load.shm_removed")] == ["its worker is gone"]


def test_an_instance_that_came_back_starts_its_hour_anew(rig: Rig) -> None:
    first = rig.store("ns.back")
    rig.load(first).keep()
    first.close()
    rig.store().sweep(set())
    back = rig.store("ns.back")
    assert rig.load(back).strategy == "shm"
    back.close()
    rig.now += ORPHAN_S + 1
    rig.store("ns.w5").sweep(set())
    assert len(rig.entries("ns.back")) == 1


def test_what_a_killed_process_unpacked_is_removed_by_the_next(rig: Rig) -> None:
    killed = own_root(rig.place) / "weights" / ".process-1-abcd"
    alive = own_root(rig.place) / "weights" / ".process-2-abcd"
    rig.store().sweep(set())
    for path in (killed, alive):
        path.mkdir(0o700)
        (path / ".lock").touch(0o600)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(alive / ".lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    rig.store("ns.w6").sweep(set())
    assert not killed.exists()
    assert alive.exists()
    holder.communicate(b"", 10)


def test_a_load_that_fails_leaves_nothing_behind(rig: Rig) -> None:
    (rig.directory / "SHA256SUMS").write_text(f"{'0' * 64}  model.onnx\n")
    with pytest.raises(LoadError, match="its SHA-256 is"):
        rig.load(rig.store())
    assert rig.entries() == []


def test_sums_that_are_believed_need_no_digest(rig: Rig) -> None:
    sums = "".join(f"{'0' * 64}  {name}\n" for name in ("model.onnx", "weights/part"))
    (rig.directory / "SHA256SUMS").write_text(sums)
    first = rig.load(rig.store(), Verify.MANIFEST)
    first.keep()
    second = rig.load(rig.store(), Verify.MANIFEST)
    assert (first.strategy, second.strategy, second.bytes_read) == ("copied", "shm", 0)
    assert first.content_hash == second.content_hash
    second.keep()
    (rig.directory / "SHA256SUMS").unlink()
    third = rig.load(rig.store())
    assert (third.strategy, third.hashed_from) == ("shm", HashedFrom.BYTES), "it has not been hashed yet"
