from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.loading import StrategyName
from worker.loading.auto import SMALL_BYTES, Situation, choose, is_far, look
from worker.loading.mapping import Mapping
from worker.loading.version_files import version_files
from worker.memory import Memory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("situation", "strategy"),
    [
        (Situation(GIB, 8 * GIB, 0.0), StrategyName.POPULATE),
        (Situation(GIB, None, None), StrategyName.POPULATE),
        (Situation(GIB, 8 * GIB, 0.9969), StrategyName.POPULATE),
        (Situation(GIB, 8 * GIB, 0.997), StrategyName.MMAP),
        (Situation(GIB, 8 * GIB, 1.0, far=True), StrategyName.FULL),
        (Situation(SMALL_BYTES, 8 * GIB, 1.0), StrategyName.FULL),
        (Situation(SMALL_BYTES + 1, 8 * GIB, 1.0), StrategyName.MMAP),
        (Situation(4 * GIB, 5 * GIB, 1.0), StrategyName.MMAP),
        (Situation(4 * GIB + 1, 5 * GIB, 1.0), StrategyName.CHUNKED),
        (Situation(4 * GIB, 0, None, far=True), StrategyName.CHUNKED),
        (Situation(0, 0, 1.0), StrategyName.FULL),
    ],
)
def test_the_choice(situation: Situation, strategy: StrategyName) -> None:
    assert choose(situation) is strategy


def test_the_situation_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").write_bytes(b"x" * 5000)
    situation = look(version_files(tmp_path), Memory(7, 9))
    assert (situation.total_bytes, situation.free_bytes) == (10_000, 7)
    assert situation.cached_ratio in (1.0, None)
    assert not situation.far


def test_far_file_systems_are_told_by_the_kernels_table(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "36 35 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n"
        "37 35 0:42 / /models rw shared:2 - nfs4 server:/models rw\n"
        "38 35 0:43 / /hub rw - fuse.gcsfuse bucket rw\n"
    )
    far = {minor: is_far(os.makedev(0, minor), table) for minor in (41, 42, 43)}
    assert far == {41: False, 42: True, 43: True}
    assert not is_far(os.makedev(8, 1), table)
    assert not is_far(os.makedev(8, 1), tmp_path / "none")


def test_pages_of_other_users_files_are_counted_by_what_this_process_brought_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs"
    path.write_bytes(b"x" * 40_000)
    path.chmod(0o444)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    mapping = Mapping(path)
    assert mapping.held_pages() == (0, 10)
    assert mapping.missing() == [(0, 40_000)]
    mapping.populate(8192, 4096)
    assert mapping.held_pages() != (0, 10)
    mapping.populate(0, 40_000)
    assert mapping.held_pages() == (10, 10)
    assert mapping.missing() == []
    mapping.close()
    assert look(version_files(tmp_path), None).cached_ratio is None
