from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading.digests import BLOCK_BYTES
from worker.loading.huge_pages import Copy
from worker.loading.mapping import Mapping, huge_bytes
from worker.loading.model_loader import ModelLoader
from worker.loading.own_memory import FileId, mapped_areas
from worker.loading.shm import ShmStore
from worker.stages import Stages
from worker.store import ModelFiles

SHARED = Path("/dev/shm")
HUGE = huge_bytes()
TAIL = 4097

pytestmark = pytest.mark.skipif(
    not HUGE or BLOCK_BYTES % max(HUGE, 1) != 0, reason="the kernel has no huge pages, or of another size"
)


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED) as path:
        yield Path(path)


class Copied:
    """A copy of one block, two huge pages and a tail, made block by block."""

    def __init__(self, path: Path, collapse: Callable[[Mapping, int, int], None]) -> None:
        self.content = os.urandom(HUGE) * (BLOCK_BYTES // HUGE + 2) + b"t" * TAIL
        self.path = path
        self.told: list[str] = []
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        copy = Copy(descriptor, len(self.content), "the copy", self.told.append, collapse)
        for offset in range(0, len(self.content), BLOCK_BYTES):
            block = memoryview(self.content)[offset : offset + BLOCK_BYTES]
            copy.begin(offset, len(block))
            copy.write(block, offset)
        copy.close()


def as_huge_mapped(mapping: Mapping) -> int:
    """Return how many bytes of a mapping this process has mapped by huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith(f"{mapping.address:x}-"):
            inside = True
        elif inside and line.startswith(("ShmemPmdMapped:", "FilePmdMapped:")) and int(line.split()[1]):
            return int(line.split()[1]) << 10
        elif inside and line.startswith("VmFlags:"):
            return 0
    return 0


def test_a_mapping_is_where_a_huge_page_can_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(3 * HUGE + TAIL)
    path.write_bytes(content)
    mapping = Mapping(path, aligned=True)
    assert mapping.address % HUGE == 0
    assert ctypes.string_at(mapping.address, len(content)) == content
    assert mapping.populate(0, len(content))
    status = path.stat()
    file = FileId(status.st_dev, status.st_ino)
    (area,) = mapped_areas({file: path})[file]
    assert area.start == mapping.address
    mapping.close()
    assert mapped_areas({file: path}) == {}


def test_what_is_smaller_than_a_huge_page_is_mapped_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    mapping = Mapping(path, aligned=True)
    assert ctypes.string_at(mapping.address, 3) == b"abc"
    mapping.close()


def test_a_copy_in_shared_memory_has_huge_pages(shared: Path) -> None:
    copied = Copied(shared / "copy", Mapping.collapse)
    assert copied.path.read_bytes() == copied.content
    mapping = Mapping(copied.path, aligned=True)
    for page in range(0, len(copied.content), 4096):
        assert ctypes.string_at(mapping.address + page, 1) == copied.content[page : page + 1]
    mapped_bytes = as_huge_mapped(mapping)
    mapping.close()
    if copied.told:
        pytest.skip(f"the kernel makes none: {copied.told}")
    assert mapped_bytes >= HUGE, "a page that somebody looked at in passing may be missing, not all"


def test_where_the_kernel_refuses_the_copy_has_small_pages_and_that_is_told(shared: Path) -> None:
    asked = []

    def refuse(_: Mapping, offset: int, length: int) -> None:
        asked.append((offset, length))
        raise OSError(errno.EINVAL, "Invalid argument")

    copied = Copied(shared / "copy", refuse)
    assert copied.path.read_bytes() == copied.content
    assert copied.told == ["Invalid argument"]
    assert asked == [(0, BLOCK_BYTES)], "whom the kernel has refused once is not asked again"


def test_what_fails_in_passing_is_asked_again_with_the_next_block(shared: Path) -> None:
    asked = []

    def fail(_: Mapping, offset: int, length: int) -> None:
        asked.append((offset, length))
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    copied = Copied(shared / "copy", fail)
    assert copied.path.read_bytes() == copied.content
    assert copied.told == []
    assert asked == [(0, BLOCK_BYTES), (BLOCK_BYTES, 2 * HUGE)], "of the tail there is no whole page"


def test_what_is_smaller_than_a_huge_page_is_not_asked_for(shared: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    descriptor = os.open(shared / "copy", os.O_RDWR | os.O_CREAT, 0o600)
    copy = Copy(descriptor, 3, "the copy", collapse=never)
    copy.begin(0, 3)
    copy.write(memoryview(b"abc"), 0)
    copy.close()
    assert (shared / "copy").read_bytes() == b"abc"


def test_a_version_is_copied_whole_by_several_threads(tmp_path: Path, shared: Path) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    content = os.urandom(HUGE) * (2 * BLOCK_BYTES // HUGE) + b"t" * TAIL
    (directory / "model.onnx").write_bytes(b"graph")
    (directory / "weights").write_bytes(content)
    store = ShmStore(shared, "ns.w1", ReadableLog(), keep=True, limit_bytes=1 << 30)
    files = ModelFiles("m", "1", directory, directory / "model.onnx")
    loaded = ModelLoader(shm=store, threads=2).load(files, lambda *_: None, Cancellation(), Stages())
    assert loaded.strategy == "copied"
    assert loaded.placed(files).in_shared_memory
    assert loaded.model_file is not None
    assert loaded.model_file.with_name("weights").read_bytes() == content
    loaded.release()
    store.close()


def test_small_pages_are_told_once_for_each_reason(shared: Path) -> None:
    log = ReadableLog()
    store = ShmStore(shared, "ns.w1", log, keep=True)
    for reason in ("Invalid argument", "Cannot allocate memory", "Invalid argument"):
        store.tell_small_pages(reason)
    told = [event["reason"] for event in log.events("load.small_pages")]
    assert told == ["Invalid argument", "Cannot allocate memory"]
