"""Active readiness probes: one GET, on a connection of its own, for the status alone."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp

from sidecar.config.addresses import unix_path
from sidecar.settings import UpstreamTls
from sidecar.tls.client import UPSTREAM
from sidecar.tls.material import HTTP1, Follower, client_context, material_of, plain
from sidecar.tls.names import AllowList, peer_names
from sidecar.upstreams.adapters import Answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

LOOK_S = 1.0
"""How often TLS files are looked at, where there are probes over TLS."""


class Ask(Protocol):
    """Asks an endpoint for its readiness; never raises for what the endpoint does."""

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address`` (``http://HOST:PORT``, ``unix:/PATH``); return what came within ``timeout_s``."""


class HttpProber:
    """Asks over HTTP/1.1. Use as an async context manager; an instance is an :class:`Ask`.

    Each probe opens a connection: a pooled one would not notice that the server stopped accepting. Redirects are not
    followed, cookies not kept, proxies of the environment not used.
    """

    def __init__(self, tls: UpstreamTls | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.configure(tls or UpstreamTls())
        self._sessions: dict[str | None, aiohttp.ClientSession] = {}  # by the Unix socket's path; None: over TCP
        self._entered = False

    def configure(self, tls: UpstreamTls) -> None:
        """Go by this from the next probe over TLS on."""
        self._follower = Follower(UPSTREAM, material_of(tls), lambda: client_context(tls, HTTP1))
        self._server_name = tls.server_name
        self._allowed = AllowList(tls.allowed_names)
        self._look_at = self._clock()

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        while self._sessions:
            await self._sessions.popitem()[1].close()

    def _session(self, socket_path: str | None) -> aiohttp.ClientSession:
        """Return the session for a Unix socket, or for all TCP endpoints."""
        session = self._sessions.get(socket_path)
        if session is None:
            session = self._sessions[socket_path] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True)  # as many as are configured
                if socket_path is None
                else aiohttp.UnixConnector(socket_path, limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "warmroute-probe"},
                auto_decompress=False,
                trust_env=False,
            )
        return session

    async def _context(self) -> ssl.SSLContext | None:
        """Return the context of the files as they are now, or were last when they were good."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            change = await asyncio.to_thread(self._follower.look)
            if change is not None:
                self._follower.take(change)
        return self._follower.context

    def _refusal(self, response: aiohttp.ClientResponse) -> str:
        """Return why the worker that answered is not one that may; empty: it is."""
        if not self._allowed.entries:  # the name it was asked for has been verified
            return ""
        transport = response.connection.transport if response.connection is not None else None
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        return self._allowed.refusal(peer_names(certificate))

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address``; the body is not read."""
        if not self._entered:
            raise RuntimeError("HttpProber is used inside 'async with'")
        socket_path = unix_path(address)
        url = (address if socket_path is None else "http://localhost") + path
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        options: dict[str, Any] = {}
        if url.startswith("https://"):
            context = await self._context()
            if context is None:
                return Answer(None, f"TLS: {self._follower.error}")
            options = {"ssl": context, "server_hostname": self._server_name}
        try:
            async with self._session(socket_path).get(
                url, timeout=timeout, allow_redirects=False, **options
            ) as response:
                why = self._refusal(response) if options else ""
                return Answer(None, f"TLS: {why}") if why else Answer(response.status)
        except ssl.SSLCertVerificationError as error:
            return Answer(None, f"TLS: {plain(error)}")
        except TimeoutError:
            return Answer(None, f"nothing within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, str(error) or type(error).__name__)
