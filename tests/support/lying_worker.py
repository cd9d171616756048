"""A worker whose readiness lies: it accepts at once, says ready from the start, and holds requests while it loads.

Run as ``python lying_worker.py PORT LOAD_S SERVICE_S AT_ONCE [CLOSE_IDLE_S]``. ``GET /account`` tells what came: how
many requests of callers came before a warm-up request (``warmroute-background: 1``) was answered within ``WITHIN_S``.
``CLOSE_IDLE_S``: connections without a request for so long are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


WITHIN_S = 0.3
"""What tests take for the time in which a warm worker answers."""


class _Server:
    def __init__(self, load_s: float, service_s: float, at_once: int, close_idle_s: float | None) -> None:
        self._loaded_at = time.monotonic() + load_s
        self._service_s = service_s
        self._free = asyncio.Semaphore(at_once)
        self._close_idle_s = close_idle_s
        self.account: dict[str, Any] = {"pid": os.getpid(), "live": 0, "background": 0, "too_early": 0, "proven": False}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            while True:
                async with asyncio.timeout(self._close_idle_s):
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                fields = dict(line.partition(": ")[::2] for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(fields.get("content-length", 0)))
                body = await self._answer(head.split()[1], fields)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                if fields.get("connection") == "close":
                    break
        writer.close()

    async def _answer(self, path: str, fields: dict[str, str]) -> bytes:
        if path == "/account":
            return json.dumps(self.account).encode()
        if path == "/v2/health/ready":
            return b""
        came_at = time.monotonic()
        background = fields.get("warmroute-background") == "1"
        self.account["background" if background else "live"] += 1
        if not background and not self.account["proven"]:
            self.account["too_early"] += 1
        held_s = self._loaded_at - time.monotonic()
        if held_s > 0:
            await asyncio.sleep(held_s)
        async with self._free:
            await asyncio.sleep(self._service_s)
        if background and time.monotonic() - came_at <= WITHIN_S:
            self.account["proven"] = True
        return b'{"ok": true}'


class LyingWorker:
    """One such worker as a process on a port that stays its own; started by the ``with`` block."""

    def __init__(
        self, port: int, *, load_s: float = 1.0, service_s: float = 0.02, at_once: int = 4, close_idle_s: float = 0
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-S", "-P", __file__, str(port), str(load_s), str(service_s), str(at_once)]
        self._command += [str(close_idle_s)] if close_idle_s else []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start a process; returns at once."""
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        """End the process without a word."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def account(self) -> dict[str, Any]:
        """Return what came, or nothing where it does not answer."""
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/account")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        return found


async def _main(port: int, load_s: float, service_s: float, at_once: int, close_idle_s: float | None = None) -> None:
    server = _Server(load_s, service_s, at_once, close_idle_s)
    async with await asyncio.start_server(server.serve, "127.0.0.1", port, reuse_address=True) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    numbers = [float(text) for text in sys.argv[1:]]
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    asyncio.run(_main(int(numbers[0]), numbers[1], numbers[2], int(numbers[3]), *numbers[4:5]))
