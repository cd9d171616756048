"""The keeper's process: does what it is asked to, and undoes it when it is told to, when its time is over, or when
whoever asked is gone.
"""

from __future__ import annotations

import os
import select
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sidecar.faults.processes.fault import ProcessFaultError, checked, in_the_way
from sidecar.faults.processes.servers import pid_of
from sidecar.faults.processes.wire import MAX_MESSAGE_BYTES, REQUESTS, Begin, End, Reply, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.faults.processes.fault import Act, Memo, ProcessFault
    from sidecar.faults.processes.wire import Look

MAX_FAULTS = 16
"""In force at once."""
LOOK_S = 0.25
"""How often it looks whether its parent lives; the socket's end says so at once, unless a fork of it has that too."""


@dataclass(slots=True)
class _InForce:
    fault: ProcessFault
    act: Act
    memo: Memo
    until: float
    due: float | None


class Keeping:
    """The faults in force. ``clock`` is monotonic seconds."""

    def __init__(self, kinds: Mapping[str, Act], clock: Callable[[], float] = time.monotonic) -> None:
        self._kinds = kinds
        self._clock = clock
        self._faults: dict[int, _InForce] = {}
        self._left: dict[int, str] = {}

    @property
    def left(self) -> tuple[str, ...]:
        """What could not be undone."""
        return tuple(self._left.values())

    def answer(self, asked: Begin | End | Look) -> Reply:
        """Do what was asked; return what to say."""
        try:
            if isinstance(asked, Begin):
                one = self._begin(asked)
                return Reply(asked.call, memo=one.memo, until=one.until)
            if isinstance(asked, End):
                return Reply(asked.call, undone=self._end(asked.number))
        except ProcessFaultError as error:
            return Reply(asked.call, error=str(error))
        except Exception as error:  # noqa: BLE001  whatever it is: the other faults are to be ended in their time
            return Reply(asked.call, error=f"{type(error).__name__}: {error}")
        return Reply(asked.call, error="; ".join(self._left.values()), in_force=tuple(self._faults))

    def _begin(self, asked: Begin) -> _InForce:
        act = checked(asked.fault, self._kinds)
        fault = self._found(asked.fault)
        if len(self._faults) >= MAX_FAULTS:
            raise ProcessFaultError(f"{fault.kind}: {MAX_FAULTS} process faults are in force already: end some first")
        for one in self._faults.values():
            if one.fault.pid == fault.pid and in_the_way(act, one.act, by_url=not asked.fault.pid):
                raise ProcessFaultError(
                    f"{fault.kind}: pid {fault.pid}: {one.fault.kind} is in force there: end it first"
                )
        memo = act.begin(fault)
        now = self._clock()
        one = _InForce(fault, act, memo, now + fault.for_s, now)
        if act.LASTS:
            self._faults[asked.number] = one
        return one

    def _found(self, fault: ProcessFault) -> ProcessFault:
        """Return the fault with its process, where only the URL of a state store names that."""
        if fault.pid or not fault.url:
            return fault
        return msgspec.structs.replace(fault, pid=pid_of(fault.kind, fault.url))

    def _end(self, number: int) -> bool:
        one = self._faults.pop(number, None)
        if one is None:
            if number in self._left:
                raise ProcessFaultError(self._left[number])
            return False
        try:
            return one.act.end(one.memo)
        except ProcessFaultError as error:
            self._left[number] = str(error)
            raise
        except Exception as error:
            self._left[number] = f"{one.fault.kind}: could not be undone: {type(error).__name__}: {error}"
            raise ProcessFaultError(self._left[number]) from error

    def tick(self) -> float:
        """Do what is due; return in how many seconds something is again, at most LOOK_S."""
        now = self._clock()
        next_at = now + LOOK_S
        for number, one in tuple(self._faults.items()):
            if now >= one.until:
                self._quietly_end(number)
                continue
            if one.due is not None and now >= one.due:
                try:
                    one.due = one.act.step(one.memo, now)
                except Exception:  # noqa: BLE001  whatever it is: it cannot go on, so it is to end
                    self._quietly_end(number)
                    continue
            next_at = min(next_at, one.until, one.until if one.due is None else one.due)
        return max(0.0, next_at - self._clock())

    def end_all(self) -> None:
        """End all that is in force; what cannot be undone is in :attr:`left`."""
        for number in tuple(self._faults):
            self._quietly_end(number)

    def _quietly_end(self, number: int) -> None:
        try:
            self._end(number)
        except ProcessFaultError:
            return  # it is among what is left


def run_keeper(fd: int) -> int:
    """Keep faults for the process at the other end of ``fd`` until it is gone; return 0 where all was undone."""
    from sidecar.faults.processes.kinds import KINDS

    parent = os.getppid()
    keeping = Keeping(KINDS)
    sock = socket.socket(fileno=fd)
    try:
        while os.getppid() == parent:
            readable, _, _ = select.select([sock], [], [], keeping.tick())
            if readable:
                data = sock.recv(MAX_MESSAGE_BYTES)
                if not data:
                    break
                sock.send(encode(keeping.answer(REQUESTS.decode(data))))
    except OSError:
        pass  # the other end went while it was answered
    finally:
        keeping.end_all()
    return 1 if keeping.left else 0
