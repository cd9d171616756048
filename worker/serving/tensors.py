"""Tensors in JSON, both ways. What does not fit the model is refused with the tensor's name, and what was expected."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from worker import json_text
from worker.datatypes import NUMPY, Datatype
from worker.serving.errors import RequestError

if TYPE_CHECKING:
    from worker.engines import Array, TensorSpec

MAX_RANK = 16
PIECE_BYTES = 64 << 10
"""Larger data is read in pieces of about this size: no list of all its numbers is made, which would take some ten times
its room, and other threads get the interpreter in between. It is written in pieces for the same reasons."""
PIECE_ELEMENTS = 8 << 10
_SPACE = b" \t\r\n"


def check_fit(spec: TensorSpec, datatype: str, shape: tuple[int, ...]) -> None:
    """Do nothing where ``datatype`` and ``shape`` are what ``spec`` takes.

    Raises:
        RequestError: they are not; names the tensor, the expected and the given type and shape.
    """
    fits = (
        datatype == spec.datatype.value
        and len(shape) == len(spec.shape)
        and all(want in (-1, given) for want, given in zip(spec.shape, shape, strict=True))
    )
    if not fits:
        given_type = datatype[:32]
        raise RequestError(
            f"input {spec.name!r}: expected {spec.datatype.value} {list(spec.shape)}, given {given_type} {list(shape)}"
        )


def decode(name: str, datatype: Datatype, shape: tuple[int, ...], data: msgspec.Raw) -> Array:
    """Read a tensor's JSON data, nested or flat in row-major order.

    Raises:
        RequestError: the data is not an array, does not fit ``shape``, or holds what ``datatype`` cannot.
    """
    if datatype is Datatype.BF16:
        raise RequestError(f"input {name!r}: BF16 has no form in JSON; send it as binary data")
    raw = bytes(data)
    depth = _depth(raw)
    if depth == 0:
        raise RequestError(f"input {name!r}: 'data' is {_kind(_anything(name, raw))}, expected an array")
    if depth != 1 and depth != len(shape):
        deep = "flat" if len(shape) < 2 else f"flat or nested {len(shape)} deep"
        raise RequestError(f"input {name!r}: 'data' is nested {depth} deep, expected {deep} for shape {list(shape)}")
    if len(raw) > PIECE_BYTES and datatype is not Datatype.BYTES:
        return _decode_pieces(name, datatype, shape, raw, depth)
    try:
        values = _decoder(_element(datatype), depth).decode(raw)
    except msgspec.DecodeError:
        raise _misfit(name, datatype, depth, raw) from None
    try:
        with np.errstate(over="ignore"):
            array: Array = np.array(values, dtype=NUMPY[datatype])
    except OverflowError:
        raise _misfit(name, datatype, depth, raw) from None
    except ValueError:
        raise RequestError(f"input {name!r}: 'data' is ragged, its shape is {list(shape)}") from None
    if datatype.floating and np.isinf(array).any():
        raise _misfit(name, datatype, depth, raw)
    if depth > 1:
        if array.shape != shape:
            given = "is ragged" if array.ndim != depth else f"is nested as {list(array.shape)}"
            raise RequestError(f"input {name!r}: 'data' {given}, its shape is {list(shape)}")
        return array
    count = math.prod(shape)
    if array.ndim != 1 or array.size != count:
        raise RequestError(f"input {name!r}: shape {list(shape)} takes {count} elements, 'data' has {array.size}")
    return array.reshape(shape)


_BESIDES_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[],")


def _decode_pieces(name: str, datatype: Datatype, shape: tuple[int, ...], raw: bytes, depth: int) -> Array:
    """Read many numbers: compare the brackets and commas with what ``shape`` takes, then read from comma to comma."""
    where, count = f"input {name!r}: ", math.prod(shape)
    ragged = RequestError(f"{where}'data' is ragged or nested otherwise, its shape is {list(shape)}")
    structure = raw.translate(None, _BESIDES_STRUCTURE)
    expected = _structure(shape if depth > 1 else (count,), len(structure))
    if structure != expected:
        if depth == 1 and structure.count(b"[") == 1:
            given = structure.count(b",") + 1
            raise RequestError(f"{where}shape {list(shape)} takes {count} elements, 'data' has {given}")
        raise ragged
    if count == 0:
        if raw.translate(None, b"[]," + _SPACE):
            raise ragged
        return np.empty(shape, dtype=NUMPY[datatype])
    array: Array = np.empty(count, dtype=NUMPY[datatype])
    decoder = _decoder(_element(datatype), 1)
    start = done = 0
    while start < len(raw):
        comma = raw.find(b",", start + PIECE_BYTES)
        end = len(raw) if comma < 0 else comma
        piece = b"[" + raw[start:end].translate(None, b"[]") + b"]"
        try:
            values = decoder.decode(piece)
            with np.errstate(over="ignore"):
                part: Array = np.array(values, dtype=NUMPY[datatype])
        except (msgspec.DecodeError, OverflowError):
            raise _misfit_in_piece(name, datatype, shape if depth > 1 else (count,), piece, done) from None
        if datatype.floating and np.isinf(part).any():
            raise _misfit_in_piece(name, datatype, shape if depth > 1 else (count,), piece, done)
        array[done : done + part.size] = part
        done += part.size
        start = end + 1
    if done != count:  # [] and [1] have the same brackets and commas
        raise ragged
    return array.reshape(shape)


def _structure(shape: tuple[int, ...], length: int) -> bytes | None:
    """Return the brackets and commas of an array of ``shape``; None where they would not be ``length`` bytes."""
    size = 1
    for dim in reversed(shape):
        size = 2 + max(0, dim - 1) + (dim * size if size > 1 else 0)
        if size > length:
            return None
    if size != length:
        return None
    text = b""
    for dim in reversed(shape):
        text = b"[" + ((text + b",") * dim)[:-1] + b"]"
    return text


def _depth(raw: bytes) -> int:
    """Count the brackets that ``raw`` opens with."""
    depth = 0
    for byte in raw[: MAX_RANK * 64]:
        if byte == 0x5B:
            depth += 1
        elif byte not in _SPACE:
            break
    return depth


def _element(datatype: Datatype) -> type:
    if datatype is Datatype.BOOL:
        return bool
    if datatype is Datatype.BYTES:
        return str
    return int if datatype.integral else float


@functools.cache
def _decoder(element: type, depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = element
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _anything(name: str, raw: bytes) -> Any:
    """Read JSON of any kind, which the decoder of the whole body has passed over and had no need to take apart."""
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise RequestError(f"input {name!r}: 'data' is nested too deep") from None


def _misfit(name: str, datatype: Datatype, depth: int, raw: bytes) -> RequestError:
    """Find the first element that ``datatype`` cannot hold, and say so. Slow: only for what is refused anyway."""
    where = f"input {name!r}: "
    try:
        data = _anything(name, raw)
    except msgspec.DecodeError as error:
        return RequestError(f"{where}'data': {error}")
    found = _find(data, datatype, depth, "data")
    return RequestError(where + (found or f"'data' does not fit {datatype.value}"))


def _misfit_in_piece(name: str, datatype: Datatype, shape: tuple[int, ...], piece: bytes, first: int) -> RequestError:
    """Do as :func:`_misfit` in one piece of a tensor, which begins with its element ``first`` in row-major order."""
    where = f"input {name!r}: "
    try:
        data = _anything(name, piece)
    except msgspec.DecodeError:
        return RequestError(f"{where}'data' is ragged or nested otherwise, its shape is {list(shape)}")
    for index, value in enumerate(data, first):
        if _find(value, datatype, 0, "data") is not None:
            path = "data" + "".join(f"[{axis}]" for axis in np.unravel_index(index, shape))
            return RequestError(where + (_find(value, datatype, 0, path) or ""))
    return RequestError(f"{where}'data' does not fit {datatype.value}")


def _find(value: Any, datatype: Datatype, depth: int, path: str) -> str | None:
    if depth > 0:
        if not isinstance(value, list):
            return f"{path} is {_kind(value)}, expected an array"
        for index, item in enumerate(value):
            found = _find(item, datatype, depth - 1, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    expected, accepted = _ACCEPTS[_element(datatype)]
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        return f"{path} is {_kind(value)}, {datatype.value} takes {expected}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = limits(datatype)
        if not low <= value <= high:
            return f"{path} is {_shown(value)}, {datatype.value} takes {low} to {high}"
    return None


_ACCEPTS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    str: ("strings", (str,)),
    int: ("whole numbers", (int,)),
    float: ("numbers", (int, float)),
}


def limits(datatype: Datatype) -> tuple[float, float]:
    """Return the smallest and the largest number that ``datatype`` holds; (0, 0) where it holds none."""
    if datatype.integral:
        whole = np.iinfo(NUMPY[datatype])
        return int(whole.min), int(whole.max)
    if datatype.floating:
        broken = np.finfo(NUMPY[datatype])
        return float(broken.min), float(broken.max)
    return 0, 0


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return f"the number {_shown(value)}"
    return "an array" if isinstance(value, list) else "an object"


def _shown(value: float) -> str:
    """Return a number as text, shortened where it is an integer that no datatype could hold."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"


def encode(name: str, datatype: Datatype, array: Array) -> dict[str, Any]:
    """Return an output tensor as the protocol's object, flat. NaN and infinities, which JSON lacks, become null.

    Raises:
        RequestError: JSON has no form for it; it must be asked for as bytes.
    """
    if datatype is Datatype.BF16:
        raise RequestError(f"output {name!r}: BF16 has no form in JSON; ask for it with 'binary_data': true")
    flat = array.ravel()
    if datatype is Datatype.BYTES:
        data: Any = _encode_strings(name, flat)
    else:
        data = flat.tolist() if flat.size <= PIECE_ELEMENTS else _encode_pieces(flat)
    return {"name": name, "shape": list(array.shape), "datatype": datatype.value, "data": data}


def _encode_strings(name: str, flat: Array) -> list[str]:
    try:
        texts = [item.decode() if isinstance(item, bytes) else str(item) for item in flat.tolist()]
        for text in texts:
            text.encode()
    except UnicodeError:
        raise RequestError(
            f"output {name!r}: holds bytes that are no UTF-8; ask for it with 'binary_data': true"
        ) from None
    return texts


def _encode_pieces(flat: Array) -> msgspec.Raw:
    text = bytearray(b"]")
    for start in range(0, flat.size, PIECE_ELEMENTS):
        end = len(text) - 1
        json_text.append(flat[start : start + PIECE_ELEMENTS].tolist(), text, end)
        if end:
            text[end : end + 1] = (
                b","  # in place of the bracket that opens this piece, where that of the last one closed
            )
    return msgspec.Raw(text)
