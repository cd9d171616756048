"""What the kernel of this machine says of itself under ``/proc/sys``."""

from __future__ import annotations

from pathlib import Path

FASTOPEN_SERVER = 2
"""The bit of net.ipv4.tcp_fastopen that lets servers accept data in a SYN (tcp(7))."""


def sysctl(name: str) -> int | None:
    """Return the number that ``name``, such as ``net.core.somaxconn``, is set to; None where none can be read."""
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def fastopen_for_servers(tcp_fastopen: int | None) -> bool:
    """Tell whether servers may use TCP fast open; another system, which does not say, says so itself if not."""
    return tcp_fastopen is None or bool(tcp_fastopen & FASTOPEN_SERVER)
