"""The head of a safetensors file: 8 bytes of length, then JSON that says where each tensor stands, then the tensors.

Format: github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from worker import json_text
from worker.sharding import ShardError
from worker.sharding.tensors import ITEM_BYTES, TensorInfo, bytes_of

if TYPE_CHECKING:
    from pathlib import Path

MOST_HEAD_BYTES: Final = 100_000_000
"""As in the format's own implementation."""
MOST_TENSORS: Final = 1 << 20


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> list[TensorInfo]:
    """Return the tensors of ``path`` in the order in which they stand there. Reads the head only.

    Raises:
        ShardError: the file cannot be read, or its head is not as the format has it.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(MOST_HEAD_BYTES, size - 8):
                raise ShardError(
                    f"{path}: its head says {length} bytes, the file has {size}: no safetensors file, or cut"
                )
            head = file.read(length)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error
    try:
        entries = json_text.decode(head, dict[str, Any])
        entries.pop("__metadata__", None)
        described = msgspec.convert(entries, dict[str, _Entry])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ShardError(f"{path}: head: {error}") from error
    if len(described) > MOST_TENSORS:
        raise ShardError(f"{path}: {len(described)} tensors: at most {MOST_TENSORS}")
    found = [_tensor(path, name, entry, 8 + length, size) for name, entry in described.items()]
    found.sort(key=lambda tensor: tensor.offset)
    for before, after in pairwise(found):
        if before.offset + before.bytes > after.offset:
            raise ShardError(f"{path}: tensors {before.name!r} and {after.name!r} overlap")
    return found


def _tensor(path: Path, name: str, entry: _Entry, base: int, size: int) -> TensorInfo:
    if entry.dtype not in ITEM_BYTES:
        raise ShardError(f"{path}: tensor {name!r}: datatype {entry.dtype!r}: known: {', '.join(ITEM_BYTES)}")
    begin, end = entry.data_offsets
    if any(dim < 0 for dim in entry.shape) or end - begin != bytes_of(entry.dtype, entry.shape):
        raise ShardError(
            f"{path}: tensor {name!r}: {entry.dtype} {list(entry.shape)} does not take bytes {begin} to {end}"
        )
    if begin < 0 or base + end > size:
        raise ShardError(f"{path}: tensor {name!r}: ends at byte {base + end}, the file has {size}: it was cut")
    return TensorInfo(name, entry.dtype, entry.shape, path, base + begin, end - begin)
