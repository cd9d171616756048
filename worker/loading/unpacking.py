"""Unpacks ``*.gz`` and ``*.zst`` while they are read: no temporary file, and no more of them in memory than a chunk.

gzip is the standard library's; for Zstandard the library ``zstandard`` is needed (the extra ``zstd``).
"""

from __future__ import annotations

import hashlib
import time
import zlib
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from worker.engines import GivenUpError
from worker.loading import LoadError
from worker.loading.digests import BLOCK_BYTES, FileDigest
from worker.loading.reading import chunks, write_all
from worker.paths import PACKED
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from worker.loading.task import LoadTask
    from worker.loading.version_files import SourceFile

CHUNK_BYTES = 1 << 20
_REMEDY = "it is damaged, or was not copied whole: put it there again"


def plain_name(name: str) -> str:
    """Return the name of what a file holds: without ``.gz`` or ``.zst``."""
    return name.rpartition(".")[0] if name.endswith(PACKED) else name


def check_plain(files: Iterable[SourceFile], directory: Path) -> None:
    """Do nothing where each file of a version has a name of its own once it is plain.

    Raises:
        LoadError: one is there twice.
    """
    names: set[str] = set()
    for file in files:
        plain = plain_name(file.name)
        if plain in names:
            raise LoadError(f"{directory / plain}: is there packed and plain, or packed twice; take all but one away")
        names.add(plain)


class Unpacker(Protocol):
    """One kind of packing. Pieces of at most ``CHUNK_BYTES`` come out, however much goes in."""

    def feed(self, data: memoryview) -> Iterator[bytes]:
        """Take packed bytes, and return what they unpack to.

        Raises:
            ValueError: they are damaged; the text says how.
        """

    @property
    def ended(self) -> bool:
        """True where what was fed so far is whole."""


class Gzip:
    """RFC 1952, one member or several after one another."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False
        self.ended = False

    def feed(self, data: memoryview) -> Iterator[bytes]:
        """See :class:`Unpacker`."""
        rest: bytes | memoryview = data
        while len(rest):
            if self._member.eof:
                self._member, self.ended = zlib.decompressobj(wbits=31), False
            try:
                piece = self._member.decompress(rest, CHUNK_BYTES)
            except zlib.error as error:
                raise ValueError(f"{error}; {_REMEDY}") from error
            if piece:
                yield piece
            self.ended = self._member.eof
            rest = self._member.unused_data if self._member.eof else self._member.unconsumed_tail


class Zstandard:
    """RFC 8878, one frame or several after one another."""

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ValueError("it needs the library zstandard; install warmroute[zstd]") from error
        self._library: Any = zstandard
        self._context = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._context.decompressobj()
        self.ended = False

    def feed(self, data: memoryview) -> Iterator[bytes]:
        """See :class:`Unpacker`. The library gives all that comes out at once, so little is fed at once."""
        for at in range(0, len(data), _ZSTD_STEP_BYTES):
            rest = bytes(data[at : at + _ZSTD_STEP_BYTES])
            while rest:
                if self._frame.eof:
                    self._frame, self.ended = self._context.decompressobj(), False
                try:
                    piece = self._frame.decompress(rest)
                except self._library.ZstdError as error:
                    raise ValueError(f"{error}; {_REMEDY}") from error
                for start in range(0, len(piece), CHUNK_BYTES):
                    yield piece[start : start + CHUNK_BYTES]
                self.ended = self._frame.eof
                rest = self._frame.unused_data if self._frame.eof else b""


_ZSTD_STEP_BYTES = 32 << 10
UNPACKERS: dict[str, type[Gzip] | type[Zstandard]] = {".gz": Gzip, ".zst": Zstandard}


def unpacker(name: str) -> Unpacker:
    """Return what unpacks a file of that name.

    Raises:
        ValueError: its library is not installed.
    """
    return UNPACKERS[name[name.rindex(".") :]]()


class Writer:
    """Writes a file from its beginning, hashes it by blocks, and goes no further than a limit."""

    def __init__(self, descriptor: int, limit_bytes: int, what: object) -> None:
        """``descriptor``: where to write; it stays open. ``what``: what errors call it."""
        self._what = what
        self._descriptor = descriptor
        self._limit_bytes = limit_bytes
        self._block = xxhash.xxh3_128()
        self._blocks = bytearray()
        self.size_bytes = 0
        self.hash_s = 0.0

    def write(self, piece: bytes | memoryview) -> None:
        """Add ``piece``.

        Raises:
            LoadError: it cannot be written, or there is no room for it.
            ValueError: it is more than the limit.
        """
        if self.size_bytes + len(piece) > self._limit_bytes:
            raise ValueError(f"it unpacks to over {self._limit_bytes} bytes, for which there is no room")
        rest = memoryview(piece)
        while len(rest):
            room = BLOCK_BYTES - self.size_bytes % BLOCK_BYTES
            part = rest[:room]
            began = time.perf_counter()
            self._block.update(part)
            self.hash_s += time.perf_counter() - began
            write_all(self._descriptor, part, self.size_bytes, self._what)
            self.size_bytes += len(part)
            if self.size_bytes % BLOCK_BYTES == 0:
                self._end_block()
            rest = rest[len(part) :]

    def _end_block(self) -> None:
        self._blocks += self._block.digest()
        self._block.reset()

    def end(self, sha256: str = "") -> FileDigest:
        """Return the digest of what was written."""
        if self.size_bytes % BLOCK_BYTES:
            self._end_block()
        return FileDigest(self.size_bytes, bytes(self._blocks), sha256)


def unpack(file: SourceFile, descriptor: int, limit_bytes: int, task: LoadTask) -> tuple[FileDigest, str]:
    """Unpack ``file`` into ``descriptor``; returns the digest of what came out, and the SHA-256 of what went in.

    The latter only where it is wanted; otherwise it is empty.

    Raises:
        LoadError: it is damaged, cut short, too large or cannot be read or written.
        GivenUpError: the task was given up.
    """
    whole = hashlib.sha256() if file.name in task.wanted.sums else None
    writer = Writer(descriptor, limit_bytes, f"what {file.path} holds")
    began = time.perf_counter()
    try:
        for piece in unpacked(_noted(file, task, whole), unpacker(file.name)):
            writer.write(piece)
    except ValueError as error:
        raise LoadError(f"{file.path}: cannot be unpacked: {error}") from error
    task.stages.add(Stage.DECOMPRESS, time.perf_counter() - began - writer.hash_s)
    task.stages.add(Stage.CHECKSUM, writer.hash_s)
    return writer.end(), "" if whole is None else whole.hexdigest()


def _noted(file: SourceFile, task: LoadTask, whole: Any) -> Iterator[memoryview]:
    """Read the file, tell of the progress and hash what is read."""
    for chunk in chunks(file, 0, file.size_bytes, memoryview(bytearray(CHUNK_BYTES))):
        if task.cancellation.cancelled:
            raise GivenUpError("given up while unpacking")
        if whole is not None:
            whole.update(chunk)
        yield chunk
        task.note(len(chunk))


def unpacked(packed: Iterable[memoryview], unpacking: Unpacker) -> Iterator[bytes]:
    """Unpack a stream of packed bytes.

    Raises:
        ValueError: it is damaged, or ends too early.
    """
    for chunk in packed:
        yield from unpacking.feed(chunk)
    if not unpacking.ended:
        raise ValueError(f"it ends in the middle; {_REMEDY}")
