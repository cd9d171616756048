"""What a process uses, and what it has: read from files that a test can write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidecar.meters import Meters, max_files, memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@pytest.fixture
def meters() -> Iterator[Meters]:
    made = Meters()
    yield made
    made.close()


def test_descriptors_are_counted_as_they_come_and_go(meters: Meters) -> None:
    before = meters.open_files()
    assert 3 < before <= max_files()
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(Path("/dev/null").open())
        assert meters.open_files() == before + 50
    assert meters.open_files() == before


def test_resident_memory_grows_with_what_is_written(meters: Meters) -> None:
    before = meters.resident_bytes()
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    assert 60 * MIB < meters.resident_bytes() - before < 80 * MIB


def test_without_proc_nothing_is_known_and_nothing_breaks(tmp_path: Path) -> None:
    meters = Meters(tmp_path)
    assert (meters.resident_bytes(), meters.open_files()) == (0, 0)
    meters.close()


def test_an_older_kernel_that_does_not_count_is_asked_for_the_list(
    meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = meters.open_files()
    monkeypatch.setattr(Meters, "_counted", staticmethod(lambda files: 0))
    assert counted <= meters.open_files() <= counted + 2  # the listing itself takes one


def group(tmp_path: Path, lines: str, **limits: str) -> int:
    """Write a control group's files and return what is found. ``limits``: path with ``__`` for slashes."""
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    proc.mkdir()
    (proc / "cgroup").write_text(lines)
    for name, value in limits.items():
        path = groups / name.replace("__", "/").replace("memory_max", "memory.max")
        path = Path(str(path).replace("limit_in_bytes", "memory.limit_in_bytes"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    return memory_bytes(proc, groups)


def test_the_least_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    found = group(
        tmp_path,
        "0::/pods/one\n",
        pods__one__memory_max="max",
        pods__memory_max=str(512 * MIB),
        memory_max=str(900 * MIB),
    )
    assert found == min(MACHINE, 512 * MIB)


def test_inside_a_container_only_the_top_may_be_there(tmp_path: Path) -> None:
    assert group(tmp_path, "0::/outside/of/here\n", memory_max=str(256 * MIB)) == 256 * MIB


def test_version_one_has_a_tree_of_its_own_and_a_number_for_no_limit(tmp_path: Path) -> None:
    found = group(
        tmp_path,
        "9:name=systemd:/\n4:cpu,memory:/one\n0::/\n",
        memory__one__limit_in_bytes=str(300 * MIB),
        memory__limit_in_bytes="9223372036854771712",
    )
    assert found == 300 * MIB


@pytest.mark.parametrize("text", ["max", "nonsense", ""])
def test_no_limit_is_the_machine_s_memory(tmp_path: Path, text: str) -> None:
    assert group(tmp_path, "0::/\n", memory_max=text) == MACHINE


def test_this_machine_has_some_memory() -> None:
    assert 0 < memory_bytes() <= MACHINE
