"""An open loop: requests begin at times that were drawn beforehand, whatever became of those before. No retries."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

REQUEST = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)
GIVE_UP_S = 20.0


@dataclass
class Account:
    """What became of the requests: seconds from the time they were to begin to the end of their answer."""

    took_s: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    begun: int = 0
    late_s: float = 0.0  # the most by which one began after its time: this load's own fault

    def failed(self, why: str) -> None:
        """Count a request that had no good answer."""
        self.errors[why] = self.errors.get(why, 0) + 1

    @property
    def failures(self) -> int:
        """How many had none."""
        return sum(self.errors.values())


def arrivals(rate: float, duration_s: float, seed: int) -> list[float]:
    """Return the times of a Poisson process, seconds from its beginning."""
    rng = random.Random(seed)  # noqa: S311
    at, out = 0.0, []
    while (at := at + rng.expovariate(rate)) < duration_s:
        out.append(at)
    return out


class Caller(asyncio.Protocol):
    """One connection to the proxy; it carries one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self.due = 0.0
        self.busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what it was opened for."""
        self.transport = cast("asyncio.Transport", transport)
        self._load.open.add(self)
        self.transport.write(REQUEST)

    def begin(self, due: float) -> None:
        """Send a request."""
        self.busy = True
        self.due = due
        if self.transport is not None:
            self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        """Take an answer once it is whole."""
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.lower().split(b"\r\n")[1:]:
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(rest) < length:
            return
        self._buffer = b""
        status = int(head[9:12])
        self.busy = False
        if status == 200:
            self._load.account.took_s.append(self._load.now() - self.due)
        else:
            self._load.account.failed(f"status {status}")
        self._load.ended()
        if b"\r\nconnection: close" in head.lower() and self.transport is not None:
            self.transport.close()
        else:
            self._load.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """A request in hand is lost with it."""
        self._load.open.discard(self)
        if self.busy:
            self.busy = False
            self._load.account.failed("connection lost")
            self._load.ended()
        if self in self._load.idle:
            self._load.idle.remove(self)


class Load:
    """Requests to one port at given times."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self.account = Account()
        self.idle: list[Caller] = []
        self.open: set[Caller] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._ending = False
        self._rest = asyncio.Event()

    def now(self) -> float:
        """Return the loop's time, seconds."""
        return self._loop.time()

    async def run(self, times: Sequence[float]) -> Account:
        """Make the requests and wait for what is still under way."""
        began = self.now()
        for at in times:
            due = began + at
            wait_s = due - self.now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.account.late_s = max(self.account.late_s, self.now() - due)
            self.account.begun += 1
            if self.idle:
                self.idle.pop().begin(due)
            else:
                task = asyncio.create_task(self._open(due))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_UP_S):
                await asyncio.gather(*self._opening)
                self._ending = True
                self.ended()
                await self._rest.wait()
        for caller in list(self.open):
            if caller.busy:
                caller.busy = False
                self.account.failed(f"nothing within {GIVE_UP_S:g} s")
            if caller.transport is not None:
                caller.transport.abort()
        return self.account

    def ended(self) -> None:
        """A request is over; after the last one there is nothing to wait for."""
        if self._ending and not any(caller.busy for caller in self.open):
            self._rest.set()

    async def _open(self, due: float) -> None:
        def new() -> Caller:
            caller = Caller(self)
            caller.due, caller.busy = due, True
            return caller

        try:
            await self._loop.create_connection(new, "127.0.0.1", self._port)
        except OSError:
            self.account.failed("refused")
