"""Out of memory: the process gets no more address space, so what it asks for beyond what it has is refused."""

from __future__ import annotations

import resource
from typing import ClassVar

from sidecar.faults.processes.fault import Memo, ProcessFault, ProcessFaultError, Reach
from sidecar.faults.processes.limits import limit, restore
from sidecar.faults.processes.target import identified, status_of

MAX_HEADROOM_MB = 65536.0


class OutOfMemory:
    """Lowers the process's limit of address space (RLIMIT_AS) to what it has and ``headroom_mb`` (0) more.

    What the kernel's own out-of-memory killer does is a kill: kind ``kill``.
    """

    SUBJECT: ClassVar[str] = "memory"
    NEEDS: ClassVar[Reach] = Reach.PROCESS
    LEAVES: ClassVar[Reach] = Reach.ANSWERS
    PARAMETERS: ClassVar[tuple[str, ...]] = ("headroom_mb",)
    UNDONE: ClassVar[str] = "the process gets memory again"
    LASTS: ClassVar[bool] = True

    def begin(self, fault: ProcessFault) -> Memo:
        """Lower the limit."""
        headroom_mb = 0.0 if fault.headroom_mb is None else fault.headroom_mb
        if not 0 <= headroom_mb <= MAX_HEADROOM_MB:
            raise ProcessFaultError(
                f"{fault.kind}: headroom_mb {headroom_mb:g}: must be from 0 to {MAX_HEADROOM_MB:g} MB"
            )
        memo = identified(fault)
        size_kb, _, unit = status_of(int(memo["pid"]), "VmSize").partition(" ")
        if unit != "kB" or not size_kb.isdigit():
            raise ProcessFaultError(f"{fault.kind}: pid {memo['pid']}: the kernel does not say how much memory it has")
        return limit(fault.kind, memo, resource.RLIMIT_AS, int(size_kb) * 1024 + int(headroom_mb * 1e6))

    def step(self, memo: Memo, now: float) -> float | None:
        """Nothing goes on."""
        return None

    def end(self, memo: Memo) -> bool:
        """Give it back the limit that it had."""
        return restore(memo)
