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
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def integral(self) -> bool:
        """True for the signed and unsigned integers."""
        return self.value.startswith(("INT", "UINT"))

    @property
    def floating(self) -> bool:
        """True for the floating-point types that numpy knows."""
        return self.value.startswith("FP")

    @property
    def item_bytes(self) -> int:
        """How many bytes an element takes; 0 for BYTES, whose elements say so themselves."""
        return 0 if self is Datatype.BYTES else NUMPY[self].itemsize


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
    Datatype.BF16: np.dtype(np.uint16),
    Datatype.FP32: np.dtype(np.float32),
    Datatype.FP64: np.dtype(np.float64),
    Datatype.BYTES: np.dtype(np.object_),
}
"""The array type that carries each datatype.

BF16, which numpy lacks, are its bit patterns. BYTES are ``str`` objects; bytes that are no UTF-8 stand in them as lone
surrogates (PEP 383), so that nothing is lost on the way through, and an engine that wants text refuses them.
"""

_DATATYPE_OF: dict[np.dtype[Any], Datatype] = {
    dtype: datatype for datatype, dtype in NUMPY.items() if datatype is not Datatype.BF16
}


def datatype_of(declared: Datatype, dtype: np.dtype[Any]) -> Datatype:
    """Return what an array of ``dtype`` is, which an engine gave for a tensor ``declared`` as that datatype.

    Raises:
        KeyError: it is of a type that the protocol has no name for.
    """
    return declared if NUMPY[declared] == dtype else _DATATYPE_OF[dtype]


def zeros(datatype: Datatype, shape: Iterable[int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array of zeros, or of empty strings for BYTES."""
    if datatype is Datatype.BYTES:
        return np.full(tuple(shape), "", dtype=np.object_)
    return np.zeros(tuple(shape), dtype=NUMPY[datatype])
