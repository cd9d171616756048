"""A worker that stands by: loaded and proven, and at its address the moment that the one before it is gone.

Whoever listens at an address holds a lock on a file; the kernel lets it go with the process, however that ends, and the
next in line has it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Final

from worker.loading.private import PrivateDirectory, own_root

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

BIND_S: Final = 2.0
"""How long the port may still be taken: the kernel closes a dead process's descriptors one after the other."""
_BIND_AGAIN_S: Final = 0.001


class Standby:
    """A place in the line for one address. ``bind`` makes the socket, bound and not listening yet."""

    def __init__(self, place: Path, address: str, bind: Callable[[], socket.socket]) -> None:
        """``place``: shared memory, or another place for files.

        Raises:
            OSError: the file of the lock cannot be made or opened.
        """
        self._bind = bind
        with PrivateDirectory(own_root(place) / "standby") as directory:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", address)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(name, flags, 0o600, dir_fd=directory.descriptor)

    def first(self) -> socket.socket | None:
        """Return the socket where nobody is before this one; else None.

        Raises:
            OSError: somebody who is not in the line has the port.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return self._bind()

    async def turn(self, stop: asyncio.Event) -> socket.socket | None:
        """Wait until it is this one's turn, and return the socket; None where ``stop`` came first.

        Raises:
            OSError: the port stays taken, by somebody who is not in the line.
        """
        loop, mine = asyncio.get_running_loop(), asyncio.Event()

        def wait() -> None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends, and the lock with it
                loop.call_soon_threadsafe(mine.set)

        threading.Thread(target=wait, name="standby", daemon=True).start()
        waits = {asyncio.create_task(mine.wait()), asyncio.create_task(stop.wait())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if not mine.is_set():
            return None
        until = time.monotonic() + BIND_S
        while True:
            try:
                return self._bind()
            except OSError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_BIND_AGAIN_S)

    def let_go(self) -> None:
        """Let the next one listen: this one does not any more."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
