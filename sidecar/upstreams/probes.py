"""Active readiness probes: one GET, on a connection of its own, for the status alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import aiohttp

from sidecar.config.addresses import unix_path
from sidecar.upstreams.adapters import Answer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Ask(Protocol):
    """Asks an endpoint for its readiness; never raises for what the endpoint does."""

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address`` (``http://HOST:PORT``, ``unix:/PATH``); return what came within ``timeout_s``."""


class HttpProber:
    """Asks over HTTP/1.1. Use as an async context manager; an instance is an :class:`Ask`.

    Each probe opens a connection: a pooled one would not notice that the server stopped accepting. Redirects are not
    followed, cookies not kept, proxies of the environment not used.
    """

    def __init__(self) -> None:
        self._sessions: dict[str | None, aiohttp.ClientSession] = {}  # by the Unix socket's path; None: over TCP
        self._entered = False

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

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address``; the body is not read."""
        if not self._entered:
            raise RuntimeError("HttpProber is used inside 'async with'")
        socket_path = unix_path(address)
        url = (address if socket_path is None else "http://localhost") + path
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session(socket_path).get(url, timeout=timeout, allow_redirects=False) as response:
                return Answer(response.status)
        except TimeoutError:
            return Answer(None, f"nothing within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, str(error) or type(error).__name__)
