"""What any way to a sidecar and on to a worker must do: a GET, a large POST, a stream, an abort, and a drain.

The same scenario runs over Unix sockets and over TLS, on the whole product.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.data_path import Origin
from tests.support.product import Sidecar, running
from tests.support.sidecars import until
from tests.support.wires import STEP_S, Client, Message, OriginConnection, answer, chunk, post, request

LARGE = bytes(range(256)) * 4096
EVENTS = 5
ABORT_S = 0.1


class Worker(Origin):
    """Answers with what it got; streams on ``/stream``, an event at each ``tick``; says nothing on ``/hang``."""

    def __init__(self, path: str = "", *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._answer, path, tls=tls)
        self.tick = asyncio.Event()
        self.hung = asyncio.Event()
        self.left = asyncio.Event()  # whoever asked for /hang has gone

    async def _answer(self, connection: OriginConnection) -> None:
        while True:
            target = (await connection.request()).start.split(b" ")[1]
            if target == b"/stream":
                await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for number in range(EVENTS):
                    await self.tick.wait()
                    self.tick.clear()
                    await connection.send(chunk(b"data: %d\n\n" % number))
                await connection.send(b"0\r\n\r\n")
            elif target == b"/hang":
                self.hung.set()
                await connection.reader.read()
                self.left.set()
                return
            else:
                await connection.send(answer(connection.requests[-1].body))


async def talk(worker: Worker, connect: Callable[[], Any]) -> None:
    """Go through all of it on connections that ``connect`` opens; the sidecar goes on running."""
    client: Client = await connect()
    assert (await client.ask(request())).status == 200
    assert (await client.ask(post(LARGE))).body == LARGE
    assert (await _stream(worker, client)).value(b"Transfer-Encoding") == b"chunked"

    hanging: Client = await connect()
    await hanging.send(request(b"GET /hang HTTP/1.1"))
    async with asyncio.timeout(STEP_S):
        await worker.hung.wait()
    hanging.writer.transport.abort()
    async with asyncio.timeout(ABORT_S):
        await worker.left.wait()
    client.close()


async def _stream(worker: Worker, client: Client, began: Callable[[], None] = lambda: None) -> Message:
    """Read a stream whose next event is sent once the last one is here: none waits for another."""
    await client.send(request(b"GET /stream HTTP/1.1"))
    head = await client.head()
    began()
    for number in range(EVENTS):
        worker.tick.set()
        async with asyncio.timeout(STEP_S):
            event = await client.reader.readexactly(len(chunk(b"data: 0\n\n")))
        assert event == chunk(b"data: %d\n\n" % number)
    async with asyncio.timeout(STEP_S):
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
    return head


async def drain(worker: Worker, sidecar: Sidecar, connect: Callable[[], Any]) -> None:
    """Tell the sidecar to end in the middle of a stream: that ends whole, idle connections go, exit code 0."""
    idle, busy = await connect(), await connect()
    assert (await idle.ask(request())).status == 200
    await _stream(worker, busy, lambda: sidecar.process.send(signal.SIGTERM))
    assert await busy.rest() == b""
    assert not await idle.ended(), "an idle connection ends in order"
    code = await asyncio.to_thread(sidecar.process.wait)
    assert code == 0
    for closed in (idle, busy):
        closed.close()


def _counted(sidecar: Sidecar, outcome: str, count: int) -> bool:
    return sidecar.metric("warmroute_requests_total", outcome=outcome) == count


def run_basics(
    directory: Path,
    worker: Callable[[], Worker],
    settings: Callable[[str], dict[str, Any]],
    connect: Callable[[str], Any],
) -> Sidecar:
    """Run all of it; ``settings`` of a worker's address, ``connect`` to a listener's address."""

    async def main() -> Sidecar:
        origin = worker()
        await origin.start()
        try:
            with running(directory, settings=settings(origin.address)) as sidecar:

                async def client() -> Client:
                    return Client(*await connect(sidecar.listen))

                await talk(origin, client)
                until(lambda: sidecar.metric("warmroute_requests_in_flight") == 0, "nothing in flight")
                for outcome, count in (("ok", 3), ("client_abort", 1)):
                    until(partial(_counted, sidecar, outcome, count), f"{count} {outcome} counted, within a tick")
                await drain(origin, sidecar, client)
                return sidecar
        finally:
            await origin.stop()

    return asyncio.run(main())
