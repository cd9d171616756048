"""How a worker measures its processors' load."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from worker.processor import CpuLoad, usable_cores


class Machine:
    def __init__(self, cores: float) -> None:
        self.now = 10.0
        self.used = 3.0
        self.load = CpuLoad(cores, lambda: self.now, lambda: self.used)

    def after(self, seconds: float, used_s: float) -> float | None:
        self.now += seconds
        self.used += used_s
        return self.load.read()


def test_the_load_is_the_part_of_all_cores_since_it_was_last_asked() -> None:
    machine = Machine(4)
    assert machine.after(0.2, 0.8) is None
    assert machine.after(0.8, 0.2) == pytest.approx(0.25)
    assert machine.after(0.4, 1.6) == pytest.approx(0.25)  # too soon: what was measured stands
    assert machine.after(0.6, 2.4) == 1.0
    assert machine.after(1.0, 0.0) == 0.0
    assert machine.after(1.0, 9.0) == 1.0
    assert machine.after(1.0, -1.0) == 0.0


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({}, 8.0),
        ({"a/b": "max 100000"}, 8.0),
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "200000 100000", "a/b": "max 100000"}, 2.0),
        ({"a": "50000 100000", "a/b": "200000 100000"}, 0.5),
        ({"a": "9900000 100000"}, 8.0),
        ({"a": "0 100000"}, 8.0),
        ({"a": "100000 0"}, 8.0),
        ({"a": "much"}, 8.0),
        ({"a": "one two"}, 8.0),
        ({"a": ""}, 8.0),
    ],
)
def test_control_groups_lower_the_cores(tmp_path: Path, limits: dict[str, str], cores: float) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    for name, text in limits.items():
        (groups / name / "cpu.max").write_text(text)
    assert usable_cores(8, proc, groups) == cores


def test_this_machine_has_some() -> None:
    cores = usable_cores(os.cpu_count() or 1)
    assert 0 < cores <= (os.cpu_count() or 1)
    load = CpuLoad(cores, iter((0.0, 1.0)).__next__, time.process_time).read()
    assert load is not None
    assert 0 <= load <= 1
