"""Reads request bodies within limits: of one body, of all together, and of the time that a caller lets pass."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from aiohttp import web
from aiohttp.http import HttpProcessingError

from worker.serving.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.execution.buffers import Buffers
    from worker.execution.joining import Empty

_BYTE = np.dtype(np.uint8)
IDLE_S = 30.0
"""How long a caller may send nothing in the middle of a body: it holds a place in the queue meanwhile."""

WHOLE_S, LEAST_BYTES_PER_S = 60.0, 64 << 10
"""A whole body may take the first, and a second more for each so many bytes that came. So long it holds its place."""

ALIGNED_BYTES = 64
"""Binary tensors begin at a multiple of this: as long as a cache line, and as any vector instruction wants it."""


class Bodies:
    """The bodies that are held at once."""

    def __init__(self, each_bytes: int, together_bytes: int, buffers: Buffers | None = None) -> None:
        """``each_bytes`` is the limit of one body, ``together_bytes`` that of all (at least that of one).

        ``buffers``: memory for bodies with binary tensors; without it each has its own.
        """
        self._each_bytes = each_bytes
        self._together_bytes = max(each_bytes, together_bytes)
        self.held_bytes = 0
        self.empty: Empty = np.empty if buffers is None else buffers.array

    @contextmanager
    def hold(self, request: web.Request, most_bytes: int | None = None) -> Iterator[Body]:
        """Give a body its share of the room; it has it back at the end of the ``with`` block.

        ``most_bytes``: a limit lower than that of each body.

        Raises:
            RequestError: its announced length is over the limit, or there is no room for it now.
        """
        length = request.content_length
        limit = self._each_bytes if most_bytes is None else min(most_bytes, self._each_bytes)
        if length is not None and length > limit:
            raise RequestError(f"body of {length} bytes is over the limit of {limit}", 413)
        body = Body(self, request, limit)
        try:
            body.grow(length or 0)
            yield body
        finally:
            self.held_bytes -= body.share_bytes

    @contextmanager
    def share(self, count: int) -> Iterator[None]:
        """Give a body of ``count`` bytes, which is there whole, its share until the end of the ``with`` block.

        Raises:
            RequestError: there is no room for it now.
        """
        self.take(count)
        try:
            yield
        finally:
            self.held_bytes -= count

    def take(self, count: int) -> None:
        """Take ``count`` bytes of the room.

        Raises:
            RequestError: there are not as many.
        """
        if self.held_bytes + count > self._together_bytes:
            raise RequestError(f"the worker holds {self.held_bytes} bytes of bodies, no room for more", 503, 1)
        self.held_bytes += count

    @property
    def each_bytes(self) -> int:
        """The limit of one body."""
        return self._each_bytes


class Body:
    """One body on its way in."""

    def __init__(self, bodies: Bodies, request: web.Request, limit_bytes: int) -> None:
        self._bodies = bodies
        self._limit_bytes = limit_bytes
        self._request = request
        self._began = asyncio.get_running_loop().time()
        self._came_bytes = 0
        self.share_bytes = 0

    def grow(self, to_bytes: int) -> None:
        """Make its share at least ``to_bytes``."""
        more = to_bytes - self.share_bytes
        if more > 0:
            self._bodies.take(more)
            self.share_bytes = to_bytes

    async def read(self, json_bytes: int | None = None) -> bytearray | memoryview:
        """Return it whole. What comes after its first ``json_bytes`` lies where every datatype can be read in place.

        Raises:
            RequestError: it is too large, there is no room for it, its caller stopped sending or is too slow, or its
                encoding is not what its head says.
        """
        length = self._request.content_length
        if json_bytes is not None and length and "Content-Encoding" not in self._request.headers:
            return await self._read_aligned(length, json_bytes)
        data = bytearray()
        while piece := await self._piece():
            self._check_length(len(data) + len(piece))
            data += piece
        return data

    async def _read_aligned(self, length: int, json_bytes: int) -> memoryview:
        room = self._bodies.empty((length + ALIGNED_BYTES,), _BYTE)
        start = -(room.ctypes.data + json_bytes) % ALIGNED_BYTES
        data, done = room.data[start : start + length], 0
        while piece := await self._piece():
            data[done : done + len(piece)] = piece
            done += len(piece)
        return data[:done]

    async def _piece(self) -> bytes:
        allowed_s = WHOLE_S + self._came_bytes / LEAST_BYTES_PER_S
        left_s = self._began + allowed_s - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(IDLE_S, left_s)):
                piece = await self._request.content.readany()
        except TimeoutError:
            if left_s > IDLE_S:
                raise RequestError(f"no more of the body came for {IDLE_S:g} s", 408) from None
            raise RequestError(f"the body is too slow: {self._came_bytes} bytes in {allowed_s:.3g} s", 408) from None
        except (HttpProcessingError, web.RequestPayloadError) as error:
            why = " ".join(str(error).split()).removeprefix("400, message: ")
            raise RequestError(f"the body cannot be read: {why[:256]}") from None
        self._came_bytes += len(piece)
        return piece

    def _check_length(self, length: int) -> None:
        if length > self._limit_bytes:
            raise RequestError(f"body is over the limit of {self._limit_bytes} bytes", 413)
        self.grow(length)
