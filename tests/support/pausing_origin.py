"""An origin that pauses now and then: ``python pausing_origin.py EVERY PAUSE_S``, standard library only.

Each POST is answered with its body after 5 ms, every EVERYth after PAUSE_S (0: none pauses). ``GET /counts`` says how
many were executed to their end, how many were left by the proxy before, and after how many seconds each of those.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK_S = 0.005


class Origin:
    def __init__(self, every: int, pause_s: float) -> None:
        self.every = every
        self.pause_s = pause_s
        self.asked = 0
        self.answered = 0
        self.left_after_s: list[float] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                fields = dict(line.split(": ", 1) for line in head[:-4].split("\r\n")[1:])
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.startswith("get /counts"):
                    body = json.dumps({"answered": self.answered, "left_after_s": self.left_after_s}).encode()
                elif not await self.work(reader):
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def work(self, reader: asyncio.StreamReader) -> bool:
        """Take the time that a request takes; False where nobody waits for its answer any more."""
        self.asked += 1
        pauses = self.every and self.asked % self.every == 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self.pause_s if pauses else WORK_S):
                await reader.read(1)  # nothing comes but the end
        except TimeoutError:
            self.answered += 1
            return True
        except OSError:
            pass
        self.left_after_s.append(loop.time() - began)
        return False


@contextmanager
def pausing_origin(log: Path, every: int, pause_s: float) -> Iterator[str]:
    """Run one in a process of its own; yields its URL."""
    from tests.support.sidecars import Process

    with Process([sys.executable, __file__, str(every), str(pause_s)], log) as process:
        yield process.await_event("origin.listening")["url"]


def counts(url: str) -> dict[str, Any]:
    """Return what an origin counted."""
    with urllib.request.urlopen(f"{url}/counts", timeout=5) as response:
        counted: dict[str, Any] = json.load(response)
        return counted


async def main(every: int, pause_s: float) -> None:
    origin = Origin(every, pause_s)
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0, backlog=256)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sys.stderr.write(json.dumps({"event": "origin.listening", "url": url}) + "\n")
    sys.stderr.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
