"""A call as another model is asked: the first fields of its first message, and the field of its head. Pure.

The name and the version stand at a message's start (``matching``); they are replaced there, and the message's length is
corrected. Nothing else of it is read or changed.
"""

from __future__ import annotations

from sidecar.grpc.matching import MESSAGE_HEAD

_TEXTS = (0x0A, 0x12)
"""Tags of the fields 1 and 2, as text or bytes."""


def renamed_message(data: bytes, fields: tuple[int, int], name: bytes, version: bytes) -> bytes | None:
    """Return a call's data with the model that its first message names replaced.

    None: it is compressed, or its first fields are not all here.

    Args:
        data: what there is of the call's data, from its start.
        fields: the numbers of the name's and the version's field, 0 where there is none.
        name: the other model's.
        version: its version, nothing for any.
    """
    if len(data) < MESSAGE_HEAD or data[0]:
        return None
    length = int.from_bytes(data[1:MESSAGE_HEAD], "big")
    end = min(len(data), MESSAGE_HEAD + length)
    kept = b""
    position = MESSAGE_HEAD
    while position < end and data[position] in _TEXTS:
        stop = _end_of_field(data, position + 1, end)
        if stop is None:
            return None
        if data[position] >> 3 not in fields:
            kept += data[position:stop]
        position = stop
    out = kept + _field(fields[0], name)
    if version and fields[1]:
        out += _field(fields[1], version)
    length += len(out) - (position - MESSAGE_HEAD)
    return b"\0" + length.to_bytes(4, "big") + out + data[position:]


def _end_of_field(data: bytes, position: int, end: int) -> int | None:
    """Return where a text ends whose length stands at ``position``; None where that is not here."""
    length = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return position + length if position + length <= end else None
        if shift > 28:
            return None
    return None


def _field(number: int, text: bytes) -> bytes:
    size, out = len(text), bytearray((number << 3 | 2,))
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + text
