"""The Open Inference Protocol's datatypes and what they are in numpy."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


class Datatype(StrEnum):
    """A tensor element's type, by its name in the protocol."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def integral(self) -> bool:
        """True for the signed and unsigned integers."""
        return self.value.startswith(("INT", "UINT"))

    @property
    def floating(self) -> bool:
        """True for the floating-point types."""
        return self.value.startswith("FP")


NUMPY: dict[Datatype, np.dtype[Any]] = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.UINT8: np.dtype(np.uint8),
    Datatype.UINT16: np.dtype(np.uint16),
    Datatype.UINT32: np.dtype(np.uint32),
    Datatype.UINT64: np.dtype(np.uint64),
    Datatype.INT8: np.dtype(np.int8),
    Datatype.INT16: np.dtype(np.int16),
    Datatype.INT32: np.dtype(np.int32),
    Datatype.INT64: np.dtype(np.int64),
    Datatype.FP16: np.dtype(np.float16),
    Datatype.FP32: np.dtype(np.float32),
    Datatype.FP64: np.dtype(np.float64),
    Datatype.BYTES: np.dtype(np.object_),
}
"""The array type that carries each datatype; BYTES are ``str`` objects, as JSON has no other."""


def zeros(datatype: Datatype, shape: Iterable[int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array of zeros, or of empty strings for BYTES."""
    if datatype is Datatype.BYTES:
        return np.full(tuple(shape), "", dtype=np.object_)
    return np.zeros(tuple(shape), dtype=NUMPY[datatype])
