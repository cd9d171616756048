"""What a process uses, and what it has: read from files that a test can write."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
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


# In a process of its own: in this one, what other tests left to the collector may be closed at any moment.
COMES_AND_GOES = """
from pathlib import Path
from sidecar.meters import Meters
meters = Meters()
before = meters.open_files()
held = [Path("/dev/null").open() for _ in range(50)]
during = meters.open_files()
for one in held:
    one.close()
after = meters.open_files()
Meters._counted = staticmethod(lambda files: 0)
print(before, during, after, meters.open_files())
"""


def test_descriptors_are_counted_as_they_come_and_go() -> None:
    said = subprocess.run(
        [sys.executable, "-c", COMES_AND_GOES], capture_output=True, text=True, check=True, timeout=60
    )
    before, during, after, listed = map(int, said.stdout.split())
    assert 3 < before <= max_files()
    assert (during, after) == (before + 50, before)
    assert after <= listed <= after + 2  # an older kernel that does not count is asked for the list, which takes one


def test_resident_memory_grows_with_what_is_written(meters: Meters) -> None:
    before = meters.resident_bytes()
    with mmap.mmap(-1, 64 * MIB) as block:  # the heap may give what it had before, which is resident already
        for at in range(0, len(block), 4096):
            block[at] = 1
        assert 60 * MIB < meters.resident_bytes() - before < 80 * MIB


def test_without_proc_nothing_is_known_and_nothing_breaks(tmp_path: Path) -> None:
    meters = Meters(tmp_path)
    assert (meters.resident_bytes(), meters.open_files()) == (0, 0)
    meters.close()


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
