"""A version below an http(s) URL: ``URL/SHA256SUMS`` says which files there are, and each is read in ranges.

Whoever waits for a server can be woken: :meth:`HttpSource.close` ends every connection, whatever it does at the moment.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
import weakref
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from worker.loading.sources import MAX_SUMS_BYTES, RemoteFile, SourceError
from worker.loading.version_files import SUMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STALL_S = 10.0
"""For connecting, for all of an answer's head, and for the next bytes of its body."""
LEAST_BYTES_PER_S = 4096
"""What a body must bring on average, once it has had STALL_S: one that drips would never end otherwise."""
PIECE_BYTES = 256 << 10
_TOTAL = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
"""Of a size that a file may have: longer numbers are not even read."""
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: object,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise SourceError(f"{code}: redirected from https to {urlsplit(newurl).scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


class _Connections:
    """The connections that are open, so that they can be ended while threads wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[socket.socket, int] = weakref.WeakKeyDictionary()
        self._ended = False

    def add(self, made: socket.socket) -> None:
        """Count a connection of the calling thread, for as long as anybody holds it.

        Raises:
            OSError: everything was ended.
        """
        with self._lock:
            if self._ended:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            self._open[made] = threading.get_ident()

    def connect(self, host: str, port: int, timeout_s: float | None) -> socket.socket:
        """Connect to the first of a host's addresses that answers; it can be ended from its first step on.

        Raises:
            OSError: none does, or everything was ended.
        """
        refusal = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            made = socket.socket(family, kind, protocol)
            try:
                self.add(made)
                made.settimeout(timeout_s)
                made.connect(address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                made.close()
                refusal = error
            else:
                return made
        raise refusal

    def end(self, thread: int | None = None) -> None:
        """End the connections of one thread, or all for ever. What waits for them gets an error or an early end."""
        with self._lock:
            self._ended = self._ended or thread is None
            for made in [made for made, owner in self._open.items() if thread in (None, owner)]:
                with contextlib.suppress(OSError):  # it is closed already
                    socket.socket.shutdown(made, socket.SHUT_RDWR)  # not TLS's own, which another thread may be in


class _Plain(http.client.HTTPConnection):
    connections: _Connections

    def connect(self) -> None:
        self.sock = self.connections.connect(self.host, self.port, self.timeout)


class _Secure(http.client.HTTPSConnection):
    connections: _Connections
    tls: ssl.SSLContext

    def connect(self) -> None:
        plain = self.connections.connect(self.host, self.port, self.timeout)
        self.sock = self.tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        self.connections.add(self.sock)
        self.sock.do_handshake()


class _Opener(urllib.request.AbstractHTTPHandler):
    """Opens http and https on connections that are counted."""

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, connections: _Connections) -> None:
        super().__init__()
        context = ssl.create_default_context()
        self._plain: type[_Plain] = type("Plain", (_Plain,), {"connections": connections})
        self._secure: type[_Secure] = type("Secure", (_Secure,), {"connections": connections, "tls": context})

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._plain, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._secure, request)


class HttpSource:
    """See this module's text."""

    def __init__(self, url: str, stall_s: float = STALL_S) -> None:
        """``stall_s``: see :data:`STALL_S`."""
        parts = urlsplit(url)
        self._base = url.partition("?")[0].rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._stall_s = stall_s
        self._connections = _Connections()
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            _Opener(self._connections),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _NoDowngrade(),
        ):
            self._opener.add_handler(handler)

    def sums(self) -> bytes | None:
        """See :class:`worker.loading.sources.Source`."""
        with self._open(SUMS, {}) as answer:
            found = bytearray()
            for piece in self._body(SUMS, answer):
                found += piece
                if len(found) > MAX_SUMS_BYTES:
                    raise SourceError(f"{SUMS}: over {MAX_SUMS_BYTES} bytes")
        return bytes(found)

    def files(self, names: Sequence[str]) -> tuple[RemoteFile, ...]:
        """See :class:`worker.loading.sources.Source`."""
        return tuple(self._file(name) for name in names)

    def _file(self, name: str) -> RemoteFile:
        with self._open(name, {"Range": "bytes=0-0"}) as answer:
            tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            if answer.status == 206:
                matched = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
                if matched is None:
                    raise SourceError(f"{name}: a part without a Content-Range that tells the whole length")
                return RemoteFile(name, int(matched[3]), "" if tag.startswith("W/") else tag)
            empty = (
                answer.headers.get("Content-Range") if answer.status == 416 else answer.headers.get("Content-Length")
            )
            if empty in ("bytes */0", "0"):  # no range of it can be had
                return RemoteFile(name, 0, tag)
        raise SourceError(f"{name}: the server does not answer ranges (status {answer.status} to one)")

    def read(self, file: RemoteFile, offset: int, length: int) -> Iterator[bytes]:
        """See :class:`worker.loading.sources.Source`."""
        fields = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if file.tag:
            fields["If-Range"] = file.tag
        with self._open(file.name, fields) as answer:
            matched = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or matched is None or int(matched[3]) != file.size_bytes:
                raise SourceError(f"{file.name}: is another one by now")
            if (int(matched[1]), int(matched[2])) != (offset, offset + length - 1):
                raise SourceError(f"{file.name}: the server answers another range than was asked for")
            yield from self._body(file.name, answer)

    def close(self) -> None:
        """End what is under way, in whatever thread, and begin nothing any more."""
        self._connections.end()

    def _body(self, name: str, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        """Return an answer's body as it comes, and give up where it comes too slowly."""
        began, came, left = time.monotonic(), 0, answer.length
        while left is None or came < left:
            try:
                piece = answer.read1(PIECE_BYTES if left is None else min(PIECE_BYTES, left - came))
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise SourceError(f"{name}: the answer broke off: {_text(error)}", again=True) from error
            if not piece:
                return
            came += len(piece)
            yield piece
            took_s = time.monotonic() - began
            if took_s > self._stall_s and came < LEAST_BYTES_PER_S * took_s:
                raise SourceError(
                    f"{name}: the answer comes too slowly: {came} bytes in {took_s:.0f} s, and {LEAST_BYTES_PER_S} a "
                    f"second are the least",
                    again=True,
                )

    def _open(self, name: str, fields: dict[str, str]) -> http.client.HTTPResponse:
        url = f"{self._base}/{quote(name)}{self._query}"
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **fields})  # noqa: S310 - its handlers
        late = threading.Event()

        def end(thread: int) -> None:
            late.set()
            self._connections.end(thread)

        watch = threading.Timer(self._stall_s, end, (threading.get_ident(),))
        watch.daemon = True
        watch.start()
        try:
            answer = self._opener.open(request, timeout=self._stall_s)
        except urllib.error.HTTPError as error:
            if error.code == 416 and fields.get("Range") == "bytes=0-0":
                return error  # type: ignore[return-value]
            with error:
                raise SourceError(f"{name}: status {error.code}", again=error.code in _AGAIN) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            said = f"no answer within {self._stall_s:g} s" if late.is_set() else _text(why)
            raise SourceError(f"{name}: {said}", again=True) from error
        finally:
            watch.cancel()
        if late.is_set():  # what came of the head before its connection was ended is taken for all of it
            answer.close()
            raise SourceError(f"{name}: no answer within {self._stall_s:g} s", again=True)
        found: http.client.HTTPResponse = answer
        return found


def _text(error: object) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
