"""Who may do what: reads are open, every write needs the Unix socket or the token. Middlewares of the admin API."""

from __future__ import annotations

import hmac
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from router.urls import is_loopback_name
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"
READS = frozenset({"GET", "HEAD"})
_log = get_log("admin")
_UCRED = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""


class RefusedError(Exception):
    """A request that is not answered as asked. ``extra`` goes into the error body beside the text."""

    def __init__(self, status: int, text: str, **extra: object) -> None:
        super().__init__(text)
        self.status = status
        self.extra = extra


def json_response(document: object, status: int = 200) -> web.Response:
    """Return ``document`` as JSON, for a person's eyes too."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    return web.Response(body=body, status=status, content_type=JSON)


def _peer_socket(request: web.Request) -> Any:
    transport = request.transport
    return transport.get_extra_info("socket") if transport is not None else None


def over_unix(request: web.Request) -> bool:
    """Whether the request came in over the Unix socket, whose file permissions have let it through."""
    sock = _peer_socket(request)
    return sock is not None and sock.family == socket.AF_UNIX


def who(request: web.Request) -> str:
    """Name the caller for the audit log: the user and process behind a Unix socket, else the address."""
    sock = _peer_socket(request)
    if sock is not None and sock.family == socket.AF_UNIX:
        pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return f"unix uid={uid} pid={pid}"
    return f"tcp {request.remote}"


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn everything that goes wrong into ``{"error": ...}``."""
    try:
        response = await handler(request)
    except RefusedError as error:
        response = json_response({"error": str(error), **error.extra}, error.status)
    except web.HTTPMethodNotAllowed as error:
        response = json_response({"error": f"{request.method} is not allowed here"}, 405)
        response.headers["Allow"] = ",".join(sorted(error.allowed_methods))
    except web.HTTPException as error:
        text = f"no such path: {request.path}" if error.status == 404 else error.reason
        response = json_response({"error": text}, error.status)
    except Exception:  # noqa: BLE001  the boundary: logged whole, told in brief
        _log.error("admin.failed", exc_info=True, method=request.method, path=request.path)
        response = json_response({"error": "internal error; see the log of the control process"}, 500)
    return response


async def uncached(_request: web.Request, response: web.StreamResponse) -> None:
    """Let no answer be cached or guessed at; called when its head is about to be sent."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def let_go(handed_over: Callable[[], bool]) -> Any:
    """Return the middleware that closes kept connections once another sidecar serves the admin API."""

    @web.middleware
    async def closing(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if handed_over():
            response.force_close()
        return response

    return closing


@web.middleware
async def same_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a loopback request under another name: a web page that rebinds its DNS name to 127.0.0.1 is no user."""
    if not over_unix(request):
        sock = _peer_socket(request)
        here = sock.getsockname()[0] if sock is not None else ""
        if is_loopback_name(f"[{here}]") and not is_loopback_name(request.headers.get("Host", "")):
            raise RefusedError(403, "the Host header must name a loopback address: 127.0.0.1, [::1] or localhost")
    return await handler(request)


def write_guard(token_file: Callable[[], str | None]) -> Any:
    """Return the middleware that lets writes through over the Unix socket, or with the token over TCP.

    ``token_file`` says where the token stands now. The file is read at each such request, so a new token counts from
    the moment it is there.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in READS:
            return await handler(request)
        caller, status = who(request), 500
        try:
            if not over_unix(request):
                _check_token(request, token_file())
            response = await handler(request)
            status = response.status
        except RefusedError as error:
            status = error.status
            raise
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            _log.info("audit.write", method=request.method, path=request.path, caller=caller, status=status)
        return response

    return guard


def _check_token(request: web.Request, token_file: str | None) -> None:
    if token_file is None:
        raise RefusedError(
            403, "writes over TCP need a token: use the admin socket, or set admin.token_file and send it as Bearer"
        )
    try:
        expected = Path(token_file).read_bytes().strip()
    except OSError as error:
        _log.error("admin.token_unreadable", path=token_file, error=str(error))
        raise RefusedError(503, "the token file cannot be read; use the admin socket") from error
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given:
        raise RefusedError(401, "send the content of admin.token_file as Authorization: Bearer TOKEN")
    if not expected or not hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected):
        raise RefusedError(401, "the token is not the one in admin.token_file")
