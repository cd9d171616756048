"""The admin API on the listening sockets that the supervisor made."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from aiohttp import web

from sidecar.admin import guard
from sidecar.admin.answers import Answers
from sidecar.admin.drilling import DrillHandlers
from sidecar.admin.handlers import Handlers
from sidecar.admin.versions import VersionHandlers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.admin.context import Context

MAX_BODY_BYTES = 64 * 1024
KEEP_ALIVE_S = 30.0
SHUTDOWN_S = 1.0


def make_app(context: Context) -> web.Application:
    """Return the application. Order matters: errors wrap everything, and nobody writes from a foreign page."""
    app = web.Application(
        client_max_size=MAX_BODY_BYTES,
        middlewares=[
            guard.let_go(lambda: context.handed_over),
            guard.errors,
            guard.same_host,
            guard.write_guard(lambda: context.settings.admin.token_file),
        ],
    )
    app.on_response_prepare.append(guard.uncached)
    answers = Answers()
    app.add_routes(Handlers(context, answers).routes())
    app.add_routes(VersionHandlers(context, answers).routes())
    app.add_routes(DrillHandlers(context).routes())
    return app


async def serve(context: Context, fds: Sequence[int]) -> web.AppRunner:
    """Serve on inherited listening sockets; the caller cleans the runner up."""
    runner = web.AppRunner(
        make_app(context), access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    for fd in fds:
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        await web.SockSite(runner, sock).start()
    return runner
