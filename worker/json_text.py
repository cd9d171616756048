"""JSON written so that a lack of memory is an error like others, and read so that its depth is.

``msgspec.json.encode`` ends the process by SIGSEGV where its own buffer cannot grow (seen in 0.23, in one of five
workers that ran out of memory under requests); into a buffer of ours it raises ``MemoryError``.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

_ENCODER: Final = msgspec.json.Encoder()
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_T = TypeVar("_T")


def encode(value: object) -> bytearray:
    """Return ``value`` as JSON in UTF-8.

    Raises:
        MemoryError: there is none for it.
        TypeError: it has no form in JSON.
        UnicodeEncodeError: a text in it is no UTF-8.
    """
    text = bytearray()
    _ENCODER.encode_into(value, text)
    return text


def encode_sorted(value: object) -> bytearray:
    """Return what :func:`encode` does, equal where values are: members of objects and sets stand in order."""
    text = bytearray()
    _SORTED.encode_into(value, text)
    return text


def append(value: object, text: bytearray, at: int) -> None:
    """Write ``value`` as JSON into ``text`` from ``at`` on, in place of what stands there and behind it.

    Raises:
        MemoryError: there is none for it.
    """
    _ENCODER.encode_into(value, text, at)


def decode(raw: bytes, kind: type[_T]) -> _T:
    """Return the value of that ``kind`` that ``raw`` holds.

    Raises:
        msgspec.DecodeError: it holds none, or is nested too deep to be read.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep") from error
