"""Faults of whole processes: begun by who runs a drill, and ended by a keeper, a process that outlives any death of it.

:class:`ProcessFault` says what happens to which process and for how long; :data:`KINDS` names the kinds, one file each.
:class:`FaultKeeper` starts the keeper::

    with FaultKeeper() as keeper:
        kept = keeper.begin(ProcessFault("stop", pid=worker_pid, for_s=10))
        ...
        kept.end()

Only a process that is named, and belongs to the user who asks, is touched. The sidecar's own processes import none of
this.
"""

from __future__ import annotations

from sidecar.faults.processes.fault import MAX_FOR_S, ProcessFault, ProcessFaultError
from sidecar.faults.processes.keeper import MAX_FAULTS, FaultKeeper, KeptFault
from sidecar.faults.processes.kinds import KINDS

__all__ = ["KINDS", "MAX_FAULTS", "MAX_FOR_S", "FaultKeeper", "KeptFault", "ProcessFault", "ProcessFaultError"]
