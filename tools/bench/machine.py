"""Where a run took place: what a reader needs to know before comparing it with another."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from datetime import UTC, datetime
from pathlib import Path


def described() -> dict[str, str]:
    """Return the facts, in the order in which they are printed."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": f"{platform.python_version()}, {_build()}",
        "compiler": platform.python_compiler(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _build() -> str:
    """Return how the interpreter was built: what moves its speed by a tenth and more."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    optimised = (
        "profile-guided" if "--enable-optimizations" in arguments else "built without profile-guided optimisation"
    )
    lto = "link-time optimised" if "--with-lto" in arguments else "without link-time optimisation"
    where = "the system's" if sys.base_prefix == "/usr" else "not the system's"
    return f"{optimised}, {lto}, {where}"
