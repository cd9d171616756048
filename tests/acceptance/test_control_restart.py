"""A control process that is killed: nobody notices, and it is back soon. That is measured: nothing runs beside it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.sidecars import until
from tests.support.up_fleet import fleet

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(60)]


def test_a_killed_control_process_costs_no_request_and_is_back(tmp_path: Path) -> None:
    with fleet(tmp_path) as up:
        os.kill(up.places["control_pid"], signal.SIGKILL)
        assert [up.infer() for _ in range(20)] == [200] * 20

        def answers() -> bool:
            try:
                return up.ask(up.places["admin"], "/readyz")[0] == 200
            except OSError:
                return False

        until(answers, "the admin API is back and ready", within_s=2.0)
        up.process.send(signal.SIGTERM)
        assert up.process.wait() == 0
        up.assert_nothing_is_left()
