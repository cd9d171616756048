"""``warmroute version``."""

from __future__ import annotations

import platform
from importlib import metadata


def version() -> int:
    """Print the version of warmroute and of the Python it runs on."""
    print(f"warmroute {installed_version()} (Python {platform.python_version()})")
    return 0


def installed_version() -> str:
    """Return the version of the installed distribution, or say that there is none (run from a source tree)."""
    try:
        return metadata.version("warmroute")
    except metadata.PackageNotFoundError:
        return "(not installed)"
