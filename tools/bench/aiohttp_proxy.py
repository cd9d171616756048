"""A reverse proxy of a few lines on aiohttp and uvloop: ``python aiohttp_proxy.py PORT ORIGIN...``."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys

import uvloop
from aiohttp import ClientConnectionError, ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}
ATTEMPTS = 2


async def serve(port: int, origins: list[str]) -> None:
    """Pass everything on, in turn to each of ``origins``, until a signal comes."""
    turn = itertools.cycle(origins)
    timeout = ClientTimeout(total=None, sock_connect=1, sock_read=300)
    session = ClientSession(connector=TCPConnector(limit=0), timeout=timeout, auto_decompress=False)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        headers.append(("X-Forwarded-For", request.remote or ""))
        for attempt in range(ATTEMPTS):
            url = f"http://127.0.0.1:{next(turn)}{request.path_qs}"
            try:
                async with session.request(
                    request.method, url, headers=headers, data=body or None, allow_redirects=False
                ) as upstream:
                    kept = [(name, value) for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP]
                    if upstream.content_length is not None:
                        return web.Response(status=upstream.status, headers=dict(kept), body=await upstream.read())
                    answer = web.StreamResponse(status=upstream.status, headers=dict(kept))
                    await answer.prepare(request)
                    async for chunk in upstream.content.iter_any():
                        await answer.write(chunk)
                    await answer.write_eof()
                    return answer
            except ClientConnectionError:
                if attempt == ATTEMPTS - 1:
                    raise web.HTTPBadGateway from None
        raise AssertionError

    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await runner.cleanup()
    await session.close()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
