"""A file is seen to change once it is whole, by whatever way it was put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.watch import LOOK_S, SETTLED_S, FileWatch, Signature


class Scripted:
    def __init__(self) -> None:
        self.now: Signature = (1, 1, 1, 1)
        self.looks = 0

    def __call__(self, path: str) -> Signature:
        self.looks += 1
        return self.now


def test_a_change_is_told_once_after_it_has_settled() -> None:
    file = Scripted()
    watch = FileWatch("f", 0.0, file)
    assert not watch.changed(LOOK_S - 0.01)
    assert file.looks == 1  # not due: not even looked at
    assert not watch.changed(LOOK_S)
    file.now = (1, 1, 2, 2)
    assert not watch.changed(watch.due)
    file.now = (1, 1, 3, 3)  # it is still being written
    assert not watch.changed(watch.due)
    assert not watch.changed(watch.due - 0.01)
    assert watch.due == pytest.approx(2 * LOOK_S + 2 * SETTLED_S)
    assert watch.changed(watch.due)
    assert not watch.changed(watch.due)


def test_one_that_comes_back_to_what_it_was_has_not_changed() -> None:
    file = Scripted()
    watch = FileWatch("f", 0.0, file)
    file.now = None
    assert not watch.changed(watch.due)
    file.now = (1, 1, 1, 1)
    assert not watch.changed(watch.due)
    assert not watch.changed(watch.due)
    assert watch.due > 1.0


def test_what_was_just_read_is_known() -> None:
    file = Scripted()
    watch = FileWatch("f", 0.0, file)
    file.now = (1, 1, 2, 2)
    watch.read(0.1)
    assert not any(watch.changed(watch.due) for _ in range(4))
    file.now = (1, 1, 3, 3)  # it was being written while it was read
    assert [watch.changed(watch.due) for _ in range(2)] == [False, True]


def test_the_slowest_case_leaves_time_for_the_rest_of_a_reload() -> None:
    assert LOOK_S + SETTLED_S + SETTLED_S < 1.0


def write(path: Path) -> None:
    path.write_text("another")


def rename(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("content")
    other.replace(path)


def swap_link(path: Path) -> None:
    """As the kubelet does: the file is a link into a link to a directory, and the latter is replaced."""
    directory = path.resolve().parent
    second = directory.with_name("second")
    second.mkdir()
    (second / "file").write_text("content")
    link = path.parent / "new"
    link.symlink_to(second)
    link.rename(path.parent / "data")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [write, rename, swap_link, remove])
def test_real_files(tmp_path: Path, change: object) -> None:
    first = tmp_path / "first"
    first.mkdir()
    (first / "file").write_text("content")
    os.utime(first / "file", ns=(1, 1))
    (tmp_path / "data").symlink_to(first)
    path = tmp_path / "file"
    path.symlink_to(Path("data") / "file")
    watch = FileWatch(str(path), 0.0)
    assert not watch.changed(watch.due)
    assert callable(change)
    change(path)
    assert [watch.changed(watch.due) for _ in range(3)] == [False, True, False]
