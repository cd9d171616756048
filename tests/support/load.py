"""A bounded, steady load from keep-alive clients that keeps account of every answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

TIMEOUT_S = 15.0
AFTER_FAILURE_S = 0.02


@dataclass(frozen=True, slots=True)
class Ask:
    """One kind of request. ``end`` is what the body of a whole answer must end with."""

    name: str
    head: bytes
    body: bytes = b""
    end: bytes = b""

    @property
    def raw(self) -> bytes:
        """What goes over the wire."""
        return self.head + b"Host: test\r\nContent-Length: %d\r\n\r\n" % len(self.body) + self.body


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request; times are monotonic seconds.

    ``status`` is 0 where no whole head came. ``begun``: at least one byte of an answer came. ``fresh``: the request was
    the first one on its connection. ``port`` is the caller's. ``error`` is empty where the answer is whole.
    """

    ask: str
    began: float
    ended: float
    status: int
    begun: bool
    fresh: bool
    port: int
    worker: str
    closes: bool
    error: str

    @property
    def ok(self) -> bool:
        """A whole answer with status 200."""
        return self.status == 200 and not self.error


class Load:
    """``clients`` keep-alive clients that ask in turn for ``asks``, together at most ``rate_per_s`` times a second.

    ``tls`` makes the context of each new connection.

    Runs in a thread of its own inside the ``with`` block, or until each client has asked ``rounds`` times. A failed
    request is never sent again; its client goes on with the next one on a new connection.
    """

    def __init__(
        self,
        listen: str,
        asks: Sequence[Ask],
        *,
        clients: int = 16,
        rate_per_s: float = 160.0,
        rounds: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._place = (host, int(port))
        self._asks = tuple(asks)
        self._clients = clients
        self._period_s = clients / rate_per_s
        self._rounds = rounds
        self._tls = tls
        self._stopping = False
        self.began = time.monotonic()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self.answers: list[Answer] = []
        self.ports: set[int] = set()
        """The callers' ports of the connections that are open now."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None:
            error.add_note(f"its load: {self.summary()}")

    def stop(self) -> None:
        """Let what is under way end, and ask for nothing more."""
        self._stopping = True
        self.join()

    def join(self) -> None:
        """Wait until every client has done its rounds."""
        self._thread.join(TIMEOUT_S + 5)
        assert not self._thread.is_alive(), "the load does not end"

    def failed(self) -> list[Answer]:
        """Return the answers that are not whole, or not 200."""
        return [answer for answer in list(self.answers) if not answer.ok]

    def between(self, began: float, ended: float) -> list[Answer]:
        """Return the whole answers to what was asked in that time."""
        return [answer for answer in list(self.answers) if answer.ok and began <= answer.began < ended]

    def summary(self) -> str:
        """Return counts of how requests ended, and the first that failed."""
        ends = Counter(f"{answer.ask} {answer.status} {answer.error}".strip() for answer in list(self.answers))
        return f"{dict(ends)}; first failures: {self.failed()[:3]}"

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._clients):
                tasks.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        caller = _Caller(self._place, self.ports, self._tls)
        due = time.monotonic() + self._period_s * number / self._clients
        turn = number
        try:
            while not self._stopping and (not self._rounds or turn < number + self._rounds):
                await asyncio.sleep(due - time.monotonic())
                answer = await caller.ask(self._asks[turn % len(self._asks)])
                self.answers.append(answer)
                turn += 1
                due = max(due + self._period_s, time.monotonic() + (0.0 if answer.ok else AFTER_FAILURE_S))
        finally:
            caller.hang_up()


class _Caller:
    """One client's connection, opened when it is needed."""

    def __init__(
        self, place: tuple[str, int], ports: set[int], tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._place = place
        self._tls = tls
        self._ports = ports
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._port = 0

    async def ask(self, ask: Ask) -> Answer:
        began = time.monotonic()
        fresh = self._writer is None
        reading = _Reading()
        error = ""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._reader is None or self._writer is None:
                    self._reader, self._writer = await asyncio.open_connection(
                        *self._place, ssl=self._tls() if self._tls is not None else None
                    )
                    self._port = self._writer.get_extra_info("sockname")[1]
                    self._ports.add(self._port)
                self._writer.write(ask.raw)
                await reading.answer(self._reader)
            if not reading.body.endswith(ask.end):
                error = "finished falsely"
        except asyncio.IncompleteReadError as problem:
            reading.begun = reading.begun or bool(problem.partial)
            error = "closed"
        except (OSError, TimeoutError) as problem:
            error = type(problem).__name__
        if error or reading.closes:
            self.hang_up()
        return Answer(
            ask=ask.name,
            began=began,
            ended=time.monotonic(),
            status=reading.status,
            begun=reading.begun,
            fresh=fresh,
            port=self._port,
            worker=reading.fields.get("warmroute-worker", ""),
            closes=reading.closes,
            error=error,
        )

    def hang_up(self) -> None:
        if self._writer is not None:
            self._ports.discard(self._port)
            with contextlib.suppress(OSError):
                if self._tls is None:
                    self._writer.close()
                else:  # saying goodbye takes turns of the loop, which may be over by then
                    self._writer.transport.abort()
        self._reader = self._writer = None


class _Reading:
    """One answer as far as it has come."""

    def __init__(self) -> None:
        self.status = 0
        self.begun = False
        self.closes = False
        self.fields: dict[str, str] = {}
        self.body = b""

    async def answer(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.begun = True
        first, *lines = head[:-4].split("\r\n")
        self.fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.status = int(first.split()[1])
        self.closes = self.fields.get("connection", "").lower() == "close"
        if self.fields.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                self.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            self.body = await reader.readexactly(int(self.fields.get("content-length", 0)))


def infer(model: str, **parameters: Any) -> Ask:
    """Ask the deterministic engine's default model for one inference."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.5]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nContent-Type: application/json\r\n"
    return Ask("infer", head.encode(), body, b"}")


def echo() -> Ask:
    """Ask :mod:`tests.support.streaming_origin` for a short answer."""
    return Ask("echo", b"POST /echo HTTP/1.1\r\n", b"x" * 1000, b"x")


def stream(seconds: float) -> Ask:
    """Ask :mod:`tests.support.streaming_origin` for a stream that lasts this long."""
    return Ask("stream", b"GET /stream?seconds=%g HTTP/1.1\r\n" % seconds, b"", b"data: [DONE]\n\n")
