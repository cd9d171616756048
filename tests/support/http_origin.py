"""A worker's part that the standard library's HTTP server plays in threads of the test's process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType


class Handler(BaseHTTPRequestHandler):
    """Keeps connections and says nothing on standard error; a test says what it answers to the methods it expects."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def get(self) -> None:
        """Answer a GET."""
        self.answer(b"", 501)

    def post(self) -> None:
        """Answer a POST."""
        self.answer(b"", 501)

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def body(self) -> bytes:
        """Read the request's body, which has a length."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, body: bytes, status: int = 200, fields: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (fields or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # who asked has gone
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Echo(Handler):
    """Answers a POST with what it was sent."""

    def post(self) -> None:
        self.answer(self.body())


class _Server(ThreadingHTTPServer):
    request_queue_size = 256


class HttpOrigin:
    """One on a port of its own while the block runs, each connection in a thread."""

    def __init__(self, handler: type[Handler]) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.socket.settimeout(0.5)  # who is gone again before accept must not hold up the end
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take no connection any more; those that are there go on. May be called in the block."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
