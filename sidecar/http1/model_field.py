"""The ``model`` that the JSON body of an OpenAI request names: top level only, wherever it stands, also while it comes.

A body that is here whole is read by msgspec in one step. One that is still coming is followed by a scanner, so that the
request can go on as soon as the field came. Both come to the same: the scanner is what a body means, msgspec a quicker
way to it where a body is good JSON.

What the scanner does is bounded, whatever a body holds. Lists and objects inside are skipped by blocks, each with a
fixed number of steps. Members of the top level are read one by one, but no more than ``MAX_MEMBERS``: what follows them
is kept, and read by msgspec at the body's end. Short pieces are gathered.

JSON is RFC 8259 in UTF-8, also behind a byte order mark. Of objects with a name twice it says that what they mean is
not predictable: a second ``model`` that differs is a conflict. Nothing here reads a socket or a clock.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

MAX_NAME_BYTES: Final = 1024
"""A longer name is no model's."""
TOO_LONG: Final = b"(over 1024 bytes)\xff"
"""Stands for one; as it is not UTF-8, it is nobody's name."""
MAX_MEMBERS: Final = 128
"""Members of the top level that are read as they come."""
MAX_SHORT: Final = 64
SHORT_BYTES: Final = 1024
"""So many pieces below this size are read as they come; later ones are gathered up to it."""
MAX_TIMES: Final = 16
"""Of how many values it is looked whether they are all the same; more are a conflict."""
MAX_REST_BYTES: Final = 1 << 20
"""No more than this should be kept for the body's end, see ``ModelField.kept_bytes``: it is read there in one step."""
_MAX_RAW_NAME: Final = 6 * MAX_NAME_BYTES
"""Each byte may come as an escape of six."""
_MAX_RAW_KEY: Final = 6 * len("model")
_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark, which some put in front of UTF-8."""

_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")
_SCALAR: Final = re.compile(rb"[-+.0-9A-Za-z]*+")
_ESCAPE: Final = b"\x01\x01"
"""Stands for ``\\\\`` and ``\\"`` where quotes are looked for; no string may hold that byte as it is."""
_NAME_END: Final = b'model"'
_NAME_ESCAPE: Final = b"\\u006"
"""All of its letters are escaped so."""
_CONTAINER: Final = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+[\[{]")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPENS: Final = 0x31
_BITS: Final = bytes.maketrans(b"[]{}", b"1010")

_FIRST_BLOCK: Final = 16
_BLOCK_BYTES: Final = 8192
"""So much is looked at in one step: little at first, then twice as much each time."""

_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_COLON_SIGN: Final = 0x3A
_OPEN: Final = (0x5B, 0x7B)
_NO_VALUE: Final = (0x2C, 0x3A, 0x5D, 0x7D)

_BEGIN: Final = 0
_START: Final = 1
_KEY: Final = 2
_COLON: Final = 3
_VALUE: Final = 4
_IN_SCALAR: Final = 5
_AFTER: Final = 6
_IN_KEY: Final = 7
_IN_MODEL: Final = 8
_IN_STRING: Final = 9
_NESTED: Final = 10
_IN_NESTED_STRING: Final = 11
_REST: Final = 12


def _fall(byte: int) -> int:
    """Return how far eight brackets, 1 for one that opens, take the depth down on their way."""
    depth = lowest = 0
    for bit in range(7, -1, -1):
        depth += 1 if byte >> bit & 1 else -1
        lowest = min(lowest, depth)
    return -lowest


_FALL: Final = bytes(_fall(byte) for byte in range(256))
_OPENED: Final = bytes(byte.bit_count() for byte in range(256))


class ModelField:
    """What is known of a body's ``model``. Feed it the body as it comes, and say when it has ended.

    ``named``: the field came. ``model`` is its text as UTF-8; nothing where it is not text, or did not come.
    ``conflict``: it came again with another value, or over ``MAX_TIMES``. ``unreadable``: there are more members than
    are read one by one, and what follows those is not read in one step either. ``done``: what follows cannot matter.
    ``steps`` counts the work that was done.
    """

    __slots__ = (
        "_block",
        "_depth",
        "_escaped",
        "_gathered",
        "_held",
        "_is_model",
        "_members",
        "_rest",
        "_short",
        "_state",
        "_text",
        "_times",
        "conflict",
        "done",
        "model",
        "named",
        "steps",
        "unreadable",
    )

    def __init__(self) -> None:
        self._state = _BEGIN
        self._held = b""  # the beginning of a mark, of a key or of the name, where they came in pieces
        self._depth = 0
        self._escaped = False  # the last byte was a backslash that escapes the next one
        self._is_model = False
        self._text = True
        self._members = 1
        self._times = 0
        self._block = _FIRST_BLOCK
        self._short = 0
        self._gathered = b""
        self._rest = bytearray()
        self.model = b""
        self.named = False
        self.conflict = False
        self.unreadable = False
        self.done = False
        self.steps = 0

    @property
    def kept_bytes(self) -> int:
        """How much is kept for the end."""
        return len(self._rest)

    def take(self, value: object) -> None:
        """Note one value of the field."""
        text = isinstance(value, str)
        model = str(value).encode("utf-8", "replace") if text else b""
        if len(model) > MAX_NAME_BYTES:
            model = TOO_LONG
        self._times += 1
        if self.named:
            if not text or not self._text or model != self.model or self._times > MAX_TIMES:
                self.conflict = self.done = True
        else:
            self.named = True
            self.model = model
            self._text = text

    def feed(self, data: bytes) -> None:
        """Read on."""
        if len(data) < SHORT_BYTES or self._gathered:
            data = self._gathered + data
            if self._short >= MAX_SHORT and len(data) < SHORT_BYTES:
                self._gathered = data
                return
            self._gathered = b""
            self._short += 1
        self._read(data)

    def finish(self) -> None:
        """The body has ended."""
        self._read(self._gathered)
        self._gathered = b""
        if self._state == _REST and not self.done:
            values = _values_of(b"{" + self._rest)
            self.unreadable = values is None
            for value in values or ():
                self.take(value)
            self._rest.clear()
        self.done = True

    def _read(self, data: bytes) -> None:
        position = 0
        while position < len(data) and not self.done:
            self.steps += 1
            if self._state < _NESTED:
                position = self._look(data, position)
            elif self._state < _REST:
                position = self._skip(data, position)
            else:
                self._rest += data[position:]
                return

    def _look(self, data: bytes, position: int) -> int:
        """Read members of the top level, until a list or an object begins, or the rest; return where that was."""
        state = self._state
        end = len(data)
        while position < end and state < _NESTED and not self.done:
            self.steps += 1
            if state >= _IN_KEY:
                stop = self._end_of_string(data, position)
                if state <= _IN_MODEL:
                    most = 1 + (_MAX_RAW_KEY if state == _IN_KEY else _MAX_RAW_NAME)
                    self._held = (self._held + data[position : min(stop, position + most)])[:most]
                position = stop
                if stop < end:
                    position += 1
                    state = self._string_ended(state)
            elif state == _IN_SCALAR:
                scalar = _SCALAR.match(data, position)
                position = end if scalar is None else scalar.end()
                if position < end:
                    state = _AFTER
            elif state == _BEGIN:
                self._held += data[position : position + 1]
                if _MARK.startswith(self._held):
                    position += 1
                    if self._held == _MARK:
                        state = _START
                elif len(self._held) == 1:
                    state = _START
                else:
                    self.done = True
            else:
                blanks = _BLANKS.match(data, position)
                position = end if blanks is None else blanks.end()
                if position < end:
                    state = self._sign(state, data[position])
                    if state != _IN_SCALAR:
                        position += 1
        self._state = state
        return position

    def _skip(self, data: bytes, position: int) -> int:
        """Skip what is inside a list or an object, up to where that ends; return where that was."""
        size = len(data)
        while position < size and self._depth and not self.done:
            self.steps += 1
            block = data[position : position + self._block]
            position += self._skip_block(block)
            self._block = min(2 * self._block, _BLOCK_BYTES)
        return position

    def _skip_block(self, block: bytes) -> int:
        """Skip a block inside a list or an object, or the part of it before that ends; return how much that was."""
        inside = self._state == _IN_NESTED_STRING
        if self._escaped:
            block = b"_" + block[1:]
        plain = _without_escapes(block)
        parts = plain.split(b'"')
        outside = b"".join(parts[inside::2])
        brackets = outside.translate(_BITS, _NO_BRACKETS)
        closed = brackets.count(b"0")
        last = _where_top(brackets, self._depth) if closed >= self._depth else -1
        if last >= 0:
            end = _where_bracket(outside, last)
            outside = outside[:end]
            self._depth = 0
            self._escaped = False
            self._state = _AFTER
            size = _where_outside(parts, end, inside=inside) + 1
        else:
            self._depth += len(brackets) - 2 * closed
            ends_inside = inside != (len(parts) % 2 == 0)
            self._escaped = ends_inside and plain.endswith(b"\\")
            self._state = _IN_NESTED_STRING if ends_inside else _NESTED
            size = len(block)
        if b"\\" in outside or b"\x01" in outside:  # no escape may stand there
            self.done = True
        return size

    def _end_of_string(self, data: bytes, position: int) -> int:
        """Return where the closing quote stands, or the data's end; note whether that is inside an escape."""
        if self._escaped:
            self._escaped = False
            position += 1
        end = len(data)
        stop = data.find(b'"', position)
        if stop < 0:
            stop = end
        if data.find(b"\\", position, stop) < 0:
            return stop
        while position < end:
            self.steps += 1
            plain = _without_escapes(data[position : position + self._block])
            quote = plain.find(b'"')
            if quote >= 0:
                return position + quote
            position += len(plain)
            if plain.endswith(b"\\"):
                if position == end:
                    self._escaped = True
                position += 1
            self._block = min(2 * self._block, _BLOCK_BYTES)
        return end

    def _sign(self, state: int, sign: int) -> int:
        """Take a sign at the top level; return what comes then."""
        if state == _AFTER and sign == _COMMA:
            self._members += 1
            return _KEY if self._members <= MAX_MEMBERS else _REST
        if state == _KEY and sign == _QUOTE:
            self._held = b""
            self._block = _FIRST_BLOCK
            return _IN_KEY
        if state == _COLON and sign == _COLON_SIGN:
            return _VALUE
        if state == _START and sign == _OPEN[1]:
            return _KEY
        if state == _VALUE and sign not in _NO_VALUE:
            return self._value_begins(sign)
        self.done = True  # the object's end, or no JSON object
        return state

    def _string_ended(self, state: int) -> int:
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
        self._block = _FIRST_BLOCK
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
    values = _values_of(body.removeprefix(_MARK))
    if values is None:
        field.feed(body)
        field.finish()
    else:
        for value in values:
            field.take(value)
        field.done = True
    return field


def _values_of(body: bytes) -> list[object] | None:
    """Return every value of the field in an object; None where that is not for msgspec to say.

    Then it is no JSON, or some that others may take (too deep, lone surrogates, NaN), or its values might be much to
    build: lists and objects, very many, or of names that are written with escapes.
    """
    if _NAME_ESCAPE in body:
        return None
    at = -1
    for _ in range(MAX_TIMES):
        at = body.find(_NAME_END, at + 1)
        if at < 0:
            break
        if _CONTAINER.match(body, at + len(_NAME_END)):
            return None
    else:
        return None
    _VALUES.clear()
    try:
        _BODY.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _VALUES


def _without_escapes(block: bytes) -> bytes:
    """Return a block in which each quote and each backslash is one that no backslash stands in front of."""
    return block.replace(b"\\\\", _ESCAPE).replace(b'\\"', _ESCAPE) if b"\\" in block else block


def _where_top(brackets: bytes, depth: int) -> int:
    """Return which of the brackets, 1 for one that opens and 0 for one that closes, takes a depth to nothing, or -1."""
    size = (len(brackets) + 7) // 8
    packed = int(brackets.ljust(8 * size, b"1"), 2).to_bytes(size, "big")
    for index, byte in enumerate(packed):
        if depth <= _FALL[byte]:
            at = 8 * index
            while True:
                depth += 1 if brackets[at] == _OPENS else -1
                if not depth:
                    return at
                at += 1
        depth += 2 * _OPENED[byte] - 8
    return -1


def _where_bracket(outside: bytes, number: int) -> int:
    """Return where the bracket with this number stands, by halves."""
    begin, size = 0, len(outside)
    while size > 1:
        half = size // 2
        count = len(outside[begin : begin + half].translate(None, _NO_BRACKETS))
        if number < count:
            size = half
        else:
            number -= count
            begin += half
            size -= half
    return begin


def _where_outside(parts: list[bytes], offset: int, *, inside: bool) -> int:
    """Return where in a block, which quotes split into parts, a byte stands that has an offset outside of strings."""
    first, begin, size = int(inside), 0, (len(parts) + 1 - inside) // 2
    while size > 1:
        half = size // 2
        length = sum(map(len, parts[first + 2 * begin : first + 2 * (begin + half) : 2]))
        if offset < length:
            size = half
        else:
            offset -= length
            begin += half
            size -= half
    before = first + 2 * begin
    return sum(map(len, parts[:before])) + before + offset


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
