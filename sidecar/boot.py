"""What the supervisor hands to a child process: one JSON document in an inherited memory file, and descriptors.

Children read neither files nor environment for their configuration, so a child that is restarted years later starts
with exactly what its siblings run with. The supervisor may write another plan into the same memory file: a running
child looks at its first bytes ten times a second, and takes over what is new.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
import zlib

import msgspec

from sidecar.config.state import ConfigState
from sidecar.settings import Settings


class ListenerFd(msgspec.Struct, frozen=True):
    """A listening socket of this data process's own (bound with SO_REUSEPORT by the supervisor)."""

    listener: int  # index into Settings.listeners
    address: str  # as bound: the port is known
    fd: int
    later: bool = False  # only bound: to be listened on once no other sidecar serves on the address
    backlog: int = 0  # another sidecar listens on it with this one; 0 for the listener's own


class DataPlan(msgspec.Struct, frozen=True, tag="data"):
    """The start of one data process."""

    index: int
    parent_pid: int
    settings: Settings
    listeners: tuple[ListenerFd, ...]
    channel_fd: int
    metrics_fd: int
    revision: str = ""
    sequence: int = 0
    succeeds: bool = False  # another sidecar serves until this one can: it waits as long as it must for a snapshot
    handed_over: bool = False  # another sidecar serves on the same sockets


class ControlPlan(msgspec.Struct, frozen=True, tag="control"):
    """The start of the control process. ``channel_fds`` and ``metrics_fds`` are by data process index."""

    parent_pid: int
    settings: Settings
    sidecar_id: str
    admin_fds: tuple[int, ...]  # listening sockets: Unix first where configured
    admin_unix: bool  # the first of admin_fds is the Unix socket
    channel_fds: tuple[int, ...]
    metrics_fds: tuple[int, ...]
    listen_addresses: tuple[str, ...]  # as bound, for people
    memory_fd: int | None = None  # a memory file for what must outlive the control process (sidecar/state/memory.py)
    config: ConfigState = ConfigState()
    admin_open: bool = True  # serve the admin API; not yet where another sidecar does so on the same sockets
    handed_over: bool = False  # another sidecar serves on the same sockets, and from now on the admin API too


class SupervisorPlan(msgspec.Struct, frozen=True, tag="supervise"):
    """The start of a supervisor that another process of ours starts. It drains when ``parent_pid`` dies."""

    parent_pid: int
    settings: Settings
    notify_socket: str = ""


Plan = DataPlan | ControlPlan | SupervisorPlan
_DECODER: msgspec.json.Decoder[Plan] = msgspec.json.Decoder(Plan)


_HEAD = struct.Struct("<QQI")
"""Before a plan: how often it was written, its length, its CRC-32."""
_READ_S = 2.0
_READ_AGAIN_S = 0.005


def write_plan(plan: Plan) -> int:
    """Return an inheritable descriptor that holds ``plan``."""
    fd = os.memfd_create("warmroute-plan", 0)
    rewrite_plan(fd, plan)
    os.set_inheritable(fd, True)
    return fd


def rewrite_plan(fd: int, plan: Plan) -> None:
    """Put another plan behind ``fd``, for the process that runs with it and for its successors."""
    body = msgspec.json.encode(plan)
    head = os.pread(fd, _HEAD.size, 0)
    times = _HEAD.unpack(head)[0] + 1 if head else 1
    os.pwrite(fd, body, _HEAD.size)
    os.pwrite(fd, _HEAD.pack(times, len(body), zlib.crc32(body)), 0)


class PlanFile:
    """The reading end of a plan. What is read while it is being written does not match its checksum, and is no plan."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._head = b""

    def read(self) -> Plan:
        """Return the plan there is.

        Raises:
            ValueError: there is none, and none comes.
        """
        until = time.monotonic() + _READ_S
        while (plan := self.newer()) is None:
            if time.monotonic() > until:
                raise ValueError(f"descriptor {self._fd} holds no plan")
            time.sleep(_READ_AGAIN_S)
        return plan

    def newer(self) -> Plan | None:
        """Return the plan where it is another one than last returned, and whole; else None. Costs one pread(2)."""
        head = os.pread(self._fd, _HEAD.size, 0)
        if head == self._head or len(head) < _HEAD.size:
            return None
        _, length, crc = _HEAD.unpack(head)
        body = os.pread(self._fd, length, _HEAD.size)
        if len(body) != length or zlib.crc32(body) != crc:
            return None
        self._head = head
        return _DECODER.decode(body)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


_PR_SET_PDEATHSIG = 1


class DieWithParent:
    """Asks the kernel for ``signum`` when the parent dies (prctl(2); Linux), in the process that calls it.

    Everything is looked up when it is made, so it may be called between fork and exec.
    """

    def __init__(self, parent_pid: int, signum: int = signal.SIGTERM) -> None:
        self._parent_pid = parent_pid
        self._signum = int(signum)
        self._prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def __call__(self) -> bool:
        """Ask; return False where the parent has died already."""
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, self._signum, 0, 0, 0)
        return os.getppid() == self._parent_pid


def die_with_parent(parent_pid: int, signum: int = signal.SIGTERM) -> None:
    """Ask the kernel for ``signum`` when the parent dies; exit now if it already has."""
    if not DieWithParent(parent_pid, signum)():
        raise SystemExit(0)
