"""As much of ONNX's protobuf as a synthetic model needs, written field by field (onnx.proto3, IR version 9).

Messages are bytes: each function returns one message. A writer of forty lines spares a dependency of 18 MB.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

IR_VERSION: Final = 9
OPSET: Final = 17
"""The first with LayerNormalization."""
FLOAT: Final = 1
INT64: Final = 7
"""``TensorProto.DataType``."""
_EXTERNAL: Final = 1
_ATTRIBUTE_TYPES: Final[dict[type, int]] = {float: 1, int: 2, list: 7}


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # two's complement, as int64 fields have it
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def attribute(name: str, value: int | float | list[int]) -> bytes:
    """Return an ``AttributeProto``: a float, an int or a list of ints."""
    if isinstance(value, list):
        held = b"".join(_int(8, one) for one in value)
    elif isinstance(value, float):
        held = _varint(2 << 3 | 5) + struct.pack("<f", value)
    else:
        held = _int(3, value)
    return _bytes(1, name) + held + _int(20, _ATTRIBUTE_TYPES[type(value)])


def node(kind: str, inputs: Sequence[str], output: str, **attributes: int | float | list[int]) -> bytes:
    """Return a ``NodeProto`` of operator ``kind``, named after its one output."""
    parts = [_bytes(1, name) for name in inputs]
    parts += [_bytes(2, output), _bytes(3, f"{output}/{kind}"), _bytes(4, kind)]
    parts += [_bytes(5, attribute(name, value)) for name, value in attributes.items()]
    return b"".join(parts)


def tensor(name: str, kind: int, dims: Sequence[int], raw: bytes) -> bytes:
    """Return a ``TensorProto`` that holds its values, little-endian."""
    return b"".join(_int(1, dim) for dim in dims) + _int(2, kind) + _bytes(8, name) + _bytes(9, raw)


def external_tensor(name: str, kind: int, dims: Sequence[int], file_name: str, offset: int, length: int) -> bytes:
    """Return a ``TensorProto`` whose values stand in another file: ``length`` bytes from ``offset`` on."""
    entries = (("location", file_name), ("offset", str(offset)), ("length", str(length)))
    return (
        b"".join(_int(1, dim) for dim in dims)
        + _int(2, kind)
        + _bytes(8, name)
        + b"".join(_bytes(13, _bytes(1, key) + _bytes(2, value)) for key, value in entries)
        + _int(14, _EXTERNAL)
    )


def value_info(name: str, kind: int, dims: Sequence[int | str]) -> bytes:
    """Return a ``ValueInfoProto``; a dimension that varies is its name."""
    shape = b"".join(_bytes(1, _bytes(2, dim) if isinstance(dim, str) else _int(1, dim)) for dim in dims)
    return _bytes(1, name) + _bytes(2, _bytes(1, _int(1, kind) + _bytes(2, shape)))


def model(
    name: str, nodes: Sequence[bytes], initializers: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]
) -> bytes:
    """Return a ``ModelProto`` with one graph."""
    graph = (
        b"".join(_bytes(1, one) for one in nodes)
        + _bytes(2, name)
        + b"".join(_bytes(5, one) for one in initializers)
        + b"".join(_bytes(11, one) for one in inputs)
        + b"".join(_bytes(12, one) for one in outputs)
    )
    return _int(1, IR_VERSION) + _bytes(2, "warmroute") + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _int(2, OPSET))
