"""A listener that ends TLS in front of a Unix socket, for a server that speaks none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from sidecar.tasks import end_all
from tests.support.loops import turns

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def tls_front(unix_socket: Path, context: ssl.SSLContext) -> Iterator[int]:
    """Accept TLS by ``context``, and pass on to ``unix_socket``; yields the port.

    One thread does all of it: two that read and write one TLS connection at the same time spoil it before Python 3.13.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(unix_socket)
            try:
                await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
            finally:
                inner_writer.transport.abort()
        finally:
            writer.transport.abort()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # who is refused, and who hangs up
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    running = threading.Thread(target=loop.run_forever)
    running.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        server.close()
        loop.run_until_complete(end_all(asyncio.all_tasks(loop)))
        loop.run_until_complete(turns())  # in which transports close
        loop.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()
