"""Which memory node a model's pages are put on: a pure plan over the machine's topology, and its application.

A page on node *i* costs each processor that reads it the distance from that processor's node to *i* (Linux' table, 10
is local). So its cost is the sum over nodes *j* of (share of the worker's processors on *j*) x distance(*j*, *i*): a
local term for *j* = *i*, remote ones for the others. The plan divides P pages over the nodes so that the sum is
least, and no node gets more than it has free.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from contextlib import contextmanager
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from worker.loading.mapping import Mapping as FileMapping
    from worker.log import EventLog

SYSTEM: Final = Path("/sys/devices/system/node")
MAX_NODES: Final = 1024
_SYSCALLS: Final = {"x86_64": (237, 238), "aarch64": (235, 237), "riscv64": (235, 237)}
"""Numbers of mbind(2) and set_mempolicy(2)."""
_MPOL_DEFAULT, _MPOL_BIND = 0, 2
_MPOL_MF_MOVE = 1 << 1
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

_libc = ctypes.CDLL(None, use_errno=True)


class PlacementError(Exception):
    """Pages cannot be placed as wanted; the text says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """One memory node. ``distances`` from its processors to each node, by node id."""

    id: int
    free_pages: int
    cpus: frozenset[int]
    distances: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pages go to each node, by id; nodes that get none are left out. ``cost`` is what is minimised."""

    pages: Mapping[int, int]
    cost: float


def read_topology(root: Path = SYSTEM, page_bytes: int = os.sysconf("SC_PAGE_SIZE")) -> tuple[Node, ...]:
    """Return the nodes that have memory, by id; none where the system does not tell.

    Format: Documentation/ABI/stable/sysfs-devices-node of the kernel.
    """
    try:
        ids = sorted(int(path.name[4:]) for path in root.iterdir() if re.fullmatch(r"node[0-9]{1,4}", path.name))
        nodes = []
        for number in ids:
            place = root / f"node{number}"
            found = re.search(r"MemFree:\s+(\d+) kB", (place / "meminfo").read_text())
            distances = dict(zip(ids, map(int, (place / "distance").read_text().split()), strict=True))
            free_pages = int(found[1]) * 1024 // page_bytes if found else 0
            nodes.append(Node(number, free_pages, _numbers((place / "cpulist").read_text()), distances))
    except (OSError, ValueError):
        return ()
    return tuple(nodes)


def _numbers(text: str) -> frozenset[int]:
    """Read a list such as ``0-3,8``."""
    out: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            out.update(range(int(first), int(last or first) + 1))
    return frozenset(out)


def costs(nodes: Sequence[Node], cpus: Collection[int]) -> dict[int, float]:
    """Return what one page costs on each node, where ``cpus`` do the work; all of them, where none is known."""
    shares = {node.id: len(node.cpus & set(cpus)) for node in nodes}
    if not any(shares.values()):
        shares = {node.id: len(node.cpus) for node in nodes}
    total = sum(shares.values()) or 1
    return {node.id: fsum(shares[other.id] / total * other.distances[node.id] for other in nodes) for node in nodes}


def plan(nodes: Sequence[Node], pages: int, cpus: Collection[int]) -> Plan:
    """Divide ``pages`` over ``nodes`` at the least cost.

    The sum is linear in what each node gets, so filling the cheapest node first is exact; of nodes that cost the same
    the one with more free pages comes first, so that a model is on as few as can be.

    Raises:
        PlacementError: the nodes have less free than that.
    """
    free = sum(node.free_pages for node in nodes)
    if pages > free:
        raise PlacementError(f"{pages} pages, and {free} are free on {len(nodes)} nodes")
    cost = costs(nodes, cpus)
    left, given = pages, {}
    for node in sorted(nodes, key=lambda node: (cost[node.id], -node.free_pages, node.id)):
        taken = min(left, node.free_pages)
        if taken:
            given[node.id] = taken
            left -= taken
    return Plan(given, fsum(count * cost[id_] for id_, count in given.items()))


class Placer:
    """Places what is loaded, and keeps it in memory. Where that cannot be, it is told once and nothing else changes."""

    def __init__(self, log: EventLog, nodes: Sequence[Node] | None = None) -> None:
        """``nodes``: the machine's, read at each load where they are not given."""
        self._log = log
        self._nodes = nodes
        self._told: set[str] = set()

    @contextmanager
    def placing(self, size_bytes: int) -> Iterator[Plan | None]:
        """Have pages that this thread brings in go where the plan for ``size_bytes`` says; None where there is none.

        The policy is the thread's (set_mempolicy(2)): the page cache of a file follows whoever reads it, and knows of
        no policy of the mapping.
        """
        found = self._plan(size_bytes)
        if found is not None:
            mask = _mask(found.pages)
            if not self._call(1, "set_mempolicy", _MPOL_BIND, mask, ctypes.c_ulong(MAX_NODES + 1)):
                found = None
        try:
            yield found
        finally:
            if found is not None:
                self._call(1, "set_mempolicy", _MPOL_DEFAULT, None, ctypes.c_ulong(0))

    def hold(self, mappings: Sequence[FileMapping], found: Plan) -> None:
        """Bind what is mapped now to the plan's nodes (mbind(2), which moves what shared memory holds), and lock it."""
        order = [(id_, count * os.sysconf("SC_PAGE_SIZE")) for id_, count in found.pages.items()]
        for mapping in mappings:
            for address, length, id_ in _ranges(mapping, order):
                arguments = (ctypes.c_void_p(address), ctypes.c_ulong(length), _MPOL_BIND, _mask({id_: 1}))
                if not self._call(0, "mbind", *arguments, ctypes.c_ulong(MAX_NODES + 1), _MPOL_MF_MOVE):
                    return
        for mapping in mappings:
            if mapping.size_bytes and _libc.mlock(
                ctypes.c_void_p(mapping.address), ctypes.c_size_t(mapping.size_bytes)
            ):
                self._degraded(f"mlock: {os.strerror(ctypes.get_errno())}; raise RLIMIT_MEMLOCK or give CAP_IPC_LOCK")
                return

    def _plan(self, size_bytes: int) -> Plan | None:
        nodes = read_topology() if self._nodes is None else self._nodes
        if len(nodes) < 2:
            self._degraded("this machine has one memory node" if nodes else "the system tells of no memory nodes")
            return None
        try:
            return plan(nodes, -(-size_bytes // os.sysconf("SC_PAGE_SIZE")), os.sched_getaffinity(0))
        except PlacementError as error:
            self._degraded(str(error))
            return None

    def _call(self, which: int, name: str, *arguments: object) -> bool:
        numbers = _SYSCALLS.get(platform.machine())
        if numbers is None:
            self._degraded(f"{name}: its number is not known on {platform.machine()}")
            return False
        if _libc.syscall(numbers[which], *arguments) != 0:
            self._degraded(f"{name}: {os.strerror(ctypes.get_errno())}")
            return False
        return True

    def _degraded(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            self._log.warning("numa.degraded", reason=reason)


def _ranges(mapping: FileMapping, order: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield address, length and node of each part of a mapping, and take it off what is left of the plan."""
    at = 0
    while at < mapping.size_bytes and order:
        id_, room = order[0]
        length = min(room, mapping.size_bytes - at) if len(order) > 1 else mapping.size_bytes - at
        yield mapping.address + at, length, id_
        at += -(-length // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")
        if length >= room and len(order) > 1:
            order.pop(0)
        else:
            order[0] = (id_, room - length)


def _mask(ids: Collection[int]) -> ctypes.Array[ctypes.c_ulong]:
    words = (ctypes.c_ulong * (MAX_NODES // _WORD_BITS))()
    for id_ in ids:
        words[id_ // _WORD_BITS] |= 1 << id_ % _WORD_BITS
    return words
