"""What a model depends on besides its own files: servers that must answer, files that must be there."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECK_S: Final = 1.0
"""How long one may take to answer, and how long until all are looked at again."""
MISSES: Final = 3
"""A model that serves is taken out after so many looks in a row that found one amiss: a single one proves little."""
MAX_DEPENDENCIES: Final = 16
MAX_HEAD_BYTES: Final = 64 << 10


class DependencyError(ValueError):
    """This is no dependency; the text says what one looks like."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One of them, as it was written: ``tcp://HOST:PORT``, ``http://HOST[:PORT]/PATH`` or ``file:///PATH``."""

    text: str
    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""


def parse(text: str) -> Dependency:
    """Read a dependency.

    Raises:
        DependencyError: it is none.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = (
        _nameable(parts.hostname) and text.isascii() and text.isprintable() and " " not in text and not parts.username
    )
    if parts.scheme == "file" and plain and not parts.netloc and parts.path.startswith("/"):
        return Dependency(text, "file", path=parts.path)
    if parts.scheme == "tcp" and plain and parts.hostname and port and not (parts.path or parts.query):
        return Dependency(text, "tcp", parts.hostname, port)
    if parts.scheme == "http" and plain and parts.hostname:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Dependency(text, "http", parts.hostname, port or 80, target)
    raise DependencyError(f"{text!r}: expected tcp://HOST:PORT, http://HOST:PORT/PATH or file:///PATH")


def _nameable(host: str | None) -> bool:
    """Whether a name may be looked up at all: its labels are there, and no longer than DNS has them (RFC 1035)."""
    try:
        return len((host or "").encode("idna")) < 254
    except UnicodeError:
        return False


async def amiss(dependencies: Sequence[Dependency], timeout_s: float = CHECK_S) -> str:
    """Return what is amiss with the first of ``dependencies`` that is not as it should be; empty where all are.

    All are looked at at once.
    """
    said = await asyncio.gather(*(_check(one, timeout_s) for one in dependencies))
    return next((f"{one.text}: {why}" for one, why in zip(dependencies, said, strict=True) if why), "")


async def _check(one: Dependency, timeout_s: float) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            if one.scheme == "file":
                return "" if await asyncio.to_thread(os.path.exists, one.path) else "no such file"
            reader, writer = await asyncio.open_connection(one.host, one.port)
            try:
                return "" if one.scheme == "tcp" else await _ask(one, reader, writer)
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


async def _ask(one: Dependency, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Send a GET; a 2xx is what is hoped for (RFC 9110 section 15.3). Interim answers are passed over."""
    import httptools  # only where a model depends on a server of that kind

    statuses: list[int] = []

    class Taken:
        def on_headers_complete(self) -> None:
            statuses.append(parser.get_status_code())

    parser = httptools.HttpResponseParser(Taken())
    host = f"[{one.host}]" if ":" in one.host else one.host
    writer.write(f"GET {one.path} HTTP/1.1\r\nHost: {host}:{one.port}\r\nConnection: close\r\n\r\n".encode())
    taken = 0
    while not (statuses and statuses[-1] >= 200):
        data = await reader.read(MAX_HEAD_BYTES)
        taken += len(data)
        if not data or taken > MAX_HEAD_BYTES:
            return "the connection was closed without an answer" if not data else "its answer has too long a head"
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # asked for nothing else, it is to speak something else
            return f"HTTP {statuses[-1]}"
        except httptools.HttpParserError as error:
            return f"no HTTP answer: {error}"
    return "" if statuses[-1] < 300 else f"HTTP {statuses[-1]}"
