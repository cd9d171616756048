"""Files over HTTP as web servers and S3-compatible stores give them: ranges, ETags, and the troubles of a network."""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class FileStore:
    """Serves ``files`` by path from threads of the test's process.

    ``cut_after``: how many bytes of a body come before the connection breaks; ``cuts`` how often it does. ``refuse``:
    a status for every request. ``ranges``: whether parts are answered. Requests are in ``seen``: method, path, range.
    """

    def __init__(self, files: dict[str, bytes], tls: ssl.SSLContext | None = None) -> None:
        self.files = files
        self.cut_after: int | None = None
        self.cuts = 1 << 30
        self.refuse = 0
        self.ranges = True
        self.redirect = ""
        self.seen: list[tuple[str, str, str]] = []
        self.fields: list[dict[str, str]] = []
        self.lock = threading.Lock()
        store = self

        class Handler(_Handler):
            files = store

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http{'s' if tls else ''}://{self.address}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def bodies(self, name: str) -> list[str]:
        """The ranges that were asked for of a file, other than to learn its length."""
        return [asked for method, path, asked in self.seen if method == "GET" and path == name and asked != "bytes=0-0"]


class _Handler(BaseHTTPRequestHandler):
    files: FileStore
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # who asked has gone, over TLS without a word
            super().handle()

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        store = self.files
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        asked = self.headers.get("Range", "")
        with store.lock:
            store.seen.append((self.command, path, asked))
            store.fields.append(dict(self.headers))
        if store.redirect:
            self._head(302, 0, {"Location": f"{store.redirect}/{path}"})
            return
        content = store.files.get(path)
        if store.refuse or content is None:
            self._head(store.refuse or 404, 0)
            return
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        if self.headers.get("If-Match", tag) != tag:
            self._head(412, 0)
            return
        fields = {"ETag": tag, "Last-Modified": "Mon, 30 Nov 2026 00:00:00 GMT"}
        matched = _RANGE.fullmatch(asked)
        status = 200
        if matched is not None and store.ranges and self.headers.get("If-Range", tag) == tag:
            first, last = int(matched[1]), min(int(matched[2]), len(content) - 1)
            if first >= len(content):
                self._head(416, 0, {"Content-Range": f"bytes */{len(content)}"})
                return
            fields["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        self._head(status, len(content), fields)
        if not with_body:
            return
        cut = store.cut_after
        if cut is not None and len(content) > cut and self._take_cut():
            self.wfile.write(content[:cut])
            self.close_connection = True
            return
        try:
            self.wfile.write(content)
        except OSError:  # who asked has gone
            self.close_connection = True

    def _take_cut(self) -> bool:
        with self.files.lock:
            self.files.cuts -= 1
            return self.files.cuts >= 0

    def _head(self, status: int, length: int, fields: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
