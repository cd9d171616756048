"""A fault of the configuration ends at its time, whatever becomes of the processes meanwhile, and stays ended."""

from __future__ import annotations

import http.client
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.http_origin import Echo, HttpOrigin
from tests.support.product import Sidecar, running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.roomy, pytest.mark.timeout(60)]

FOR_S = 4.0


def status(sidecar: Sidecar) -> int:
    """Return the status of a request, 0 where nobody answers just now."""
    connection = http.client.HTTPConnection(sidecar.listen, timeout=5)
    try:
        connection.request("POST", "/", b"x")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def in_force(sidecar: Sidecar) -> dict[str, float]:
    """Return how long each fault has left."""
    return {fault["id"]: fault["left_s"] for fault in sidecar.json("/faults")["faults"]}


def kill(sidecar: Sidecar, name: str) -> None:
    """Kill one of its processes, and wait for the next one to be there."""
    old = sidecar.process.child(name)
    os.kill(old, signal.SIGKILL)
    until(lambda: sidecar.process.child(name) != old, "another one")
    until(sidecar.ready, "ready")


def test_a_fault_outlives_processes_and_not_its_time(tmp_path: Path) -> None:
    rule = {"kind": "abort", "status": 418, "id": "game-day", "for_s": FOR_S}
    with HttpOrigin(Echo) as origin:
        began = time.monotonic()
        models = [{"name": "m", "default": True, "endpoints": [origin.url]}]
        with running(tmp_path, settings={"models": models, "faults": {"rules": [rule]}}, processes=1) as sidecar:
            until(lambda: status(sidecar) == 418, "it strikes")
            kill(sidecar, "data-0")
            until(lambda: status(sidecar) == 418 or time.monotonic() > began + FOR_S, "it strikes there, too")
            kill(sidecar, "control")
            left = in_force(sidecar)
            assert left.get("game-day", 0.0) < FOR_S - 0.1  # what it had left, and not its time anew
            until(lambda: status(sidecar) == 200, "it is over")
            until(lambda: not in_force(sidecar), "and known to be")
            kill(sidecar, "control")
            kill(sidecar, "data-0")
            assert in_force(sidecar) == {}
            assert status(sidecar) == 200
