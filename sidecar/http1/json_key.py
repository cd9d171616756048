"""The key of a request that stands in its JSON body: a text or a number, at a path of names.

msgspec reads the body in one step and keeps nothing of it but that value. Of a name that comes twice the last one
counts, as for most that read JSON. What is no JSON, or has something else at the path, has no key.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_DEPTH: Final = 8
MAX_PATH: Final = 256
_QUOTE: Final = 0x22
_MARK: Final = b"\xef\xbb\xbf"
_NUMBER: Final = frozenset(b"-0123456789")
_TEXT: Final = msgspec.json.Decoder(str)


class JsonPathError(ValueError):
    """A path that names no field of a body; the text says what would."""


class JsonKey:
    """Where bodies have their key. ``path`` is names with dots between them, outermost first.

    Raises:
        JsonPathError: ``path`` has empty or too many names.
    """

    __slots__ = ("_decoder", "_depth")

    def __init__(self, path: str) -> None:
        names = path.split(".")
        if not all(names) or len(names) > MAX_DEPTH or len(path) > MAX_PATH:
            raise JsonPathError(f"must be names with dots between them, at most {MAX_DEPTH}, for example user.id")
        kind: type = msgspec.Raw
        for name in reversed(names):
            default = msgspec.Raw() if kind is msgspec.Raw else None
            kind = msgspec.defstruct("Level", [("value", kind, msgspec.field(default=default, name=name))])
        self._depth = len(names)
        self._decoder: msgspec.json.Decoder[object] = msgspec.json.Decoder(kind)

    def of(self, body: bytes) -> bytes | None:
        """Return the key of a whole body, None where it has none: a text's UTF-8, or a number as it is written."""
        try:
            value: object = self._decoder.decode(body.removeprefix(_MARK))
        except (msgspec.DecodeError, RecursionError):
            return None
        for _ in range(self._depth):
            value = getattr(value, "value", None)
        if not isinstance(value, msgspec.Raw):
            return None
        raw = bytes(value)
        if raw[:1] != b'"':
            return raw if raw and raw[0] in _NUMBER else None
        try:
            return _TEXT.decode(raw).encode() or None
        except msgspec.DecodeError:
            return None
