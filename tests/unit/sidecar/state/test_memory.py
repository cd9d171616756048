from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sidecar.faults.rules import FaultRule
from sidecar.state.memory import Memory, Remembered

SOMETHING = Remembered(("a", "b"), (FaultRule("f", "delay", 0.5, until=99.5, delay_ms=3.0),))


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("test", 0)
    yield made
    os.close(made)


def test_what_was_saved_last_is_there_for_the_next_process(fd: int) -> None:
    assert Memory(fd).load() == Remembered()
    Memory(fd).save(Remembered(tuple(f"w{number}" for number in range(100))))
    Memory(fd).save(SOMETHING)
    assert Memory(fd).load() == SOMETHING


@pytest.mark.parametrize("at", [0, 9, 14, 30])
def test_what_is_not_whole_is_forgotten_and_said(fd: int, at: int, caplog: pytest.LogCaptureFixture) -> None:
    Memory(fd).save(SOMETHING)
    (byte,) = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte ^ 0xFF]), at)
    assert Memory(fd).load() == Remembered()
    assert caplog.messages == ["memory.unreadable"]


def test_without_a_file_nothing_is_kept() -> None:
    Memory(None).save(SOMETHING)
    assert Memory(None).load() == Remembered()
