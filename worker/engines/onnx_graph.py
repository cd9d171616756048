"""ONNX files, as far as the cache of optimised models must understand them: where tensors have their bytes.

The wire format is protobuf's (varints, fields of tag and length); the numbers of the fields are those of onnx.proto:
ModelProto.graph 7, GraphProto.initializer 5, TensorProto.dims 1, data_type 2, name 8, raw_data 9, external_data 13
(key 1, value 2) and data_location 14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 9, 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1
MAX_INLINE_BYTES = 64 << 20
"""Weights that the optimiser changed stand in the graph itself; with more of them a graph is not worth keeping."""


class GraphError(Exception):
    """The file is not what it should be, or cannot be made small; the text says why."""


class External(NamedTuple):
    """Where a tensor has its bytes: a file beside the model's, an offset and a length in bytes; and what it is."""

    location: str
    offset: int
    length: int
    kind: int = 0
    """``TensorProto.DataType``."""
    dims: tuple[int, ...] = ()


class _Field(NamedTuple):
    number: int
    value: memoryview  # of a field of bytes; else empty
    integer: int  # of a varint; else 0
    whole: memoryview  # tag, length and all


def _fields(data: memoryview) -> Iterator[_Field]:
    place = 0
    while place < len(data):
        start = place
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        value, integer = data[:0], 0
        if kind == _VARINT:
            integer, place = _varint(data, place)
        elif kind == _BYTES:
            length, place = _varint(data, place)
            value = data[place : place + length]
            place += length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise GraphError(f"wire type {kind}")
        if place > len(data):
            raise GraphError("cut short")
        yield _Field(number, value, integer, data[start:place])


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise GraphError("cut short")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise GraphError("an integer of more than ten bytes")


def _packed(data: memoryview) -> list[int]:
    values, place = [], 0
    while place < len(data):
        value, place = _varint(data, place)
        values.append(value)
    return values


def encoded(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes as protobuf writes it."""
    return encoded(number << 3 | _BYTES) + encoded(len(value)) + value


def external_tensors(model: bytes) -> dict[str, External]:
    """Return where a model's weights are that lie outside of it, by name; those of inner graphs are left out.

    Raises:
        GraphError: it is no ONNX model.
    """
    found = {}
    for field in _fields(memoryview(model)):
        if field.number == _GRAPH:
            for inner in _fields(field.value):
                if inner.number == _INITIALIZER:
                    name, external = _tensor(inner.value)
                    if external is not None:
                        found[name] = external
    return found


def _tensor(data: memoryview) -> tuple[str, External | None]:
    name, outside, kind = "", False, 0
    dims: list[int] = []
    entries: dict[str, str] = {}
    for field in _fields(data):
        if field.number == _DIMS:
            dims += _packed(field.value) if field.value else [field.integer]
        elif field.number == _DATA_TYPE:
            kind = field.integer
        elif field.number == _NAME:
            name = str(field.value, "utf-8")
        elif field.number == _DATA_LOCATION:
            outside = field.integer == _EXTERNAL
        elif field.number == _EXTERNAL_DATA:
            pair = {inner.number: str(inner.value, "utf-8") for inner in _fields(field.value)}
            entries[pair.get(1, "")] = pair.get(2, "")
    if not outside:
        return name, None
    try:
        place = (entries["location"], int(entries.get("offset") or 0), int(entries.get("length") or -1))
        return name, External(*place, kind, tuple(dims))
    except (KeyError, ValueError) as error:
        raise GraphError(f"tensor {name!r}: external data {entries}") from error


def refer_to(model: bytes, written: Path, originals: Mapping[str, External], directory: Path) -> bytes:
    """Return ``model`` with its weights taken from where the original model has them, instead of from ``written``.

    A weight that is the same there, byte by byte, is referred to; what the optimiser changed comes into the model.

    Raises:
        GraphError: too much was changed, or an inner graph has weights of its own.
        OSError: a file cannot be read.
    """
    files: dict[str, np.memmap[tuple[int], np.dtype[np.uint8]]] = {}

    def read(path: Path, place: External) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        key = str(path)
        if key not in files:
            files[key] = np.memmap(path, np.uint8, "r")
        return files[key][place.offset : place.offset + place.length]

    inline_bytes = 0
    out = []
    for field in _fields(memoryview(model)):
        if field.number != _GRAPH:
            out.append(bytes(field.whole))
            continue
        graph = []
        for inner in _fields(field.value):
            name, place = _tensor(inner.value) if inner.number == _INITIALIZER else ("", None)
            if place is None or place.location != written.name:
                graph.append(bytes(inner.whole))
                continue
            weights = read(written, place)
            there = originals.get(name)
            if (
                there is None
                or there.length != place.length
                or not _same(weights, read(directory / there.location, there))
            ):
                there = None
                inline_bytes += place.length
                if inline_bytes > MAX_INLINE_BYTES:
                    raise GraphError(f"over {MAX_INLINE_BYTES} bytes of weights are the model file's own, or changed")
            graph.append(bytes_field(_INITIALIZER, _moved(inner.value, there, weights)))
        out.append(bytes_field(_GRAPH, b"".join(graph)))
    made = b"".join(out)
    if written.name.encode() in made:
        raise GraphError("an inner graph has weights of its own")
    return made


def _same(one: np.ndarray[tuple[int], np.dtype[np.uint8]], other: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> bool:
    step = 1 << 20
    return len(one) == len(other) and all(
        np.array_equal(one[start : start + step], other[start : start + step]) for start in range(0, len(one), step)
    )


def _moved(tensor: memoryview, there: External | None, weights: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> bytes:
    gone = (_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION)
    kept = b"".join(bytes(field.whole) for field in _fields(tensor) if field.number not in gone)
    if there is None:
        return kept + bytes_field(_RAW_DATA, weights.tobytes())
    entries = (("location", there.location), ("offset", str(there.offset)), ("length", str(there.length)))
    pairs = [bytes_field(1, key.encode()) + bytes_field(2, value.encode()) for key, value in entries]
    return (
        kept + b"".join(bytes_field(_EXTERNAL_DATA, pair) for pair in pairs) + bytes([_DATA_LOCATION << 3, _EXTERNAL])
    )
