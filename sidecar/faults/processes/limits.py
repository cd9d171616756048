"""Limits of another process (prlimit(2)): only the soft one is touched, so it can be given back without privileges."""

from __future__ import annotations

import resource

from sidecar.faults.processes.fault import Memo, ProcessFaultError
from sidecar.pids import start_ticks


def limit(kind: str, memo: Memo, which: int, value: int) -> Memo:
    """Lower limit ``which`` of the process of ``memo`` to ``value``, and no lower than it is; return what it was.

    Raises:
        ProcessFaultError: the kernel refuses.
    """
    pid = int(memo["pid"])
    try:
        soft, hard = resource.prlimit(pid, which)
        wanted = value if soft == resource.RLIM_INFINITY else min(value, soft)
        resource.prlimit(pid, which, (wanted, hard))
    except OSError as error:
        raise ProcessFaultError(f"{kind}: pid {pid}: its limits cannot be set: {error.strerror}") from error
    return memo | {"which": which, "soft": soft}


def restore(memo: Memo) -> bool:
    """Give the process its soft limit back, as far as its hard one goes; False where it is gone.

    Raises:
        ProcessFaultError: the kernel refuses.
    """
    pid, which, soft = int(memo["pid"]), int(memo["which"]), int(memo["soft"])
    if start_ticks(pid) != memo["ticks"]:
        return False
    try:
        _, hard = resource.prlimit(pid, which)
        resource.prlimit(pid, which, (soft, hard))
    except ProcessLookupError:
        return False
    except OSError as error:
        name = "AS" if which == resource.RLIMIT_AS else "FSIZE"
        raise ProcessFaultError(
            f"pid {pid}: RLIMIT_{name} is still lowered ({error.strerror}): start the process again"
        ) from error
    return True
