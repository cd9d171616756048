"""The drill's side of the keeper: starts it, asks it for faults, and ends them itself should the keeper be killed."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from sidecar.faults.processes.fault import ProcessFaultError, checked
from sidecar.faults.processes.keeping import MAX_FAULTS
from sidecar.faults.processes.kinds import KINDS
from sidecar.faults.processes.wire import MAX_MESSAGE_BYTES, REPLIES, Begin, End, Look, encode

if TYPE_CHECKING:
    from types import TracebackType

    from sidecar.faults.processes.fault import Memo, ProcessFault
    from sidecar.faults.processes.wire import Reply

__all__ = ["MAX_FAULTS", "FaultKeeper", "KeptFault"]

ANSWER_S = 15.0
"""Longest wait for the keeper's answer: a state store may take some seconds to be asked."""

_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends a drill, or an impatient user's try at it: the keeper stays until it has undone everything."""


class KeptFault:
    """One fault that the keeper brought about. ``until`` is when it ends by itself, monotonic seconds."""

    def __init__(self, keeper: FaultKeeper, number: int, fault: ProcessFault, memo: Memo, until: float) -> None:
        self._keeper = keeper
        self.number = number
        self.fault = fault
        self.memo = memo
        self.until = until

    @property
    def undone(self) -> str:
        """What becomes of the process when the fault ends, for people."""
        return KINDS[self.fault.kind].UNDONE

    @property
    def in_force(self) -> bool:
        """Whether it still is: neither ended nor past its time."""
        return self.number in self._keeper.in_force()

    def end(self) -> bool:
        """End it now; may be called again. Return False where there was nothing left to undo.

        Raises:
            ProcessFaultError: it could not be undone; the text says what is left and what to do.
        """
        return self._keeper.end(self)


class FaultKeeper:
    """A keeper process and the faults it keeps. May be used from several threads; it is bounded in time, not async.

    The keeper is in a session of its own, deaf to what ends a drill, and ends every fault at its lifetime or when this
    process is gone, however that happens. Were the keeper itself killed, :meth:`end` and :meth:`close` undo things from
    here.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)  # inherited, so in force from its first instant
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sidecar", "faults", "--plan-fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self._sock: socket.socket | None = ours
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._kept: dict[int, KeptFault] = {}

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._process.pid

    def __enter__(self) -> FaultKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, fault: ProcessFault) -> KeptFault:
        """Bring a fault about and return it, in force.

        Raises:
            ProcessFaultError: it is refused or could not begin; nothing was changed.
        """
        checked(fault, KINDS)
        with self._lock:
            number = next(self._numbers)
            reply = self._ask(Begin(number, number, fault))
            if reply is None:
                raise ProcessFaultError(f"{fault.kind}: the keeper of faults is gone: start another")
            if reply.error:
                raise ProcessFaultError(reply.error)
            kept = self._kept[number] = KeptFault(self, number, fault, reply.memo, reply.until)
            return kept

    def end(self, kept: KeptFault) -> bool:
        """As :meth:`KeptFault.end`."""
        with self._lock:
            if self._kept.pop(kept.number, None) is None:
                return False
            reply = self._ask(End(next(self._numbers), kept.number))
            if reply is None:
                return _undo(kept)
            if reply.error:
                raise ProcessFaultError(reply.error)
            return reply.undone

    def in_force(self) -> tuple[int, ...]:
        """The numbers of the faults in force.

        Raises:
            ProcessFaultError: one whose time is over could not be undone; the text says what is left and what to do.
        """
        with self._lock:
            reply = self._ask(Look(next(self._numbers)))
            if reply is None:  # killed: what it had begun may still be in force
                return tuple(self._kept)
            if reply.error:
                raise ProcessFaultError(reply.error)
            return reply.in_force

    def close(self) -> None:
        """End all faults and the keeper; may be called again.

        Raises:
            ProcessFaultError: something could not be undone; the text says what is left and what to do.
        """
        with self._lock:
            self._hang_up()
            try:
                undone = self._process.wait(ANSWER_S) == 0
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                undone = False
            kept, self._kept = tuple(self._kept.values()), {}
        if undone:
            return
        left = []
        for one in kept:
            try:
                _undo(one)
            except ProcessFaultError as error:
                left.append(str(error))
        if left:
            raise ProcessFaultError("; ".join(left))

    def _ask(self, request: Begin | End | Look) -> Reply | None:
        """Return the keeper's answer, None where it is gone or takes too long: it ends everything then."""
        if self._sock is None:
            return None
        try:
            self._sock.send(encode(request))
            deadline = time.monotonic() + ANSWER_S
            while (left := deadline - time.monotonic()) > 0:
                self._sock.settimeout(left)
                data = self._sock.recv(MAX_MESSAGE_BYTES)
                if not data:
                    break
                reply = REPLIES.decode(data)
                if reply.call == request.call:  # another is of a call that was interrupted
                    return reply
        except OSError:
            pass
        self._hang_up()
        return None

    def _hang_up(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None


def _undo(kept: KeptFault) -> bool:
    return KINDS[kept.fault.kind].end(kept.memo)
