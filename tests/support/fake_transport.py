"""A transport that only remembers, for protocols of ours that are driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class FakeTransport(asyncio.Transport):
    """Takes what is written. ``late`` holds what was written after it was closed: that must not happen."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.late = b""
        self.closing = False
        self.aborted = False
        self.half_closed = False
        self.reading = True
        self.unsent_bytes = 0
        self.options: list[tuple[object, ...]] = []  # what was set on the socket
        self.peername: Any = None

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.closing or self.half_closed:
            self.late += bytes(data)
        else:
            self.written += bytes(data)

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.closing
        self.half_closed = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        assert not self.closing
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.closing
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peername or default
        return _FakeSocket(self.options) if name == "socket" else default


class _FakeSocket:
    def __init__(self, options: list[tuple[object, ...]]) -> None:
        self._options = options

    def setsockopt(self, *arguments: object) -> None:
        self._options.append(arguments)

    def fileno(self) -> int:
        return -1
