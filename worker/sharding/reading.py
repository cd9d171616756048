"""Reads one shard's slices: mapped at their offsets, or copied row by row; nothing else of the files is touched."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from worker.sharding import ShardError
from worker.sharding.manifest import read_pieces
from worker.sharding.tensors import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from worker.engines import Array
    from worker.sharding.manifest import Manifest, Slice, Tensor

_NUMPY: Final = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "BF16": "<u2", "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""What numpy has no type for stands as its bits."""


class ShardWeights:
    """The arrays of one shard, by tensor name, read-only. Those that are mapped are valid until :meth:`close`."""

    def __init__(self, arrays: Mapping[str, Array], mappings: tuple[mmap.mmap, ...], content_hash: str) -> None:
        self.arrays = arrays
        self.content_hash = content_hash
        """Equal where the same slices of the same bytes were read."""
        self._mappings = mappings

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, padding included."""
        return sum(array.nbytes for array in self.arrays.values())

    def close(self) -> None:
        """Let go of the arrays and of what is mapped; what somebody still looks into goes with its last array."""
        self.arrays = {}
        for mapping in self._mappings:
            try:
                mapping.close()
            except BufferError:
                continue
        self._mappings = ()


def read_shard(
    directory: Path,
    manifest: Manifest,
    shard: int,
    *,
    read: Callable[[int, int], None] = lambda *_: None,
    go_on: Callable[[], None] = lambda: None,
) -> ShardWeights:
    """Bring one shard's slices into memory, and check each against its hash.

    ``read`` is called with bytes read and bytes in all; ``go_on`` between slices, and may raise to give up.

    Raises:
        ShardError: there is no such shard, a file is not there or was cut, or a slice is not what the manifest says.
    """
    if not 0 <= shard < manifest.shards:
        raise ShardError(f"shard {shard}: {directory} has 0 to {manifest.shards - 1}")
    slices = list(manifest.slices_of(shard))
    total = sum(part.bytes for _, part in slices)
    arrays: dict[str, Array] = {}
    mappings: list[mmap.mmap] = []
    descriptors: dict[str, int] = {}
    whole = xxhash.xxh3_128()
    done = 0
    read(0, total)
    try:
        for tensor, part in slices:
            go_on()
            if part.file not in descriptors:
                descriptors[part.file] = _open(directory / part.file)
            arrays[tensor.name], hashed = _read(descriptors[part.file], directory / part.file, tensor, part, mappings)
            arrays[tensor.name].flags.writeable = False
            whole.update(f"{tensor.name}\0{part.dtype}\0{part.shape}\0{hashed}\0".encode())
            done += part.bytes
            read(done, total)
    except BaseException:
        arrays.clear()  # what an array looks into stays mapped, and an error has this frame for as long as it lasts
        ShardWeights(arrays, tuple(mappings), "").close()
        raise
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return ShardWeights(arrays, tuple(mappings), whole.hexdigest())


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error


def _read(fd: int, path: Path, tensor: Tensor, part: Slice, mappings: list[mmap.mmap]) -> tuple[Array, str]:
    kind = np.dtype(_NUMPY[part.dtype])
    try:
        plain = part.rows == 1 and part.bytes == bytes_of(part.dtype, part.shape)
        if plain and part.bytes and not part.offset % kind.itemsize:
            array, digest = _mapped(fd, part, kind, mappings)
        else:
            array, digest = _copied(fd, part, kind)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # the file is shorter than what is to be mapped
        raise ShardError(f"{path}: tensor {tensor.name!r}: {error}") from error
    except ShardError as error:
        raise ShardError(f"{path}: tensor {tensor.name!r}: {error}") from error
    if digest != part.hash:
        del array  # see read_shard
        raise ShardError(
            f"{path}: tensor {tensor.name!r}: its bytes have the hash {digest}, manifest.json says {part.hash}: "
            "the file was changed; write the manifest again with: warmroute models shard"
        )
    return array, digest


def _mapped(fd: int, part: Slice, kind: np.dtype[np.generic], mappings: list[mmap.mmap]) -> tuple[Array, str]:
    # Read, and not looked at through the mapping: where the file is cut meanwhile, that would be a SIGBUS.
    digest = xxhash.xxh3_128()
    for data in read_pieces(fd, part.offset, part.bytes, 1, 0):
        digest.update(data)
    start = part.offset - part.offset % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(fd, part.end - start, access=mmap.ACCESS_READ, offset=start)
    mappings.append(mapping)
    flat = np.frombuffer(mapping, np.uint8, part.bytes, part.offset - start)
    return flat.view(kind).reshape(part.shape), digest.hexdigest()


def _copied(fd: int, part: Slice, kind: np.dtype[np.generic]) -> tuple[Array, str]:
    array = np.zeros(part.shape, kind)
    digest = xxhash.xxh3_128()
    if part.bytes:
        # Padding is at the end of each piece: of a row, a vector or dimension 0, or of each part of one.
        rows = array.reshape(-1).view(np.uint8).reshape(part.rows, -1)
        piece = part.piece_bytes
        row = at = 0
        for data in read_pieces(fd, part.offset, piece, part.rows, part.stride):
            rows[row, at : at + len(data)] = np.frombuffer(data, np.uint8)
            digest.update(data)
            at += len(data)
            if at == piece:
                row, at = row + 1, 0
    return array, digest.hexdigest()
