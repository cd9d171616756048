"""The ``model`` that the JSON body of an OpenAI request names: top level only, wherever it stands, also while it comes.

A body that is here whole is read by msgspec in one step. One that is still coming is followed by a scanner, so that the
request can go on as soon as the field came. Both come to the same: the scanner is what a body means, msgspec a quicker
way to it where a body is good JSON.

JSON is RFC 8259. Of objects with a name twice it says that what they mean is not predictable: a second ``model`` that
differs is a conflict. Nothing here reads a socket or a clock.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

MAX_NAME_BYTES: Final = 1024
"""A longer name is no model's."""
TOO_LONG: Final = b"(over 1024 bytes)\xff"
"""Stands for one; as it is not UTF-8, it is nobody's name."""
_MAX_RAW_NAME: Final = 6 * MAX_NAME_BYTES
"""Each byte may come as an escape of six."""
_MAX_RAW_KEY: Final = 6 * len("model")

_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")
_SCALAR: Final = re.compile(rb"[-+.0-9A-Za-z]*+")
_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The inside of a string, up to its quote, or to where the data or its last whole escape ends."""
_CALM: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]{0,64}+")*+')
"""What leaves the depth as it was: scalars, and short strings as a whole."""
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ESCAPE: Final = b"\x01"
"""Stands for an escape where blocks are skipped; no string may hold that byte as it is."""

_BLOCK_BYTES: Final = 8192
_LEAST_BLOCK: Final = 128
_ROUNDS: Final = 16
"""Inside a value that is a list or an object, so much is skipped at once, if it is no deeper than this in itself."""

_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_COLON_SIGN: Final = 0x3A
_OPEN: Final = (0x5B, 0x7B)
_NO_VALUE: Final = (0x2C, 0x3A, 0x5D, 0x7D)

_START: Final = 0
_KEY: Final = 1
_COLON: Final = 2
_VALUE: Final = 3
_IN_SCALAR: Final = 4
_AFTER: Final = 5
_NESTED: Final = 6
_IN_KEY: Final = 7
_IN_MODEL: Final = 8
_IN_STRING: Final = 9
_IN_NESTED_STRING: Final = 10


class ModelField:
    """What is known of a body's ``model``. Feed it the body as it comes.

    ``named``: the field came. ``model`` is its text as UTF-8; nothing where it is not text, or did not come.
    ``conflict``: it came again with another value. ``done``: what follows cannot matter.
    """

    __slots__ = ("_depth", "_escaped", "_held", "_is_model", "_state", "_text", "conflict", "done", "model", "named")

    def __init__(self) -> None:
        self._state = _START
        self._held = b""  # the beginning of a key or of the name, where they came in pieces
        self._depth = 0
        self._escaped = False  # the last byte was a backslash that escapes the next one
        self._is_model = False
        self._text = True
        self.model = b""
        self.named = False
        self.conflict = False
        self.done = False

    def take(self, value: object) -> None:
        """Note one value of the field."""
        text = isinstance(value, str)
        model = str(value).encode("utf-8", "replace") if text else b""
        if len(model) > MAX_NAME_BYTES:
            model = TOO_LONG
        if self.named:
            if not text or not self._text or model != self.model:
                self.conflict = self.done = True
        else:
            self.named = True
            self.model = model
            self._text = text

    def feed(self, data: bytes) -> None:
        """Read on."""
        position = 0
        size = len(data)
        while position < size and not self.done:
            end = size
            if (self._state == _NESTED or self._state == _IN_NESTED_STRING) and size - position >= _LEAST_BLOCK:
                end = min(size, position + _BLOCK_BYTES)
                if self._skip(data[position:end]):
                    position = end
                    continue
            position = self._look(data, position, end)

    def _look(self, data: bytes, position: int, end: int) -> int:
        """Read ``data`` up to ``end``, or until a list or an object begins; return where that was."""
        state = self._state
        while position < end and not self.done:
            if state >= _IN_KEY:
                stop = self._end_of_string(data, position, end)
                if state <= _IN_MODEL:
                    most = _MAX_RAW_KEY if state == _IN_KEY else _MAX_RAW_NAME
                    self._held = (self._held + data[position:stop])[: most + 1]
                position = stop
                if stop < end:
                    position += 1
                    state = self._string_ended(state)
            elif state == _NESTED:
                calm = _CALM.match(data, position, end)
                position = end if calm is None else calm.end()
                if position < end:
                    state = self._bracket(data[position])
                    position += 1
            elif state == _IN_SCALAR:
                scalar = _SCALAR.match(data, position, end)
                position = end if scalar is None else scalar.end()
                if position < end:
                    state = _AFTER
            else:
                blanks = _BLANKS.match(data, position, end)
                position = end if blanks is None else blanks.end()
                if position < end:
                    state = self._sign(state, data[position])
                    if state != _IN_SCALAR:
                        position += 1
                    if state == _NESTED:
                        break
        self._state = state
        return position

    def _skip(self, block: bytes) -> bool:
        """Skip a block inside a list or an object; False where that ends in it, or where something is odd.

        Without its strings, and without the pairs of brackets that close what they open, little is left of a block.
        """
        inside = self._state == _IN_NESTED_STRING
        if self._escaped:
            block = block[1:]
        plain = block.replace(b"\\\\", _ESCAPE).replace(b'\\"', _ESCAPE) if b"\\" in block else block
        parts = plain.split(b'"')
        outside = b"".join(parts[inside::2])
        ends_inside = inside != (len(parts) % 2 == 0)
        escaped = plain.endswith(b"\\")
        if _ESCAPE in outside or (escaped and not ends_inside):  # a backslash where none may be
            return False
        brackets = outside.translate(None, _NO_BRACKETS)
        for _ in range(_ROUNDS):
            left = brackets.replace(b"[]", b"").replace(b"{}", b"")
            if len(left) == len(brackets):
                break
            brackets = left
        closed = brackets.count(b"]") + brackets.count(b"}")
        if closed >= self._depth:
            return False
        self._depth += len(brackets) - 2 * closed
        self._escaped = escaped
        self._state = _IN_NESTED_STRING if ends_inside else _NESTED
        return True

    def _end_of_string(self, data: bytes, position: int, end: int) -> int:
        """Return where the closing quote stands, or ``end``; note whether that is inside an escape."""
        if self._escaped:
            self._escaped = False
            position += 1
        stop = data.find(b'"', position, end)
        if stop < 0:
            stop = end
        if data.find(b"\\", position, stop) >= 0:
            text = _STRING.match(data, position, end)
            stop = end if text is None else text.end()
            if stop < end and data[stop] != _QUOTE:
                self._escaped = True
                return end
        return stop

    def _sign(self, state: int, sign: int) -> int:
        """Take a sign at the top level; return what comes then."""
        if state == _AFTER and sign == _COMMA:
            return _KEY
        if state == _KEY and sign == _QUOTE:
            self._held = b""
            return _IN_KEY
        if state == _COLON and sign == _COLON_SIGN:
            return _VALUE
        if state == _START and sign == _OPEN[1]:
            return _KEY
        if state == _VALUE and sign not in _NO_VALUE:
            return self._value_begins(sign)
        self.done = True  # the object's end, or no JSON object
        return state

    def _bracket(self, sign: int) -> int:
        """Take a sign that changes the depth, or a quote, inside a list or an object."""
        if sign == _QUOTE:
            return _IN_NESTED_STRING
        self._depth += 1 if sign in _OPEN else -1
        return _NESTED if self._depth else _AFTER

    def _string_ended(self, state: int) -> int:
        if state == _IN_NESTED_STRING:
            return _NESTED
        if state == _IN_KEY:
            held = self._held
            self._is_model = held == b"model" or (
                b"\\" in held and len(held) <= _MAX_RAW_KEY and _decoded(held) == "model"
            )
            return _COLON
        if state == _IN_MODEL:
            self.take(_decoded(self._held) if len(self._held) <= _MAX_RAW_NAME else " " * _MAX_RAW_NAME)
            self._held = b""
        return _AFTER

    def _value_begins(self, sign: int) -> int:
        if sign == _QUOTE:
            self._held = b""
            return _IN_MODEL if self._is_model else _IN_STRING
        if self._is_model:
            self.take(None)
        if sign in _OPEN:
            self._depth = 1
            return _NESTED
        return _IN_SCALAR


def read_whole(body: bytes) -> ModelField:
    """Return what a whole body says."""
    field = ModelField()
    _VALUES.clear()
    try:
        _BODY.decode(body)
    except (
        msgspec.DecodeError,
        RecursionError,
    ):  # no JSON, or some that msgspec does not take: too deep, lone surrogates
        field.feed(body)
    else:
        for value in _VALUES:
            field.take(value)
    field.done = True
    return field


def _decoded(raw: bytes) -> str:
    """Return the text of a string's inside; what is not right in it is replaced."""
    try:
        return _TEXT.decode(b'"' + raw + b'"')
    except msgspec.DecodeError:
        return raw.decode("utf-8", "replace")


class _Value:
    """Marks the field of which msgspec tells every value that it meets, also those that it drops for a later one."""


def _meet(kind: type, value: object) -> object:
    _VALUES.append(value)
    return _MET


_MET: Final = _Value()
_VALUES: Final[list[object]] = []
_TEXT: Final = msgspec.json.Decoder(str)
_BODY: Final = msgspec.json.Decoder(msgspec.defstruct("Body", [("model", _Value, _MET)]), dec_hook=_meet)
