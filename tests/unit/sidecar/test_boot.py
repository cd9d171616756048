"""Plans in memory files: what is read is always one plan, whole, however often and whenever another is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest

from sidecar import boot
from sidecar.settings import Settings


def plan(number: int) -> boot.SupervisorPlan:
    """Return a plan whose parts all tell its number, of a length that goes up and down."""
    models = [{"name": f"m{number}", "endpoints": [f"http://h{number}:1"] * (1 + number * 7 % 40)}]
    document = {"version": 1, "listeners": [{"address": f"h{number}:1"}], "models": models}
    return boot.SupervisorPlan(number, msgspec.convert(document, Settings), notify_socket=str(number))


@pytest.fixture
def fd() -> Iterator[int]:
    fd = boot.write_plan(plan(0))
    yield fd
    os.close(fd)


def test_a_plan_is_read_once_and_again_when_it_is_another(fd: int) -> None:
    file = boot.PlanFile(fd)
    assert file.read() == plan(0)
    assert file.newer() is None
    boot.rewrite_plan(fd, plan(1))
    assert file.newer() == plan(1)
    assert file.newer() is None
    boot.rewrite_plan(fd, plan(1))
    assert file.newer() == plan(1), "written again: the same, but told"
    assert boot.PlanFile(fd).read() == plan(1)


def test_half_a_plan_is_none(fd: int) -> None:
    file = boot.PlanFile(fd)
    file.read()
    os.pwrite(fd, b"{}", 40)  # a writer that was stopped after its first bytes
    assert file.newer() is None
    assert boot.PlanFile(fd).newer() is None
    boot.rewrite_plan(fd, plan(2))
    assert file.newer() == plan(2)


def test_what_is_read_while_others_are_written_is_always_whole(fd: int) -> None:
    done = threading.Event()

    def write() -> None:
        for number in range(1, 1500):
            boot.rewrite_plan(fd, plan(number))
        done.set()

    writer = threading.Thread(target=write)
    file = boot.PlanFile(fd)
    last = 0
    writer.start()
    while not done.is_set():
        found = file.newer()
        if found is not None:
            assert isinstance(found, boot.SupervisorPlan)
            assert found == plan(found.parent_pid)
            assert found.parent_pid >= last
            last = found.parent_pid
    writer.join()
    assert (file.newer() or plan(1499)) == plan(1499)


def test_a_descriptor_without_a_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_READ_S", 0.01)
    fd = os.memfd_create("empty", 0)
    try:
        with pytest.raises(ValueError, match="holds no plan"):
            boot.PlanFile(fd).read()
    finally:
        os.close(fd)
