"""Active probes: a few GETs, or a gRPC health check, on a connection of their own."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from router.urls import protocol_of
from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.head import CHUNKED, HeadError
from sidecar.http1.parsing import parse_response
from sidecar.settings import UpstreamTls
from sidecar.tls.client import UPSTREAM
from sidecar.tls.material import HTTP1, HTTP2, Follower, Terms, plain
from sidecar.tls.names import peer_names
from sidecar.upstreams.adapters import Answer
from sidecar.upstreams.grpc_call import CallError, TooLongError, call, check
from sidecar.upstreams.pool import SECURE, split_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.http1.head import ResponseHead
    from sidecar.upstreams.adapters import Question

GRPC: Final = "grpc"
SECURE_GRPC: Final = "grpcs://"
LOOK_S: Final = 1.0
"""How often TLS files are looked at, where there are probes over TLS."""

_HEAD_BYTES: Final = 65536
_PIECE_BYTES: Final = 65536
_INTERIM: Final = 16
"""Most 1xx answers that are passed over."""


class Ask(Protocol):
    """Asks an endpoint; never raises for what the endpoint does."""

    async def __call__(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        """Ask each question at ``address`` (a URL or ``unix:/PATH``), in order, all within ``timeout_s``.

        A gRPC endpoint is asked for its health instead: 200 stands for SERVING, 503 for anything else that it says.
        """


@dataclass(slots=True)
class Costs:
    """What probing has cost so far: questions asked, seconds spent on them, bytes read."""

    questions: int = 0
    seconds: float = 0.0
    read_bytes: int = 0


class HttpProber:
    """Asks over HTTP/1.1 or gRPC, and over TLS as requests would; an instance is an :class:`Ask`.

    Each probe opens a connection: a pooled one would not notice that the server stopped accepting. Where the server
    lets it, that one takes all questions of the probe. Redirects are not followed. Answers are read as those to callers
    are: what would be refused there says nothing here.
    """

    def __init__(self, tls: UpstreamTls | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        tls = tls or UpstreamTls()
        self._follower = Follower(UPSTREAM, tls, HTTP1)
        self._grpc_follower = Follower(UPSTREAM, tls, HTTP2)
        self._look_at = clock()
        self.costs = Costs()

    def configure(self, tls: UpstreamTls) -> None:
        """Go by this from the next probe over TLS on."""
        self._follower = self._follower.changed_to(tls)
        self._grpc_follower = self._grpc_follower.changed_to(tls)
        self._look_at = self._clock()

    async def __call__(self, address: str, questions: Sequence[Question], timeout_s: float) -> list[Answer]:
        """Ask; where the time is over, what was not answered by then has no answer."""
        began = self._clock()
        answers: list[Answer] = []
        visit = _Visit(self, address)
        try:
            async with asyncio.timeout(timeout_s):
                for left, question in enumerate(questions, 1 - len(questions)):
                    answers += [await self._one(visit, question, last=left == 0)]
        except TimeoutError:
            answers += [Answer(None, f"nothing within {timeout_s:g} s")] * (len(questions) - len(answers))
        finally:
            visit.leave()
            self.costs.questions += len(questions)
            self.costs.seconds += self._clock() - began
            self.costs.read_bytes += visit.read_bytes
        return answers

    @staticmethod
    async def _one(visit: _Visit, question: Question, *, last: bool) -> Answer:
        try:
            return await visit.ask(question, last=last)
        except ssl.SSLError as error:
            return visit.failed(question, f"TLS: {plain(error)}")
        except (OSError, ValueError, EOFError) as error:
            return visit.failed(question, f"{visit.address}: {plain(error)}")

    async def connect(
        self, address: str, port: int, *, http2: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as requests would, or to speak ``http2``; to another ``port`` of the same host where that is not 0.

        Raises:
            OSError, ValueError: it cannot be done.
        """
        host, own_port, socket_path = split_address(address)
        if socket_path is not None:
            if port:
                raise ValueError("a Unix socket has no other port; set probe.load to false, or give a URL with a host")
            return await asyncio.open_unix_connection(socket_path, limit=_HEAD_BYTES)
        if not address.startswith((SECURE, SECURE_GRPC)):
            return await asyncio.open_connection(host, port or own_port, limit=_HEAD_BYTES)
        http2 = http2 or protocol_of(address) == GRPC
        terms = await self._terms(self._grpc_follower if http2 else self._follower)
        name = terms.server_name or host
        reader, writer = await asyncio.open_connection(
            host, port or own_port, limit=_HEAD_BYTES, ssl=terms.context, server_hostname=name
        )
        if terms.allowed.entries:  # else the name asked for has been verified
            why = terms.allowed.refusal(peer_names(writer.get_extra_info("peercert")))
            if why:
                writer.transport.abort()
                raise ValueError(f"TLS: {why} by upstream_tls.allowed_names")
        return reader, writer

    async def _terms(self, follower: Follower) -> Terms:
        """Return the terms of the files as they are now, or were last when they were good."""
        now = self._clock()
        if now >= self._look_at or follower.terms is None:
            self._look_at = now + LOOK_S
            for one in (self._follower, self._grpc_follower):
                change = await asyncio.to_thread(one.look)
                if change is not None:
                    one.take(change)
        if follower.terms is None:
            raise ValueError(f"TLS: {follower.error}")
        return follower.terms


class _Visit:
    """One probe's connections to one endpoint: one at a time, used again while the server lets it."""

    def __init__(self, prober: HttpProber, address: str) -> None:
        self._prober = prober
        self.address = address
        self._host = host_of(address)
        self._port = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._failed: dict[int, Answer] = {}
        self.read_bytes = 0

    def leave(self) -> None:
        """Close."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._reader = self._writer = None

    def failed(self, question: Question, why: str) -> Answer:
        """Note that nothing came; where nobody could be reached, further questions there need not wait for the same."""
        answer = Answer(None, why)
        if self._writer is None:
            self._failed[question.port] = answer
        self.leave()
        return answer

    async def ask(self, question: Question, *, last: bool) -> Answer:
        """Ask one question, the ``last`` of this visit or not.

        Raises:
            OSError, ValueError, EOFError: what came is no answer, or nothing came.
        """
        if question.port in self._failed:
            return self._failed[question.port]
        if self._writer is not None and self._port != question.port:
            self.leave()
        used_before = self._writer is not None
        try:
            return await self._ask(question, last=last)
        except (OSError, EOFError):
            if not used_before:
                raise
        self.leave()  # the server gave the connection up after its last answer
        return await self._ask(question, last=last)

    async def _ask(self, question: Question, *, last: bool) -> Answer:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await self._prober.connect(self.address, question.port)
            self._port = question.port
        reader, writer = self._reader, self._writer
        if protocol_of(self.address) == GRPC:
            answer = await self._call(reader, writer, question)
            self.leave()
            return answer
        host = self._host
        if question.port:
            name = split_address(self.address)[0]
            host = f"[{name}]:{question.port}" if ":" in name else f"{name}:{question.port}"
        writer.write(_head_of(question, host, last=last) + question.body)
        try:
            if question.body:
                await writer.drain()
            head = await self._head(reader, question.method.encode())
            body, cut, whole = await self._body(reader, head.length, question.body_bytes)
        except asyncio.IncompleteReadError:
            raise EOFError("closed before a whole answer") from None
        except asyncio.LimitOverrunError:
            raise ValueError(f"a response head of more than {_HEAD_BYTES} bytes") from None
        if last or cut or not whole or not head.keep_alive:
            self.leave()
        return Answer(head.status, body=body, cut=cut)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Question) -> Answer:
        """Ask a gRPC worker for its health, or call the method that a warm-up request names."""
        if question.method == "GET":
            return Answer(200 if await check(reader, writer, self._host) else 503)
        fields = [(name.lower().encode(), value.encode()) for name, value in question.fields]
        path = question.path.encode()
        body = bytearray()
        try:
            most = question.body_bytes
            async for message in call(reader, writer, self._host, path, question.body, most=most, fields=fields):
                self.read_bytes += len(message)
                if len(body) + len(message) > most:
                    return Answer(200, body=bytes(body), cut=True)
                body += message
        except TooLongError:
            return Answer(200, body=bytes(body), cut=True)
        except CallError as error:
            return Answer(None, ended=error.said)
        return Answer(200, body=bytes(body))

    async def _head(self, reader: asyncio.StreamReader, method: bytes) -> ResponseHead:
        for _ in range(_INTERIM):
            raw = await reader.readuntil(b"\r\n\r\n")
            self.read_bytes += len(raw)
            try:
                head = parse_response(raw, method)
            except HeadError as error:
                raise ValueError(f"no good HTTP/1.1 answer: {error.detail}") from None
            if head.status >= 200:
                return head
            if head.status == 101:
                raise ValueError("no good HTTP/1.1 answer: a 101 that nobody asked for")
        raise ValueError(f"more than {_INTERIM} interim answers")

    async def _body(self, reader: asyncio.StreamReader, length: int, most: int) -> tuple[bytes, bool, bool]:
        """Return the body up to ``most`` bytes, whether there is more, and whether the next answer begins behind it."""
        if length == CHUNKED:
            return await self._chunks(reader, most)
        body = bytearray()
        enough = most + 1 if length < 0 else min(most + 1, length)
        while len(body) < enough:
            piece = await self._piece(reader)
            if not piece:
                if length >= 0:
                    raise EOFError("closed before a whole answer")
                break
            body += piece
        if length >= 0:
            return bytes(body[: min(most, length)]), length > most, len(body) <= length
        return bytes(body[:most]), len(body) > most, False

    async def _chunks(self, reader: asyncio.StreamReader, most: int) -> tuple[bytes, bool, bool]:
        scanner = ChunkScanner(decode=True)
        body = bytearray()
        while not scanner.done and len(body) <= most:
            piece = await self._piece(reader)
            if not piece:
                raise EOFError("closed before a whole answer")
            try:
                body += scanner.feed(piece)
            except ChunkError as error:
                raise ValueError(f"broken chunked framing: {error}") from None
        return bytes(body[:most]), len(body) > most, scanner.done and not scanner.rest

    async def _piece(self, reader: asyncio.StreamReader) -> bytes:
        piece = await reader.read(_PIECE_BYTES)
        self.read_bytes += len(piece)
        return piece


def host_of(address: str) -> str:
    """Return what requests to an address name as their host."""
    return address.partition("://")[2].rstrip("/") or "localhost"


_DEFAULTS: Final = (("User-Agent", "warmroute-probe"), ("Accept", "*/*"))


def _head_of(question: Question, host: str, *, last: bool) -> bytes:
    own = {name.lower() for name, _ in question.fields}
    fields = [("Host", host), *((name, value) for name, value in _DEFAULTS if name.lower() not in own)]
    fields += question.fields
    if question.body or question.method != "GET":
        fields.append(("Content-Length", str(len(question.body))))
    if last:
        fields.append(("Connection", "close"))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{question.method} {question.path} HTTP/1.1\r\n{lines}\r\n".encode()
