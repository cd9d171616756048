"""From a call to the model that it names: the method, and the first fields of its first message."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from router.matching import SERVICE

PROTOCOL: Final = "grpc"
"""What the router calls workers and routes of this kind."""
PREFIX_BYTES: Final = 4096
"""So much of a first message is looked at: name and version stand at its start."""
MESSAGE_HEAD: Final = 5
"""A message's own head: whether it is compressed, and its length."""
PACKINGS: Final = (b"gzip", b"deflate")
"""Encodings of messages that are unpacked to be looked at."""

_NAME_AND_VERSION: Final = (1, 2)
FIELDS: Final[dict[bytes, tuple[int, int]]] = {
    b"ModelInfer": _NAME_AND_VERSION,
    b"ModelStreamInfer": _NAME_AND_VERSION,
    b"ModelReady": _NAME_AND_VERSION,
    b"ModelMetadata": _NAME_AND_VERSION,
    b"ModelConfig": _NAME_AND_VERSION,
    b"ModelStatistics": _NAME_AND_VERSION,
    b"RepositoryModelLoad": (2, 0),
    b"RepositoryModelUnload": (2, 0),
    b"TraceSetting": (2, 0),
}
"""Methods whose request names a model: the numbers of its name's and its version's field (0: it has none)."""


ONE_MESSAGE: Final = frozenset(
    {
        *(SERVICE + name for name in FIELDS if name != b"ModelStreamInfer"),
        *(SERVICE + name for name in (b"ServerLive", b"ServerReady", b"ServerMetadata", b"RepositoryIndex")),
        SERVICE + b"LogSettings",
        b"/grpc.health.v1.Health/Check",
        b"/grpc.health.v1.Health/Watch",
        *(
            SERVICE + kind + b"SharedMemory" + what
            for kind in (b"System", b"Cuda")
            for what in (b"Status", b"Register", b"Unregister")
        ),
    }
)
"""Methods that are known to take exactly one message. Any other may take none, or many."""


class Named(NamedTuple):
    """What a call names; empty where it names none."""

    model: str
    version: str


NOTHING: Final = Named("", "")


def named_fields(path: bytes) -> tuple[int, int] | None:
    """Return the field numbers of name and version where the method's message has them."""
    return FIELDS.get(path[len(SERVICE) :]) if path.startswith(SERVICE) else None


def named_by_metadata(value: bytes) -> Named:
    """Read ``warmroute-model``: NAME or NAME@VERSION."""
    name, _, version = value.decode("utf-8", "replace").partition("@")
    return Named(name, version)


def named_by_message(data: bytes, fields: tuple[int, int], encoding: bytes, *, whole: bool) -> Named | None:
    """Read name and version from the start of a call's data; None: more of it has to come.

    ``whole``: nothing more will come. A compressed message (gzip, deflate) is unpacked as far as it is looked at; one
    in another coding names nothing.
    """
    if len(data) < MESSAGE_HEAD:
        return NOTHING if whole else None
    length = int.from_bytes(data[1:5], "big")
    body = data[MESSAGE_HEAD : MESSAGE_HEAD + min(length, PREFIX_BYTES)]
    complete = len(body) == length
    final = whole or complete or len(body) == PREFIX_BYTES
    if data[0] & 1:
        clear = unpacked(body, encoding, PREFIX_BYTES)
        if clear is None:
            return NOTHING
        body = clear
        final = final or len(body) == PREFIX_BYTES
    return _leading(body, fields, final=final)


def unpacked(body: bytes, encoding: bytes, most: int) -> bytes | None:
    """Return the first bytes of what is packed in ``body``, ``most`` at most; None where that cannot be read."""
    if encoding not in PACKINGS:
        return None
    unpacker = zlib.decompressobj(wbits=47)  # either of the two, by its head
    try:
        return unpacker.decompress(body, most)
    except zlib.error:
        return None


def _leading(body: bytes, fields: tuple[int, int], *, final: bool) -> Named | None:
    """Read the text fields 1 and 2 that a protobuf message begins with; None where they may go on beyond ``body``."""
    cut_short = NOTHING if final else None
    seen = [b"", b"", b""]
    position = 0
    while position < len(body):
        tag = body[position]
        if tag not in (0x0A, 0x12):  # neither field 1 nor 2, as text or bytes
            return _named(seen, fields)
        length = shift = 0
        position += 1
        while True:
            if position >= len(body):
                return cut_short
            byte = body[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                return NOTHING
        if length > PREFIX_BYTES:
            return _named(seen, fields)
        if position + length > len(body):
            return cut_short
        seen[tag >> 3] = body[position : position + length]
        position += length
    return _named(seen, fields) if final else None


def _named(seen: list[bytes], fields: tuple[int, int]) -> Named:
    name, version = fields
    return Named(seen[name].decode("utf-8", "replace"), seen[version].decode("utf-8", "replace") if version else "")
