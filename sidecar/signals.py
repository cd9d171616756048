"""Signals as something to wait for: a socket pair that the interpreter writes each signal's number to."""

from __future__ import annotations

import select
import signal
import socket
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object] | int | None


class Signals:
    """Receives the given signals while entered (main thread only) and puts the old handlers back afterwards."""

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._wanted = tuple(wanted)
        self._old: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> Self:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for signum in self._wanted:
            self._old[signum] = signal.signal(signum, _noted)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._old.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_fd)
        self._read.close()
        self._write.close()

    def wait(self, timeout_s: float, also: Sequence[socket.socket] = ()) -> tuple[signal.Signals, ...]:
        """Return the signals that arrived, waiting at most ``timeout_s`` for the first; () where none did.

        It also returns as soon as one of ``also`` can be read.
        """
        ready, _, _ = select.select([self._read, *also], [], [], max(0.0, timeout_s))
        if self._read not in ready:
            return ()
        return tuple(signal.Signals(number) for number in self._read.recv(4096))


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter wrote the number to the wake-up descriptor before it called this."""
