"""The weights of an ONNX file: where its initializers stand, in it or in files beside it. No weight is read.

The file is protobuf (onnx.proto3): ``ModelProto.graph`` is field 7, ``GraphProto.initializer`` 5, of ``TensorProto``
``dims`` 1, ``data_type`` 2, ``name`` 8, ``raw_data`` 9, ``external_data`` 13 and ``data_location`` 14. It is mapped and
its fields are stepped over, so that of a raw tensor no more than the place is looked at.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from worker.sharding import ShardError
from worker.sharding.tensors import ITEM_BYTES, TensorInfo, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GRAPH, _INITIALIZER = 7, 5
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DTYPES: Final = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32",
    13: "U64", 16: "BF16", 17: "F8_E4M3", 19: "F8_E5M2",
}  # fmt: skip
"""``TensorProto.DataType``, by the names of safetensors."""


@dataclass(slots=True)
class _Found:
    name: str = ""
    kind: int = 0
    dims: list[int] = field(default_factory=list)
    raw: tuple[int, int] | None = None
    external: dict[str, str] = field(default_factory=dict)
    outside: bool = False


def read_tensors(path: Path) -> list[TensorInfo]:
    """Return the initializers of ``path`` whose bytes can be mapped: raw ones, and those in files beside it.

    Small ones that are written as numbers (``float_data`` and the like) are left out: every shard needs them whole, and
    the engine reads them with the graph.

    Raises:
        ShardError: the file is not as it should be, or names a file outside its directory or too short for it.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = [
                _initializer(path, data, begin, end)
                for number, kind, begin, end in _fields(path, data, 0, len(data))
                if (number, kind) == (_GRAPH, _BYTES)
                for number, kind, begin, end in _fields(path, data, begin, end)
                if (number, kind) == (_INITIALIZER, _BYTES)
            ]
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ShardError(f"{path}: {error}") from error
    return [tensor for one in found if (tensor := _tensor(path, one)) is not None]


def _fields(path: Path, data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of each field; of a varint, its value and 0 in place of the last two."""
    while at < end:
        tag, at = _varint(path, data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(path, data, at, end)
            yield number, kind, value, 0
            continue
        if kind == _BYTES:
            length, at = _varint(path, data, at, end)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ShardError(f"{path}: byte {at}: no field of protobuf: not an ONNX file, or damaged")
        if at + length > end:
            raise ShardError(f"{path}: byte {at}: a field of {length} bytes ends behind its message: the file was cut")
        yield number, kind, at, at + length
        at += length


def _varint(path: Path, data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ShardError(f"{path}: byte {at}: no number of protobuf: not an ONNX file, or cut")


def _initializer(path: Path, data: mmap.mmap, begin: int, end: int) -> _Found:
    found = _Found()
    for number, kind, first, last in _fields(path, data, begin, end):
        if kind == _VARINT:
            if number == _DIMS:
                found.dims.append(first)
            elif number == _TYPE:
                found.kind = first
            elif number == _LOCATION:
                found.outside = first == 1
        elif kind == _BYTES:
            if number == _DIMS:  # packed
                at = first
                while at < last:
                    dim, at = _varint(path, data, at, last)
                    found.dims.append(dim)
            elif number == _NAME:
                found.name = data[first:last].decode("utf-8", "replace")
            elif number == _RAW:
                found.raw = first, last
            elif number == _EXTERNAL:
                entry = _fields(path, data, first, last)
                said = {key: data[begin:end].decode("utf-8", "replace") for key, _, begin, end in entry}
                found.external[said.get(1, "")] = said.get(2, "")
    return found


def _tensor(path: Path, found: _Found) -> TensorInfo | None:
    if not found.outside and found.raw is None:
        return None
    what = f"{path}: initializer {found.name!r}"
    dtype = _DTYPES.get(found.kind)
    if dtype is None:
        raise ShardError(f"{what}: datatype {found.kind} cannot be split; known: {', '.join(ITEM_BYTES)}")
    shape = tuple(found.dims)
    needed = bytes_of(dtype, shape)
    if not found.outside and found.raw is not None:
        begin, end = found.raw
        if end - begin != needed:
            raise ShardError(f"{what}: {dtype} {list(shape)} takes {needed} bytes, it has {end - begin}")
        return TensorInfo(found.name, dtype, shape, path, begin, needed)
    file = path.parent / found.external.get("location", "")
    if not file.resolve().is_relative_to(path.parent.resolve()):
        raise ShardError(f"{what}: location {found.external['location']!r} is outside of {path.parent}")
    offset, length = -1, -1
    with suppress(ValueError):
        offset, length = int(found.external.get("offset", "0")), int(found.external.get("length", str(needed)))
    try:
        size = file.stat().st_size
    except OSError as error:
        raise ShardError(f"{what}: {file}: {error.strerror}") from error
    if offset < 0 or length != needed or offset + length > size:
        raise ShardError(f"{what}: {length} bytes from {offset} of {file.name} ({size} bytes): {needed} are needed")
    return TensorInfo(found.name, dtype, shape, file, offset, needed)
