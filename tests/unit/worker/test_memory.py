from __future__ import annotations

from pathlib import Path

import pytest

from worker.memory import HostMemory, Memory

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"
KB = 1024


def host(tmp_path: Path, group: str | None = "/a/b") -> tuple[Path, Path]:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (groups / "a" / "b").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    if group is not None:
        (proc / "self" / "cgroup").write_text(f"0::{group}\n")
    return proc, groups


def limit(group: Path, limit: str, current: int = 0, inactive: int = 0) -> None:
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    assert HostMemory(*host(tmp_path)).read() == Memory(600 * KB, 1000 * KB)
    assert HostMemory(*host(tmp_path / "other", group=None)).read() == Memory(600 * KB, 1000 * KB)


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    proc, groups = host(tmp_path)
    limit(groups / "a" / "b", "max", 400 * KB)
    limit(groups / "a", str(500 * KB), 300 * KB, 50 * KB)
    assert HostMemory(proc, groups).read() == Memory(250 * KB, 500 * KB)


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    proc, groups = host(tmp_path)
    limit(groups / "a" / "b", str(100 * KB), 150 * KB)
    assert HostMemory(proc, groups).read() == Memory(0, 100 * KB)


def test_a_limit_over_the_machines_memory_changes_nothing(tmp_path: Path) -> None:
    proc, groups = host(tmp_path, "/a/b")
    limit(groups / "a" / "b", str(10**12))
    assert HostMemory(proc, groups).read() == Memory(600 * KB, 1000 * KB)


@pytest.mark.parametrize("text", ["", "MemTotal: x kB\nMemAvailable: 1 kB\n"])
def test_unknown_is_none(tmp_path: Path, text: str) -> None:
    proc, groups = host(tmp_path)
    (proc / "meminfo").write_text(text)
    assert HostMemory(proc, groups).read() is None


def test_this_machine_has_some() -> None:
    memory = HostMemory().read()
    assert memory is not None
    assert 0 < memory.free_bytes <= memory.total_bytes
