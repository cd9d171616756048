"""How a fault keeps the state store of ``warmroute up`` away."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.pids import start_ticks
from sidecar.up.hold import held, hold, let_go


def test_a_store_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    socket = tmp_path / "state.sock"
    assert not held(socket)
    hold(socket)
    assert held(socket)
    assert let_go(socket)
    assert not held(socket)
    assert not let_go(socket)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "note",
    [
        json.dumps({"pid": 2**30, "ticks": 1}),
        json.dumps({"pid": 2**30, "ticks": None}),
        json.dumps({"pid": os.getpid(), "ticks": (start_ticks(os.getpid()) or 0) + 1}),
        json.dumps({"pid": os.getpid()}),
        json.dumps([os.getpid()]),
        "{",
        "",
    ],
    ids=["no-process", "no-process-no-ticks", "another-process", "no-ticks", "no-object", "half", "empty"],
)
def test_nobody_who_is_gone_holds_it(tmp_path: Path, note: str) -> None:
    (tmp_path / "state.sock.hold").write_text(note)
    assert not held(tmp_path / "state.sock")
