"""The chunked transfer coding (RFC 9112 7.1), read strictly: what is not exactly right is refused, never repaired.

Chunk data is passed on in its own framing, so a stream goes through event by event without being copied together.
Chunk extensions are checked and passed; trailer fields are checked and not passed on (RFC 9110 6.5.1 allows that).
"""

from __future__ import annotations

import re
from typing import Final

MAX_SIZE_LINE: Final = 256
MAX_TRAILER_BYTES: Final = 8192
_PREFIX: Final = (b"x", b"X")  # of a number for int(), in 0x5, but no digit
_PLAIN_SIZE: Final = 17  # the longest line of digits alone, and its end
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_SIZE_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED)
)
"""A size and its extensions, each ``NAME`` or ``NAME=VALUE`` (RFC 9112 7.1.1): whoever reads quoted strings and whoever
looks for the line's end alone must find the same one."""
_SIZE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{1,15}(?:[ \t]*(?:;[\t -~\x80-\xff]*)?)")
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")

_SIZE: Final = 0
_DATA: Final = 1
_DATA_END: Final = 2
_TRAILERS: Final = 3
_DONE: Final = 4


class ChunkError(ValueError):
    """The body's framing is broken: no byte behind this point can be trusted."""


class ChunkScanner:
    """Follows one chunked body. Feed it the bytes as they come; it returns what may be passed on.

    ``done`` is True once the last chunk and the trailer section ended; ``rest`` is then what follows the message.
    ``payload_bytes`` counts the data announced so far. With ``decode`` the data comes back without its framing (for a
    receiver that does not know chunks). Where ``copy`` is a list, the data is put there without its framing besides.
    ``trailers`` are the lines of the trailer section that have come, each behind a CRLF.
    """

    __slots__ = (
        "_decode",
        "_held",
        "_left",
        "_state",
        "_trailer_bytes",
        "copy",
        "done",
        "payload_bytes",
        "rest",
        "trailers",
    )

    def __init__(self, *, decode: bool = False) -> None:
        self._decode = decode
        self._held = b""
        self._left = 0
        self._state = _SIZE
        self._trailer_bytes = 0
        self.copy: list[bytes] | None = None
        self.done = False
        self.payload_bytes = 0
        self.rest = b""
        self.trailers = b""

    @property
    def between_chunks(self) -> bool:
        """True where all that was passed on ends with a whole chunk, or nothing was."""
        return self._state == _SIZE

    @property
    def taken_bytes(self) -> int:
        """Data of the body that has come, without its framing."""
        return self.payload_bytes - self._left

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that is now complete enough to be passed on.

        Raises:
            ChunkError: the framing is broken.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        if self._state == _SIZE and not self._decode:
            # Nearly every read of a stream of events is one whole plain chunk: the loop below, in one step.
            end = data.find(b"\r\n", 1, _PLAIN_SIZE)
            line = data[:end]
            if end > 0 and line.isalnum() and line[1:2] not in _PREFIX and data.endswith(b"\r\n"):
                try:
                    left = int(line, 16)
                except ValueError:
                    left = 0  # the loop says what is wrong
                if left and end + 4 + left == size:
                    self.payload_bytes += left
                    if self.copy is not None:
                        self.copy.append(data[end + 2 : -2])
                    return data
        position = 0
        body_end = -1  # where the last chunk's line ends, if this call meets it
        payload: list[bytes] | None = [] if self._decode else self.copy
        while position < size:
            state = self._state
            if state == _DATA:
                take = min(self._left, size - position)
                if payload is not None:
                    payload.append(data[position : position + take])
                self._left -= take
                position += take
                if self._left:
                    break
                self._state = _DATA_END
            elif state == _DATA_END:
                if size - position < 2 and data[position] == 13:
                    break
                if data[position : position + 2] != b"\r\n":
                    raise ChunkError("chunk data is not followed by CRLF")
                position += 2
                self._state = _SIZE
            elif state == _SIZE:
                end = data.find(b"\r\n", position, position + MAX_SIZE_LINE + 2)
                if end < 0:
                    _check_partial_size(data[position:])
                    break
                match = _SIZE_LINE.fullmatch(data, position, end)
                if match is None:
                    raise ChunkError(f"chunk size line {data[position : min(end, position + 40)]!r}")
                self._left = int(match[1], 16)
                self.payload_bytes += self._left
                position = end + 2
                if self._left:
                    self._state = _DATA
                else:
                    self._state = _TRAILERS
                    body_end = position
            elif state == _TRAILERS:
                end = data.find(b"\r\n", position)
                if end < 0:
                    self._check_partial_trailer(data[position:])
                    break
                if end == position:
                    self._state = _DONE
                    self.done = True
                    self.rest = data[end + 2 :]
                    break
                if not _TRAILER.fullmatch(data, position, end):
                    raise ChunkError(f"trailer line {data[position : min(end, position + 40)]!r}")
                self._trailer_bytes += end + 2 - position
                if self._trailer_bytes > MAX_TRAILER_BYTES:
                    raise ChunkError("trailer section too long")
                self.trailers += b"\r\n" + data[position:end]
                position = end + 2
            else:
                raise ChunkError("bytes behind the end of the body")
        if not self.done and position < size:
            self._held = data[position:]
        if self._decode:
            return b"".join(payload or ())
        if self._state < _TRAILERS:
            return data[:position] if position < size else data
        return data[: max(body_end, 0)] + (b"\r\n" if self.done else b"")

    def _check_partial_trailer(self, partial: bytes) -> None:
        if self._trailer_bytes + len(partial) > MAX_TRAILER_BYTES:
            raise ChunkError("trailer section too long")
        if b"\n" in partial or b"\r" in partial[:-1]:
            raise ChunkError("bare CR or LF in the trailer section")


def _check_partial_size(partial: bytes) -> None:
    """Refuse early what can no longer become a size line, so that nobody waits for the rest of it."""
    if len(partial) > MAX_SIZE_LINE:
        raise ChunkError("chunk size line too long")
    stripped = partial.removesuffix(b"\r")
    if stripped and not _SIZE_BEGUN.fullmatch(stripped):
        raise ChunkError(f"chunk size line {partial[:40]!r}")
