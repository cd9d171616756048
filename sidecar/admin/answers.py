"""The admin API's answers that grow with the fleet: made a slice at a time, and sent to readers however slow.

The loop that makes them also follows the store, probes endpoints and says that this process lives. So an answer is a
generator (``router.turns``): it is run for :data:`SLICE_S`, then everything else that is due has its turn. The same is
made once at a time: who asks for what is about to be made shares it, and who asks while it is being made, which is of a
moment before, shares the next. Nothing is made for clients that went away.
"""

from __future__ import annotations

import asyncio
import gc
import zlib
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from aiohttp import web

from sidecar.admin.guard import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.turns import Turns

    Made = Callable[[], Iterator[bytes | None]]

T = TypeVar("T")

SLICE_S: Final = 0.002
"""For so long an answer is worked on before the loop has its turn; a step of it may come on top."""
PLAIN_BYTES: Final = 256 * 1024
"""Answers up to here are kept and sent whole; longer ones are kept compressed, and sent in pieces."""
PIECE_BYTES: Final = 64 * 1024
MOST_MADE: Final = 4
"""Answers that are worked on at once, in turns; further ones wait."""
MOST_SENT: Final = 16
"""Long answers that are being sent at once."""
SEND_S: Final = 120.0
"""A reader has so long for a long answer."""
_FED_BYTES: Final = 4096
_GZIP: Final = 31
"""zlib's word for the gzip format."""


class _Uncollected:
    """While any is entered, the garbage collector waits.

    What is made here has no cycles and is gone with its last use. But the collector counts what it has met on the way,
    and after enough of that walks through all that lives, which with a large fleet takes some tenths of a second.
    """

    def __init__(self) -> None:
        self._entered = 0
        self._was_on = False

    def __enter__(self) -> None:
        if self._entered == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._entered += 1

    def __exit__(self, *_error: object) -> None:
        self._entered -= 1
        if self._entered == 0 and self._was_on:
            gc.enable()


class GoneError(Exception):
    """Whoever asked went away."""


class Packed:
    """A long answer, compressed as it comes: what waits for a slow reader is a tenth of it, or less."""

    def __init__(self) -> None:
        self.plain_bytes = 0
        self.packed: bytes = b""
        self._packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
        self._parts: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Put one piece behind the others."""
        self.plain_bytes += len(piece)
        self._parts.append(self._packer.compress(piece))

    def end(self) -> None:
        """Nothing more comes."""
        self.packed = b"".join((*self._parts, self._packer.flush()))
        self._parts.clear()

    def pieces(self, *, packed: bool) -> Iterator[bytes]:
        """Yield it again, none longer than :data:`PIECE_BYTES`."""
        if packed:
            for start in range(0, len(self.packed), PIECE_BYTES):
                yield self.packed[start : start + PIECE_BYTES]
            return
        unpacker = zlib.decompressobj(_GZIP)
        for start in range(0, len(self.packed), _FED_BYTES):
            left = self.packed[start : start + _FED_BYTES]
            while left:
                yield unpacker.decompress(left, PIECE_BYTES)
                left = unpacker.unconsumed_tail


class _Job:
    """One answer that is to be made, once ``after`` is: that of what was asked for before, under the same name."""

    def __init__(self, make: Made, after: asyncio.Task[bytes | Packed] | None) -> None:
        self.make = make
        self.after = after
        self.asked: list[web.Request] = []
        self.task: asyncio.Task[bytes | Packed]

    def wanted(self) -> bool:
        return any(one.transport is not None and not one.transport.is_closing() for one in self.asked)


class Answers:
    """All that are wanted, being made and being sent. ``clock`` gives seconds that it takes."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._next: dict[str, _Job] = {}
        self._under_way: dict[str, asyncio.Task[bytes | Packed]] = {}
        self._turns = asyncio.Semaphore(MOST_MADE)
        self._uncollected = _Uncollected()
        self._sending = 0

    async def answer(self, request: web.Request, name: str, make: Made, headers: dict[str, str]) -> web.StreamResponse:
        """Answer with what ``make()`` yields: pieces, and None where a turn of work is over.

        What goes by one ``name`` is the same for all who ask.

        Raises:
            RefusedError: too many long answers are being sent.
        """
        try:
            body = await self._made(request, name, make)
        except GoneError:
            return web.Response(status=499)  # to nobody
        if isinstance(body, bytes):
            return web.Response(body=body, headers=headers)
        if self._sending >= MOST_SENT:
            raise RefusedError(503, f"{MOST_SENT} long answers are being sent already: ask again when one is through")
        self._sending += 1
        try:
            return await self._send(request, body, headers)
        finally:
            self._sending -= 1

    async def work(self, turns: Turns[T]) -> T:
        """Run what has a result and no pieces, for one who asks, beside everything else."""
        until = self._clock() + SLICE_S
        with self._uncollected:
            while True:
                try:
                    next(turns)
                except StopIteration as done:
                    result: T = done.value
                    return result
                if self._clock() >= until:
                    await asyncio.sleep(0)
                    until = self._clock() + SLICE_S

    async def _made(self, request: web.Request, name: str, make: Made) -> bytes | Packed:
        job = self._next.get(name)
        if job is None:
            job = self._next[name] = _Job(make, self._under_way.get(name))
            job.task = asyncio.create_task(self._begin(name, job), name=f"answer {request.path}")
        job.asked.append(request)
        return await asyncio.shield(job.task)

    async def _begin(self, name: str, job: _Job) -> bytes | Packed:
        if job.after is not None:
            await asyncio.wait([job.after])
        async with self._turns:
            del self._next[name]  # what is asked for from here on is of a later moment
            self._under_way[name] = job.task
            try:
                with self._uncollected:
                    return await self._make(job)
            finally:
                del self._under_way[name]

    async def _make(self, job: _Job) -> bytes | Packed:
        gathered = bytearray()
        packed: Packed | None = None
        until = self._clock() + SLICE_S
        for piece in job.make():
            if piece:
                gathered += piece
                if len(gathered) > (PIECE_BYTES if packed is not None else PLAIN_BYTES):
                    packed = packed or Packed()
                    for start in range(0, len(gathered), PIECE_BYTES):
                        packed.add(bytes(gathered[start : start + PIECE_BYTES]))
                    gathered.clear()
            if self._clock() >= until:
                await asyncio.sleep(0)
                if not job.wanted():
                    raise GoneError
                until = self._clock() + SLICE_S
        if packed is None:
            return bytes(gathered)
        packed.add(bytes(gathered))
        packed.end()
        return packed

    async def _send(self, request: web.Request, body: Packed, headers: dict[str, str]) -> web.StreamResponse:
        zipped = "gzip" in request.headers.get("Accept-Encoding", "").lower()
        response = web.StreamResponse(headers={**headers, "Vary": "Accept-Encoding"})
        if zipped:
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = len(body.packed) if zipped else body.plain_bytes
        try:
            async with asyncio.timeout(SEND_S):
                await response.prepare(request)
                if request.method != "HEAD":
                    for piece in body.pieces(packed=zipped):
                        await response.write(piece)
                        await asyncio.sleep(0)  # to a fast reader too: it takes turns with everything else
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # it went away
        return response
