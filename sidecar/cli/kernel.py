"""What the kernel of this machine grants, compared with what a configuration asks for."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.settings import Settings
from sidecar.sysctl import FASTOPEN_SERVER, fastopen_for_servers, sysctl

_DESCRIPTORS_BESIDES = 64  # channel, metrics, loop, logs


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """Limits of this machine; None where it does not say."""

    somaxconn: int | None
    tcp_fastopen: int | None
    open_files: int | None  # hard limit of one process


def kernel_limits() -> KernelLimits:
    """Read the limits of this machine."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return KernelLimits(
        somaxconn=sysctl("net.core.somaxconn"),
        tcp_fastopen=sysctl("net.ipv4.tcp_fastopen"),
        open_files=None if hard == resource.RLIM_INFINITY else hard,
    )


def caps(settings: Settings, limits: KernelLimits) -> Iterator[str]:
    """Yield what the kernel would not grant of ``settings``, each with the remedy."""
    backlog = max(listener.backlog for listener in settings.listeners)
    queue = max(listener.fastopen_queue for listener in settings.listeners)
    if limits.somaxconn is not None and backlog > limits.somaxconn:
        yield f"backlog {backlog} is capped at {limits.somaxconn}: sysctl net.core.somaxconn={backlog}"
    if queue and not fastopen_for_servers(limits.tcp_fastopen):
        wanted = (limits.tcp_fastopen or 0) | FASTOPEN_SERVER
        yield f"TCP fast open is off for servers: sysctl net.ipv4.tcp_fastopen={wanted}"
    elif limits.somaxconn is not None and queue > limits.somaxconn:
        yield f"fastopen_queue {queue} is capped at {limits.somaxconn}: sysctl net.core.somaxconn={queue}"
    wanted = 2 * settings.limits.connections + _DESCRIPTORS_BESIDES  # each connection may need one upstream
    if limits.open_files is not None and wanted > limits.open_files:
        connections = settings.limits.connections
        allowed = limits.open_files
        yield f"limits.connections {connections} needs {wanted} open files, {allowed} allowed: raise ulimit -Hn"
