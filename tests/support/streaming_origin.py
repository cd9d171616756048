"""An origin whose streams last as long as the caller asks: ``python streaming_origin.py``, standard library only.

``GET /stream?seconds=S`` sends an event each 50 ms and ``data: [DONE]`` at the end; ``POST`` gives the body back.
``GET /ready?seconds=S`` answers after S seconds.
"""

from __future__ import annotations

import http.server
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_S = 0.05


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("warmroute-worker", "{}:{}".format(*self.connection.getsockname()))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        seconds = float(parse_qs(urlsplit(self.path).query)["seconds"][0])
        if self.path.startswith("/ready"):
            time.sleep(seconds)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            self._event(str(number))
            number += 1
            time.sleep(EVERY_S)
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        event = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a caller that went away is nothing to report
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def streaming_origin(log: Path) -> Iterator[str]:
    """Run one in a process of its own; yields its URL."""
    from tests.support.sidecars import Process

    with Process([sys.executable, __file__], log) as process:
        yield process.await_event("origin.listening")["url"]


def main() -> None:
    server = Server(("127.0.0.1", 0), Handler)
    sys.stderr.write(json.dumps({"event": "origin.listening", "url": f"http://127.0.0.1:{server.server_port}"}) + "\n")
    sys.stderr.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
