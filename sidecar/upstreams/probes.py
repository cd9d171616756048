"""Active readiness probes: one GET, or a gRPC health check, on a connection of its own, for the status alone."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Final, Protocol

from router.urls import protocol_of
from sidecar.settings import UpstreamTls
from sidecar.tls.client import UPSTREAM
from sidecar.tls.material import HTTP1, HTTP2, Follower, Terms, plain
from sidecar.tls.names import peer_names
from sidecar.upstreams.adapters import Answer
from sidecar.upstreams.health_check import check
from sidecar.upstreams.pool import SECURE, split_address

if TYPE_CHECKING:
    from collections.abc import Callable

GRPC: Final = "grpc"
SECURE_GRPC: Final = "grpcs://"
LOOK_S: Final = 1.0
"""How often TLS files are looked at, where there are probes over TLS."""

_HEAD_BYTES: Final = 65536
_INTERIM: Final = 16
"""Most 1xx answers that are passed over."""


class Ask(Protocol):
    """Asks an endpoint for its readiness; never raises for what the endpoint does."""

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address`` (a URL or ``unix:/PATH``) and return what came back within ``timeout_s``.

        A gRPC endpoint is asked for its health instead: 200 stands for SERVING, 503 for anything else that it says.
        """


class HttpProber:
    """Asks over HTTP/1.1 or gRPC, and over TLS as requests would; an instance is an :class:`Ask`.

    Each probe opens a connection: a pooled one would not notice that the server stopped accepting. Redirects are not
    followed, bodies not read.
    """

    def __init__(self, tls: UpstreamTls | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        tls = tls or UpstreamTls()
        self._follower = Follower(UPSTREAM, tls, HTTP1)
        self._grpc_follower = Follower(UPSTREAM, tls, HTTP2)
        self._look_at = clock()

    def configure(self, tls: UpstreamTls) -> None:
        """Go by this from the next probe over TLS on."""
        self._follower = self._follower.changed_to(tls)
        self._grpc_follower = self._grpc_follower.changed_to(tls)
        self._look_at = self._clock()

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address``; the body is not read."""
        try:
            async with asyncio.timeout(timeout_s):
                return Answer(await self._ask(address, path))
        except TimeoutError:
            return Answer(None, f"nothing within {timeout_s:g} s")
        except ssl.SSLError as error:
            return Answer(None, f"TLS: {plain(error)}")
        except (OSError, ValueError, EOFError) as error:
            return Answer(None, f"{address}: {plain(error)}")

    async def _ask(self, address: str, path: str) -> int:
        reader, writer = await self._connect(address)
        try:
            host = address.partition("://")[2].rstrip("/") or "localhost"
            if protocol_of(address) == GRPC:
                return 200 if await check(reader, writer, host) else 503
            fields = f"Host: {host}\r\nUser-Agent: warmroute-probe\r\nAccept: */*\r\nConnection: close\r\n"
            writer.write(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())
            for _ in range(_INTERIM):
                status = _status(await reader.readuntil(b"\r\n\r\n"))
                if status >= 200:
                    return status
            raise ValueError(f"more than {_INTERIM} interim answers")
        except asyncio.IncompleteReadError:
            raise EOFError("closed before a whole response head") from None
        except asyncio.LimitOverrunError:
            raise ValueError(f"a response head of more than {_HEAD_BYTES} bytes") from None
        finally:
            writer.transport.abort()

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port, socket_path = split_address(address)
        if socket_path is not None:
            return await asyncio.open_unix_connection(socket_path, limit=_HEAD_BYTES)
        if not address.startswith((SECURE, SECURE_GRPC)):
            return await asyncio.open_connection(host, port, limit=_HEAD_BYTES)
        terms = await self._terms(self._grpc_follower if protocol_of(address) == GRPC else self._follower)
        name = terms.server_name or host
        reader, writer = await asyncio.open_connection(
            host, port, limit=_HEAD_BYTES, ssl=terms.context, server_hostname=name
        )
        if terms.allowed.entries:  # else the name asked for has been verified
            why = terms.allowed.refusal(peer_names(writer.get_extra_info("peercert")))
            if why:
                writer.transport.abort()
                raise ValueError(f"TLS: {why} by upstream_tls.allowed_names")
        return reader, writer

    async def _terms(self, follower: Follower) -> Terms:
        """Return the terms of the files as they are now, or were last when they were good."""
        now = self._clock()
        if now >= self._look_at or follower.terms is None:
            self._look_at = now + LOOK_S
            for one in (self._follower, self._grpc_follower):
                change = await asyncio.to_thread(one.look)
                if change is not None:
                    one.take(change)
        if follower.terms is None:
            raise ValueError(f"TLS: {follower.error}")
        return follower.terms


def _status(head: bytes) -> int:
    version, _, rest = head.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not rest[:3].isdigit():
        raise ValueError("what came is not HTTP/1.1")
    return int(rest[:3])
