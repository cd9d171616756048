"""What runs: the version of warmroute, and whether its hot modules are compiled (docs/compiled.md)."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from importlib.machinery import SOURCE_SUFFIXES
from importlib.util import find_spec


def installed_version() -> str:
    """Return the version of the installed distribution, or say that there is none (run from a source tree)."""
    try:
        return metadata.version("warmroute")
    except metadata.PackageNotFoundError:
        return "(not installed)"


@cache
def is_compiled() -> bool:
    """Return whether this interpreter takes extension modules where both are there, which is all of them or none."""
    found = find_spec("router.cluster")
    return found is not None and not str(found.origin).endswith(tuple(SOURCE_SUFFIXES))


def described() -> str:
    """Return version, build and interpreter in one line."""
    build = "compiled" if is_compiled() else "interpreted"
    return f"warmroute {installed_version()} ({build}) on Python {platform.python_version()}"
