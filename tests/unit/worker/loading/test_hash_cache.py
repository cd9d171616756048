from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.worker_parts import ReadableLog
from worker.loading.digests import FileDigest
from worker.loading.hash_cache import MAX_ENTRIES, SETTLED_NS, HashCache
from worker.loading.private import PrivateDirectory, UntrustedError, own_root
from worker.loading.version_files import SourceFile, version_files


class Kept:
    """A version with one file of 3 bytes, and a cache beside it whose clock stands two seconds and more after it."""

    def __init__(self, tmp_path: Path) -> None:
        self.place = tmp_path / "shm"
        self.place.mkdir()
        self.directory = tmp_path / "v"
        self.directory.mkdir()
        self.path = self.directory / "model.onnx"
        self.path.write_bytes(b"abc")
        self.log = ReadableLog()
        self.digests = {"model.onnx": FileDigest(3, b"d" * 16, "aa")}

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return version_files(self.directory)

    def cache(self, after_ns: int = SETTLED_NS + 1) -> HashCache:
        (file,) = self.files
        wall_ns = max(file.key.mtime_ns, file.key.ctime_ns) + after_ns
        return HashCache(self.place, self.log, lambda: wall_ns)

    def remember(self, after_ns: int = SETTLED_NS + 1) -> None:
        self.cache(after_ns).remember(self.directory, self.files, self.digests)

    def recalled(self) -> dict[str, FileDigest]:
        return self.cache().recall(self.directory, self.files)

    def warnings(self) -> list[str]:
        return [event["error"] for event in self.log.events("load.hash_cache")]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_what_was_remembered_is_recalled_by_another_process(kept: Kept) -> None:
    assert kept.recalled() == {}
    kept.remember()
    assert kept.recalled() == kept.digests
    assert [path.name for path in (own_root(kept.place) / "hashes").iterdir()] != []
    assert kept.log.events() == []


@pytest.mark.parametrize("change", ["content", "inode", "mtime", "length"])
def test_a_file_that_was_touched_is_not_recalled(kept: Kept, change: str) -> None:
    kept.remember()
    status = kept.path.stat()
    if change == "content":  # the same length, and its time set back
        kept.path.write_bytes(b"abd")
        os.utime(kept.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "inode":
        (kept.directory / "new").write_bytes(b"abd")
        os.utime(kept.directory / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
        (kept.directory / "new").rename(kept.path)
    elif change == "mtime":
        os.utime(kept.path)
    else:
        kept.path.write_bytes(b"abcd")
    assert kept.recalled() == {}


def test_a_file_that_was_written_a_moment_ago_is_not_remembered(kept: Kept) -> None:
    kept.remember(after_ns=SETTLED_NS)
    assert kept.recalled() == {}


def test_a_copy_of_the_directory_is_another(kept: Kept) -> None:
    kept.remember()
    os.link(kept.path, kept.directory.parent / "elsewhere")
    assert kept.cache().recall(kept.directory.parent, kept.files) == {}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b'{"format":9,"block_bytes":1,"directory":"/","files":{}}', b"[" * 2000, b'{"x":' + b"[" * 100_000],
    ids=["empty", "nothing", "another format", "a list", "deep"],
)
def test_an_entry_that_is_not_one_is_passed_over(kept: Kept, raw: bytes) -> None:
    kept.remember()
    (entry,) = (own_root(kept.place) / "hashes").iterdir()
    entry.write_bytes(raw)
    assert kept.recalled() == {}
    kept.remember()
    assert kept.recalled() == kept.digests


@pytest.mark.parametrize("part", ["", "hashes"])
def test_what_others_may_write_to_is_not_believed(kept: Kept, part: str) -> None:
    kept.remember()
    path = own_root(kept.place) / part
    path.chmod(0o755)
    assert kept.recalled() == {}
    assert kept.warnings() == [f"{path}: open to other users (mode 755); it must be 700"]
    kept.remember()
    assert len(kept.warnings()) == 2


def test_another_users_directory_is_not_believed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.remember()
    me = os.geteuid()
    own_root(kept.place).rename(kept.place / f"warmroute-{me + 1}")
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert kept.recalled() == {}
    assert kept.warnings() == [
        f"{kept.place}/warmroute-{me + 1}: belongs to user {me}, not to {me + 1}, which this process runs as"
    ]


def test_a_link_is_not_followed(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    own_root(kept.place).symlink_to(tmp_path / "theirs")
    kept.remember()
    assert list((tmp_path / "theirs").iterdir()) == []
    assert len(kept.warnings()) == 1


def test_a_linked_or_foreign_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with PrivateDirectory(tmp_path / "mine") as mine:
        mine.write("a", b"content")
        assert mine.read("a", 100) == b"content"
        assert mine.read("none", 100) is None
        with pytest.raises(UntrustedError, match="mine/a: not a file of at most 6 bytes"):
            mine.read("a", 6)
        (tmp_path / "mine" / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(OSError, match="link"):
            mine.read("link", 100)
        os.mkfifo(tmp_path / "mine" / "pipe", 0o600)
        with pytest.raises(UntrustedError, match="mine/pipe: not a file"):
            mine.read("pipe", 100)
        mine.remove("a")
        mine.remove("a")
        assert mine.read("a", 100) is None


def test_the_oldest_go_when_there_are_too_many(kept: Kept) -> None:
    kept.remember()
    folder = own_root(kept.place) / "hashes"
    (first,) = folder.iterdir()
    for number in range(MAX_ENTRIES):
        (folder / f"{number}.json").touch(mode=0o600)
        os.utime(folder / f"{number}.json", (number, number))
    os.utime(first, (5.5, 5.5))
    kept.remember()
    assert len(list(folder.iterdir())) == MAX_ENTRIES
    assert first.exists(), "it has just been written again"
    assert not (folder / "0.json").exists()


def test_without_shared_memory_nothing_is_remembered(kept: Kept) -> None:
    kept.place.rmdir()
    kept.remember()
    assert kept.recalled() == {}
    assert kept.log.events() == []
