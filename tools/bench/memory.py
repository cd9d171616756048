"""Memory of one worker process: idle, and with a thousand connections that have asked once and wait."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.traffic.processor import tree
from tools.bench import procfs
from tools.bench.asks import GET
from tools.bench.contenders import COMPILED, OURS
from tools.bench.processes import BenchError

if TYPE_CHECKING:
    from tools.bench.processes import Contender

CONNECTIONS = 1000
SETTLE_S = 1.5


@dataclass(frozen=True)
class Memory:
    """Proportional set size in bytes: of the process that serves, of the whole tree, and what connections add.

    ``kinds`` says what the serving process's idle memory is.
    """

    idle_bytes: int
    tree_bytes: int
    added_bytes: int
    connections: int
    kinds: dict[str, int] = field(default_factory=dict)


def measure(proxy: Contender, connections: int = CONNECTIONS, settle_s: float = SETTLE_S) -> Memory:
    """Measure a freshly started ``proxy`` that nobody else uses.

    Raises:
        BenchError: a connection was not kept.
    """
    serving = serving_process(proxy)
    time.sleep(settle_s)
    idle, everything = procfs.pss_bytes(serving), sum(procfs.pss_bytes(pid) for pid in tree(proxy.pid))
    kinds = procfs.pss_by_kind(serving)
    sockets: list[socket.socket] = []
    try:
        request = GET.template(proxy.port, "memory").replace(b"@", b"0")
        for _ in range(connections):
            sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
            sockets.append(sock)
            sock.sendall(request)
            answer = sock.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise BenchError(f"{proxy.name}: connection {len(sockets)} was answered {answer[:80]!r}")
        time.sleep(settle_s)
        if ended := sum(not _is_idle(sock) for sock in sockets):
            raise BenchError(f"{proxy.name}: {ended} of {connections} idle connections were not kept")
        added = procfs.pss_bytes(serving) - idle
    finally:
        for sock in sockets:
            sock.close()
    return Memory(idle, everything, added, connections, kinds)


def _is_idle(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    return False


def serving_process(proxy: Contender) -> int:
    """Return the process that carries the traffic: the data process of ours, the worker of nginx, or the only one.

    Raises:
        BenchError: there is none such.
    """
    marks = {OURS: " -m sidecar data ", COMPILED: " -m sidecar data ", "nginx": "worker process"}
    mark = marks.get(proxy.name, "")
    for pid in tree(proxy.pid):
        if mark in f"{procfs.command(pid)} ":
            return pid
    raise BenchError(f"{proxy.name}: no process of it has {mark!r} in its command line")
