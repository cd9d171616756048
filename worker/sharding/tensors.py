"""Where a model's tensors stand in its files: metadata alone, no weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

ITEM_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element, by the names that safetensors gives datatypes."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``shape`` row-major, its ``bytes`` from ``offset`` on in ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    bytes: int

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return how many bytes a tensor takes."""
    return ITEM_BYTES[dtype] * prod(shape)
