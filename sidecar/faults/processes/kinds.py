"""The kinds of process faults, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.processes.disk import FullDisk
from sidecar.faults.processes.kill import Kill
from sidecar.faults.processes.memory import OutOfMemory
from sidecar.faults.processes.slow import Slow
from sidecar.faults.processes.stop import Stop
from sidecar.faults.processes.store_down import StoreStop
from sidecar.faults.processes.store_read_only import StoreFailover, StoreReadOnly
from sidecar.faults.processes.store_refused import StoreRefused

if TYPE_CHECKING:
    from sidecar.faults.processes.fault import Act

KINDS: dict[str, Act] = {
    "full_disk": FullDisk(),
    "kill": Kill(),
    "out_of_memory": OutOfMemory(),
    "slow": Slow(),
    "stop": Stop(),
    "store_failover": StoreFailover(),
    "store_pause": Stop(),
    "store_read_only": StoreReadOnly(),
    "store_refused": StoreRefused(),
    "store_restart": Kill(),
    "store_stop": StoreStop(),
}
