"""One answer, as far as it has come. Pure: bytes in, and what they amount to."""

from __future__ import annotations

from typing import Final

from sidecar.http1.chunked import ChunkError, ChunkScanner
from sidecar.http1.head import CHUNKED, UNTIL_CLOSE, HeadError, ResponseHead
from sidecar.http1.parsing import parse_response

HEAD_BYTES: Final = 65536
"""Longest head of an answer that is read."""


class UnreadableError(Exception):
    """What came is no answer to the request; the message says why."""


class Reading:
    """Reads one answer: interim ones are passed over, bodies are measured and not kept."""

    __slots__ = ("_buffer", "_left", "_method", "_scanner", "_tail_bytes", "body_bytes", "done", "head", "rest", "tail")

    def __init__(self, method: str, tail_bytes: int = 0) -> None:
        """``tail_bytes``: how much of the body's end is kept as ``tail``."""
        self._method = method.encode()
        self._tail_bytes = tail_bytes
        self._buffer = b""
        self._left = 0
        self._scanner: ChunkScanner | None = None
        self.head: ResponseHead | None = None
        self.body_bytes = 0
        self.tail = b""
        self.done = False
        self.rest = b""
        """What came behind the whole answer, which nobody asked for."""

    @property
    def status(self) -> int:
        """The answer's status, 0 while there is no whole head."""
        return 0 if self.head is None else self.head.status

    @property
    def grpc_status(self) -> int | None:
        """None: gRPC is spoken over HTTP/2."""
        return None

    @property
    def grpc_message(self) -> str:
        """Nothing."""
        return ""

    def feed(self, data: bytes) -> bool:
        """Take what came; return True once the answer is whole.

        Raises:
            UnreadableError: it is none.
        """
        while self.head is None:
            data = self._buffer + data
            self._buffer = b""
            end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
            if end < 0:
                if len(data) >= HEAD_BYTES:
                    raise UnreadableError(f"a head of more than {HEAD_BYTES} bytes")
                self._buffer = data
                return False
            raw, data = data[: end + 4], data[end + 4 :]
            self._begin(raw)
        self._body(data)
        return self.done

    def closed(self) -> bool:
        """The connection ended in order; return True where that ends the answer."""
        if self.head is not None and self.head.length == UNTIL_CLOSE:
            self.done = True
        return self.done

    def fields(self, wanted: frozenset[str]) -> dict[str, str]:
        """Return the values of the answer's fields that are ``wanted``, by lower-case name; the last of several."""
        if self.head is None:
            return {}
        found: dict[str, str] = {}
        for line in self.head.raw.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            if name.lower() in wanted:
                found[name.lower()] = value.strip()
        return found

    def _begin(self, raw: bytes) -> None:
        try:
            head = parse_response(raw, self._method)
        except HeadError as error:
            raise UnreadableError(error.detail) from None
        if head.status < 200:
            if head.status == 101:
                raise UnreadableError("a 101 that nobody asked for")
            return
        self.head = head
        self._left = head.length
        if head.length == CHUNKED:
            self._scanner = ChunkScanner(decode=True)

    def _body(self, data: bytes) -> None:
        if self._scanner is not None:
            if data:
                try:
                    self._keep(self._scanner.feed(data))
                except ChunkError as error:
                    raise UnreadableError(f"broken chunked framing: {error}") from None
                self.done, self.rest = self._scanner.done, self._scanner.rest
        elif self._left == UNTIL_CLOSE:
            self._keep(data)
        else:
            self._keep(data[: self._left])
            self.rest = data[self._left :]
            self._left = max(0, self._left - len(data))
            self.done = self._left == 0

    def _keep(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if self._tail_bytes:
            self.tail = (self.tail + piece[-self._tail_bytes :])[-self._tail_bytes :]
