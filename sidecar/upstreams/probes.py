"""Active readiness probes: one GET, on a connection of its own, for the status alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import aiohttp

from sidecar.upstreams.adapters import Answer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Ask(Protocol):
    """Asks an endpoint for its readiness; never raises for what the endpoint does."""

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address`` (``http://HOST:PORT``) and return what came back within ``timeout_s``."""


class HttpProber:
    """Asks over HTTP/1.1. Use as an async context manager; an instance is an :class:`Ask`.

    Each probe opens a connection: a pooled one would not notice that the server stopped accepting. Redirects are not
    followed, cookies not kept, proxies of the environment not used.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),  # as many as are configured
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "warmroute-probe"},
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __call__(self, address: str, path: str, timeout_s: float) -> Answer:
        """GET ``path`` at ``address``; the body is not read."""
        if self._session is None:
            raise RuntimeError("HttpProber is used inside 'async with'")
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(address + path, timeout=timeout, allow_redirects=False) as response:
                return Answer(response.status)
        except TimeoutError:
            return Answer(None, f"nothing within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, str(error) or type(error).__name__)
