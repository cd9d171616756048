"""Callers that are not being read cannot be seen leaving: here the kernel is asked about those alone.

A transport that does not read waits for nothing, so neither a reset nor an end of file wakes it. Connections that have
not been read since the last look are put into an epoll of their own, which the loop waits on like on any descriptor:
whoever is read costs nothing, and whoever is not is told of within the time between two looks.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sidecar.http1.caller import TUNNEL
from sidecar.http1.transports import descriptor

if TYPE_CHECKING:
    import asyncio

    from sidecar.http1.caller import CallerConnection

_HALF: Final = select.EPOLLRDHUP
_RESET: Final = select.EPOLLERR  # always told, as EPOLLHUP is: that is but two ends in order, ours and the caller's


class Hangups:
    """The callers' connections of one process that are not being read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: set[CallerConnection] = set()
        self._by_fd: dict[int, CallerConnection] = {}
        self._fds: dict[CallerConnection, int] = {}
        self._epoll: select.epoll | None = None

    def paused(self, connection: CallerConnection) -> None:
        """Take note that ``connection`` is not being read from now on."""
        self._new.add(connection)

    def resumed(self, connection: CallerConnection) -> None:
        """Forget ``connection``: it is read again, or gone."""
        self._new.discard(connection)
        fd = self._fds.pop(connection, -1)
        if fd >= 0:
            self._unwatch(fd)

    def look(self) -> None:
        """Watch those that have been paused since the last look, and still are."""
        while self._new:
            connection = self._new.pop()
            fd = descriptor(connection.transport)
            if fd < 0:
                continue
            epoll = self._epoll
            if epoll is None:
                epoll = self._epoll = select.epoll()
                self._loop.add_reader(epoll.fileno(), self._tell)
            # a tunnel's caller may end its half while bytes of it still wait to be read
            epoll.register(fd, 0 if connection.phase == TUNNEL else _HALF)
            self._by_fd[fd] = connection
            self._fds[connection] = fd

    def _tell(self) -> None:
        epoll = self._epoll
        if epoll is None:
            return
        for fd, events in epoll.poll(0):
            connection = self._by_fd.get(fd)
            self._unwatch(fd)
            if connection is not None:
                self._fds.pop(connection, None)
                if connection.phase == TUNNEL and not events & _RESET:  # it was watched before it became one
                    self._new.add(connection)
                else:
                    connection.left(broken=bool(events & _RESET))

    def _unwatch(self, fd: int) -> None:
        self._by_fd.pop(fd, None)
        if self._epoll is not None:
            with suppress(OSError):  # it may be closed, and so out already
                self._epoll.unregister(fd)
