"""The kinds of process faults, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.processes.kill import Kill
from sidecar.faults.processes.slow import Slow
from sidecar.faults.processes.stop import Stop

if TYPE_CHECKING:
    from sidecar.faults.processes.fault import Act

KINDS: dict[str, Act] = {
    "kill": Kill(),
    "slow": Slow(),
    "stop": Stop(),
}
