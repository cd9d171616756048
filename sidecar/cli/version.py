"""``warmroute version``."""

from __future__ import annotations

from sidecar.version import described


def version() -> int:
    """Print the version of warmroute, whether it is compiled, and the Python it runs on."""
    print(described())
    return 0
