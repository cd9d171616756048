"""Tensors as the protocol's bytes, both ways: little-endian, row-major, without padding.

Strings (``BYTES``) are a length of four bytes and that many bytes, one after the other. Nothing is copied on the way in
or out but strings, and what does not lie where its datatype needs it.
"""

from __future__ import annotations

import math
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from worker.datatypes import NUMPY, Datatype
from worker.serving.errors import RequestError

if TYPE_CHECKING:
    from worker.engines import Array

_LENGTH = struct.Struct("<I")
_SWAPPED = sys.byteorder == "big"


def decode_binary(name: str, datatype: Datatype, shape: tuple[int, ...], data: memoryview) -> Array:
    """Read the bytes of the input ``name``; the array shares the memory of ``data`` where it can.

    Raises:
        RequestError: they do not fit ``shape``, or hold what ``datatype`` cannot.
    """
    if datatype is Datatype.BYTES:
        return _decode_strings(name, shape, data)
    expected = math.prod(shape) * datatype.item_bytes
    if len(data) != expected:
        raise RequestError(
            f"input {name!r}: {datatype.value} of shape {list(shape)} takes {expected} bytes, given {len(data)}"
        )
    if datatype is Datatype.BOOL:
        return _decode_booleans(name, shape, data)
    array: Array = np.frombuffer(data, dtype=NUMPY[datatype].newbyteorder("<"))
    if _SWAPPED or not array.flags.aligned:
        array = array.astype(NUMPY[datatype])
    return array.reshape(shape)


def _decode_booleans(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    values = np.frombuffer(data, dtype=np.uint8)
    if values.size and int(values.max()) > 1:
        index = int(np.argmax(values > 1))
        raise RequestError(f"input {name!r}: byte {index} is {int(values[index])}, BOOL takes 0 and 1")
    return values.view(np.bool_).reshape(shape)


def _decode_strings(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    count, size = math.prod(shape), len(data)
    if count * _LENGTH.size > size:  # before room is made for a count that somebody invented
        raise RequestError(
            f"input {name!r}: {count} elements of BYTES take at least {count * _LENGTH.size} bytes, given {size}"
        )
    array: Array = np.empty(count, dtype=np.object_)
    raw, start = bytes(data), 0
    for index in range(count):
        begin = start + _LENGTH.size
        length = _LENGTH.unpack_from(raw, start)[0] if begin <= size else 0
        start = begin + length
        if start > size:
            raise RequestError(f"input {name!r}: element {index} of {count} goes beyond the {size} bytes given")
        array[index] = string(raw[begin:start])
    if start != size:
        raise RequestError(f"input {name!r}: {count} elements of BYTES take {start} bytes, given {size}")
    return array.reshape(shape)


def string(raw: bytes) -> str:
    """Return one element of BYTES as arrays carry it."""
    return raw.decode("utf-8", "surrogateescape")


def raw_string(element: Any) -> bytes:
    """Return the bytes of one element of BYTES that an engine gave."""
    if isinstance(element, bytes):
        return element
    return str(element).encode("utf-8", "surrogateescape")


def encode_binary(datatype: Datatype, array: Array) -> memoryview | bytearray:
    """Return the bytes of an output; those of a contiguous array of numbers share its memory."""
    if datatype is not Datatype.BYTES:
        ordered = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8).data
    parts = bytearray()
    for element in array.ravel().tolist():
        raw = raw_string(element)
        parts += _LENGTH.pack(len(raw))
        parts += raw
    return parts
