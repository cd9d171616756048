"""A worker that accepts at once, holds every request while it loads, and then serves four at a time, without any CPU.

Run as a script: PORT LOAD_S SERVICE_S WIDTH truthful|lying. Standard library only, so that it is up within a tenth of a
second. Its readiness, ``/v2/health/ready``, is 503 while it loads, or 200 from the first moment where it lies. A
request with ``x-service-ms`` takes that long instead.

After SIGUSR1 it is broken, and its readiness does not say so: 500 at once to ``ERROR_RATIO`` of its requests, and
``SLOWER`` times as long for the others.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import deque
from typing import cast

BEGAN = time.monotonic()
READY = b"/v2/health/ready"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NOT_READY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
ERROR_RATIO = 0.6
SLOWER = 5


class Slots:
    """``width`` requests at once, each as long as it takes; the others wait in order, and all while it loads."""

    def __init__(self, width: int) -> None:
        self._free = 0
        self._width = width
        self._waiting: deque[tuple[Connection, float]] = deque()
        self._chance: random.Random | None = None

    def open(self) -> None:
        """It has loaded."""
        self._free = self._width
        self._begin()

    def fail(self) -> None:
        """Be broken from now on, in the same order each time."""
        self._chance = random.Random(1)  # noqa: S311

    def take(self, connection: Connection, service_s: float) -> None:
        """Serve a request, now or in its turn."""
        if self._chance is not None:
            if self._chance.random() < ERROR_RATIO:
                connection.answer(ERROR)
                return
            service_s *= SLOWER
        self._waiting.append((connection, service_s))
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            connection, service_s = self._waiting.popleft()
            asyncio.get_running_loop().call_later(service_s, self._end, connection)

    def _end(self, connection: Connection) -> None:
        self._free += 1
        connection.answer(OK)
        self._begin()


class Connection(asyncio.Protocol):
    """One caller: requests one after the other."""

    def __init__(self, slots: Slots, ready_from: float, service_s: float) -> None:
        self._slots = slots
        self._ready_from = ready_from
        self._service_s = service_s
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a caller."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take a request once it is whole."""
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found or len(rest) < _number(head, b"content-length", 0):
            return
        self._buffer = b""
        if head.split(b" ", 2)[1] == READY:
            self.answer(OK if time.monotonic() >= self._ready_from else NOT_READY)
        else:
            self._slots.take(self, _number(head, b"x-service-ms", 1000 * self._service_s) / 1000)

    def answer(self, data: bytes) -> None:
        """Answer the request in hand."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _number(head: bytes, field: bytes, default: float) -> float:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == field:
            return float(value)
    return default


async def main(port: int, load_s: float, service_s: float, width: int, *, lying: bool) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    slots = Slots(width)
    loop.add_signal_handler(signal.SIGUSR1, slots.fail)
    ready_from = BEGAN if lying else BEGAN + load_s
    server = await loop.create_server(lambda: Connection(slots, ready_from, service_s), "127.0.0.1", port, backlog=1024)
    loop.call_later(max(0.0, BEGAN + load_s - time.monotonic()), slots.open)
    await server.serve_forever()


if __name__ == "__main__":
    _, port, load_s, service_s, width, readiness = sys.argv
    asyncio.run(main(int(port), float(load_s), float(service_s), int(width), lying=readiness == "lying"))
