"""The control process's ends of the channels: what goes down to each data process, and how none can hold it up.

Messages to one process queue in order while it does not read. One that falls too far behind loses its queue and gets a
whole snapshot as soon as it reads again, so a stopped process costs bounded memory and a late one never sees half of a
change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from sidecar.channel import Channel, ChannelError
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_QUEUED = 2048
"""Messages queued for one process beyond a snapshot's own."""
SAID_EVERY_S = 10.0
"""How often a log line tells of messages that cannot be sent, for each process; each is counted."""

_log = get_log("feed")


class FeedOwner(Protocol):
    """Who feeds: makes snapshots and takes what data processes say."""

    def snapshot_messages(self) -> Iterable[object]:
        """Return all that a data process must know, as messages."""

    def from_data(self, index: int, message: object) -> None:
        """Take in one message of data process ``index``."""


class Port:
    """One data process's channel. ``behind``: it fell behind and will get a whole snapshot."""

    def __init__(self, index: int, channel: Channel) -> None:
        self.index = index
        self.channel = channel
        self.behind = False
        self.behind_total = 0
        self.sent_total = 0
        self.too_large_total = 0
        self._queue: deque[object] = deque()
        self._room = MAX_QUEUED
        self._writing = False
        self._unsent = Throttle(SAID_EVERY_S)

    def put(self, messages: Iterable[object]) -> None:
        """Send ``messages`` in order, now or once the process reads."""
        if self.behind:
            return
        self._queue.extend(messages)
        self.flush()
        if len(self._queue) > self._room:
            self._queue.clear()
            self.behind = True
            self.behind_total += 1
            _log.warning("channel.behind", data_process=self.index)

    def put_snapshot(self, messages: Iterable[object]) -> None:
        """Send a whole snapshot: it supersedes everything that is still queued."""
        self._queue = deque(messages)
        self._room = MAX_QUEUED + len(self._queue)
        self.behind = False
        self.flush()

    def flush(self) -> None:
        """Send what is queued as far as the process reads."""
        while self._queue:
            try:
                sent = self.channel.send(self._queue[0])
            except ChannelError as error:
                self.too_large_total += 1
                held_back = self._unsent.admit(monotonic())
                if held_back is not None:
                    _log.error("channel.too_large", data_process=self.index, error=str(error), held_back=held_back)
                sent = True
            if not sent:
                return
            self._queue.popleft()
            self.sent_total += 1

    @property
    def waiting(self) -> bool:
        """Whether there is something to send as soon as the process reads."""
        return bool(self._queue) or self.behind


class Feed:
    """All channels. Everything runs on the loop that :meth:`start` was called on."""

    def __init__(self, channels: Sequence[Channel], owner: FeedOwner) -> None:
        self.ports = tuple(Port(index, channel) for index, channel in enumerate(channels))
        self._owner = owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: set[int] = set()
        self._unreadable = Throttle(10.0)

    def start(self) -> None:
        """Begin to read."""
        self._loop = asyncio.get_running_loop()
        for port in self.ports:
            self._loop.add_reader(port.channel.fileno(), self._readable, port)

    def stop(self) -> None:
        """Stop reading and writing; the channels stay open, they are the supervisor's too."""
        if self._loop is None:
            return
        for port in self.ports:
            self._loop.remove_reader(port.channel.fileno())
            self._loop.remove_writer(port.channel.fileno())
        self._watched.clear()
        self._loop = None

    def send(self, *messages: object, but: int | None = None) -> None:
        """Send to all data processes, in order; ``but`` names one to leave out."""
        for port in self.ports:
            if port.index != but:
                port.put(messages)
                self._watch(port)

    def answer(self, index: int, message: object) -> None:
        """Send to one data process, where nothing else waits for it: it does not wait for this for long."""
        port = self.ports[index]
        if not port.waiting:
            port.put((message,))
            self._watch(port)

    def ping(self, message: object) -> None:
        """Send to those data processes for which nothing else waits: a ping is of no use late."""
        for port in self.ports:
            if not port.waiting:
                port.put((message,))
                self._watch(port)

    def send_snapshot(self, index: int | None = None) -> None:
        """Send a whole snapshot to one data process, or to all."""
        for port in self.ports if index is None else (self.ports[index],):
            port.put_snapshot(self._owner.snapshot_messages())
            self._watch(port)

    def _watch(self, port: Port) -> None:
        """Be called when the process reads again, as long as there is something for it."""
        if self._loop is None:
            return
        if port.waiting and port.index not in self._watched:
            self._watched.add(port.index)
            self._loop.add_writer(port.channel.fileno(), self._writable, port)
        elif not port.waiting and port.index in self._watched:
            self._watched.discard(port.index)
            self._loop.remove_writer(port.channel.fileno())

    def _writable(self, port: Port) -> None:
        if port.behind:
            port.put_snapshot(self._owner.snapshot_messages())
        else:
            port.flush()
        self._watch(port)

    def _readable(self, port: Port) -> None:
        try:
            for message in port.channel.receive():
                self._owner.from_data(port.index, message)
        except ChannelError as error:
            if self._unreadable.admit(asyncio.get_running_loop().time()) is not None:
                _log.error("channel.unreadable", data_process=port.index, error=str(error))
        except EOFError:  # the supervisor holds the other end open as long as it lives
            _log.error("channel.closed", data_process=port.index)
            asyncio.get_running_loop().remove_reader(port.channel.fileno())
