"""Follows the bytes that go one way: which of them are a body, and where it ends.

Of an HTTP/1.1 message (RFC 9112 6.3), heads and all, and of a gRPC call, whose messages stand behind five bytes each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sidecar.grpc.matching import MESSAGE_HEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_HEAD_BYTES = 1 << 20
"""Of a head that never ends no more is kept; what follows then counts as body."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked[ \t]*\r", re.IGNORECASE)
_HEAD, _LENGTHY, _SIZE, _CHUNK, _TRAILERS, _TO_CLOSE, _DONE = range(7)


class AnswerReader:
    """The state of one answer. ``bodiless``: it is one to HEAD. What is no HTTP counts as body up to the end.

    ``request``: it is no answer but a request; without a length that has no body.
    """

    def __init__(self, *, bodiless: bool = False, request: bool = False) -> None:
        self._bodiless = bodiless
        self._request = request
        self._mode = _HEAD
        self._line = b""  # of a head, or of chunked framing, as far as it came
        self._left = 0

    @property
    def done(self) -> bool:
        """The answer is whole."""
        return self._mode == _DONE

    @property
    def in_chunks(self) -> bool:
        """Between two chunks, or behind the data of one whose end is still to come."""
        return self._mode == _SIZE

    def read(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield ``data`` in parts, each with whether it is of the body."""
        while data:
            if self._mode == _HEAD:
                part, data = self._until(data, b"\r\n\r\n")
                yield part, False
                self._look_at_head()
            elif self._mode == _SIZE:
                part, data = self._until(data, b"\r\n")
                yield part, False
                self._look_at_size()
            elif self._mode == _TRAILERS:
                part, data = self._until(data, b"\r\n")
                yield part, False
                if self._line == b"\r\n":
                    self._mode = _DONE
                if self._line.endswith(b"\r\n"):
                    self._line = b""
            elif self._mode in (_LENGTHY, _CHUNK):
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                if not self._left:
                    self._mode = _DONE if self._mode == _LENGTHY else _SIZE
                yield part, True
            else:
                yield data, True
                return

    def _until(self, data: bytes, mark: bytes) -> tuple[bytes, bytes]:
        """Put what of ``data`` ends with ``mark`` to the line; return it, and the rest."""
        before = len(self._line)
        whole = self._line + data
        found = whole.find(mark)
        end = len(whole) if found < 0 else found + len(mark)
        self._line = whole[:end]
        return data[: end - before], data[end - before :]

    def _look_at_head(self) -> None:
        head = self._line
        if len(head) > MOST_HEAD_BYTES:
            self._mode = _TO_CLOSE
        if not head.endswith(b"\r\n\r\n"):
            return
        self._line = b""
        status = b"" if self._request else head[9:12]
        if status[:1] == b"1" and status != b"101":
            return
        length = _LENGTH.search(head)
        if self._bodiless or status in (b"204", b"304"):
            self._mode = _DONE
        elif _CHUNKED.search(head):
            self._mode = _SIZE
        elif length is not None:
            self._left = int(length[1])
            self._mode = _LENGTHY if self._left else _DONE
        else:
            self._mode = _DONE if self._request else _TO_CLOSE

    def _look_at_size(self) -> None:
        line = self._line
        if not line.endswith(b"\r\n"):
            return
        self._line = b""
        if line == b"\r\n":  # the end of the chunk before
            return
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            self._mode = _TO_CLOSE
            return
        self._mode = _CHUNK if self._left else _TRAILERS


class MessageReader:
    """The state of one direction of a gRPC call; what messages hold is its body."""

    done = False
    """What comes says nowhere that it was the last: a status does, which stands apart."""

    def __init__(self) -> None:
        self._head = b""  # of the message that is coming, as far as it came
        self._left = 0

    @property
    def between(self) -> bool:
        """Behind a whole message, or ahead of the first one."""
        return not self._left and not self._head

    def read(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield ``data`` in parts, each with whether it is what a message holds."""
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                yield part, True
                continue
            missing = MESSAGE_HEAD - len(self._head)
            part, data = data[:missing], data[missing:]
            self._head += part
            if len(self._head) == MESSAGE_HEAD:
                self._left = int.from_bytes(self._head[1:], "big")
                self._head = b""
            yield part, False


Reader = AnswerReader | MessageReader
