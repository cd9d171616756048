"""What a ModelInferRequest says at its start: id, parameters and the shape of its first input. Pure, and bounded.

Fields are read in the order in which every serialiser writes them, by their numbers, up to the first input's shape;
tensors are behind that, and are not looked at. So a message of any size costs no more than its first ``PREFIX_BYTES``.
"""

from __future__ import annotations

from typing import Final

from sidecar.grpc.matching import MESSAGE_HEAD, PREFIX_BYTES, unpacked

_ID: Final = 3
_PARAMETERS: Final = 4
_INPUTS: Final = 5
_SHAPE: Final = 3
_STRING: Final = 3
_INT64: Final = 2
_UINT64: Final = 5
_MOST_VARINT: Final = 70
"""Bits that are read of one number, as every parser does (10 bytes)."""
_SIGN: Final = 1 << 63


class Beginning:
    """How a ModelInferRequest begins.

    ``length`` is the message's, as it came. ``batch`` is the first dimension of its first input, -1 where it has none
    or that is not near enough to the start. ``id`` and ``parameters`` are as a key has them: a text's UTF-8, a whole
    number in digits; others are left out.
    """

    __slots__ = ("batch", "id", "length", "parameters")

    def __init__(self, length: int) -> None:
        self.length: Final = length
        self.batch = -1
        self.id = b""
        self.parameters: dict[bytes, bytes] = {}

    def key(self, member: bytes) -> bytes | None:
        """Return the key that stands at ``id`` or ``parameters.NAME``, None where there is none."""
        if member == b"id":
            return self.id or None
        return self.parameters.get(member.partition(b".")[2]) or None


def read_beginning(data: bytes, encoding: bytes, *, whole: bool) -> Beginning | None:
    """Return how the first message of a call's data begins; None: more of it has to come.

    Args:
        data: what there is of the call's data, from its start.
        encoding: the call's ``grpc-encoding``; a message in another one than gzip and deflate says nothing.
        whole: nothing more will come.
    """
    if len(data) < MESSAGE_HEAD:
        return Beginning(-1) if whole else None
    length = int.from_bytes(data[1:MESSAGE_HEAD], "big")
    found = Beginning(length)
    body = data[MESSAGE_HEAD : MESSAGE_HEAD + min(length, PREFIX_BYTES)]
    final = whole or len(body) == length or len(body) == PREFIX_BYTES
    if data[0] & 1:
        clear = unpacked(body, encoding, PREFIX_BYTES)
        if clear is None:
            return found
        body, final = clear, final or len(clear) == PREFIX_BYTES
    try:
        _read(body, found)
    except CutError:
        return found if final else None
    except BadError:
        pass
    return found


class CutError(Exception):
    """It may go on behind what is here."""


class BadError(Exception):
    """It is no protobuf message."""


def _read(body: bytes, found: Beginning) -> None:
    at = 0
    while at < len(body):
        number, wire, at, stop = field_at(body, at)
        if number > _INPUTS:
            return
        if wire == 2 and number == _INPUTS:
            found.batch = _batch(body, at, stop)
            return
        if stop > len(body):
            raise CutError
        if wire == 2 and number == _ID:
            found.id = body[at:stop]
        elif wire == 2 and number == _PARAMETERS:
            name, value = _parameter(body[at:stop])
            found.parameters[name] = value
        at = stop
    raise CutError


def _batch(body: bytes, at: int, end: int) -> int:
    """Return the first dimension of an input tensor that stands from ``at`` to ``end``, -1 where it has none."""
    while at < min(end, len(body)):
        number, wire, at, stop = field_at(body, at)
        if number > _SHAPE or stop > end:
            return -1
        if number == _SHAPE and (wire == 0 or (wire == 2 and stop > at)):
            value, _ = varint_at(body, at)
            return value if value < _SIGN else -1
        at = stop
    if at < end:
        raise CutError
    return -1


def _parameter(entry: bytes) -> tuple[bytes, bytes]:
    """Return name and value of one parameter; the value is empty where it is neither a text nor a whole number."""
    name = value = b""
    at = 0
    while at < len(entry):
        number, wire, at, stop = field_at(entry, at)
        if stop > len(entry):
            raise BadError
        if wire == 2 and number == 1:
            name = entry[at:stop]
        elif wire == 2 and number == 2:
            value = _value(entry[at:stop])
        at = stop
    return name, value


def _value(choice: bytes) -> bytes:
    value = b""
    at = 0
    while at < len(choice):
        number, wire, at, stop = field_at(choice, at)
        if stop > len(choice):
            raise BadError
        if number == _STRING and wire == 2:
            value = choice[at:stop]
        elif number in (_INT64, _UINT64) and wire == 0:
            whole, _ = varint_at(choice, at)
            value = b"%d" % (whole - 2 * _SIGN if number == _INT64 and whole >= _SIGN else whole)
        else:
            value = b""
        at = stop
    return value


def field_at(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return number and wire type of the field at ``at``, where its value begins and where it ends.

    Raises:
        CutError: its value begins behind what is here; where it ends may be.
        BadError: it is none.
    """
    tag, at = varint_at(data, at)
    number, wire = tag >> 3, tag & 7
    if number == 0:
        raise BadError
    if wire == 2:
        size, at = varint_at(data, at)
        return number, wire, at, at + size
    if wire == 0:
        return number, wire, at, varint_at(data, at)[1]
    if wire in (1, 5):
        return number, wire, at, at + (8 if wire == 1 else 4)
    raise BadError


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and where it ends.

    Raises:
        CutError: it goes on behind what is here.
        BadError: it is longer than any number.
    """
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & (2 * _SIGN - 1), at
        if shift >= _MOST_VARINT:
            raise BadError
    raise CutError
