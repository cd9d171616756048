"""HPACK (RFC 7541): header blocks to fields and back, for blocks that mostly repeat.

A field is a tuple of name and value. One that its sender never wants indexed (RFC 7541 6.2.3) has an empty third item,
and is sent on that way. Huffman coding and the static table are those of the ``hpack`` library, which the tests also
take as the judge of what is here.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from sidecar.http2.frames import Code, ProtocolError

Field = tuple[bytes, ...]

STATIC: Final[tuple[Field, ...]] = tuple((name, value) for name, value in HeaderTable.STATIC_TABLE)
TABLE_BYTES: Final = 4096
"""Dynamic table, both ways: the protocol's default."""
ENTRY_BYTES: Final = 32
"""What an entry counts beyond its text (RFC 7541 4.1)."""
_FIRST: Final = len(STATIC) + 1
_MAX_INTEGER: Final = 1 << 30
_SEEN_ONCE: Final = 512
_KNOWN_BLOCKS: Final = 128
_KNOWN_BYTES: Final = 1024
"""Encoded blocks that are kept, and the largest of them."""
_SENSITIVE: Final = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})


class Decoder:
    """Reads the header blocks of one connection, in order. ``version`` changes with the dynamic table."""

    def __init__(self, max_list_bytes: int, max_fields: int) -> None:
        self._table: list[Field] = [(), *STATIC]  # by index; the dynamic entries follow, the newest first
        self._max_list_bytes = max_list_bytes
        self._max_fields = max_fields
        self._used = 0
        self._size = TABLE_BYTES
        self.version = 0
        self.oversized = False  # the last block's list was over the limits: its fields are not all there

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of one block.

        Where they are too many or too large, reading goes on for the table's sake and ``oversized`` says so.

        Raises:
            ProtocolError: the block cannot be read; neither can any later one.
        """
        try:
            return self._decode(block)
        except (IndexError, HPACKDecodingError) as error:
            raise ProtocolError(Code.COMPRESSION_ERROR, f"header block: {error}") from None

    def _decode(self, block: bytes) -> list[Field]:
        table = self._table
        fields: list[Field] = []
        room = self._max_list_bytes
        most = self._max_fields
        position, end = 0, len(block)
        self.oversized = False
        sized = True  # table size updates stand at the start (RFC 7541 4.2)
        while position < end:
            first = block[position]
            if first >= 0x80:  # indexed
                index = first & 0x7F
                position += 1
                if index == 0x7F:
                    index, position = _integer(block, position, 0x7F)
                if not index:
                    raise ProtocolError(Code.COMPRESSION_ERROR, "header block: index 0")
                field = table[index]
            elif first & 0xE0 == 0x20:  # table size update
                size, position = _integer(block, position + 1, 0x1F) if first == 0x3F else (first & 0x1F, position + 1)
                if not sized or size > TABLE_BYTES:
                    raise ProtocolError(Code.COMPRESSION_ERROR, "header block: table size update")
                self._size = size
                self._evict(0)
                self.version += 1
                continue
            else:
                indexed = first >= 0x40
                mask = 0x3F if indexed else 0x0F
                index = first & mask
                position += 1
                if index == mask:
                    index, position = _integer(block, position, mask)
                if index:
                    name = table[index][0]
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                if indexed:
                    field = (name, value)
                    self._add(field)
                else:
                    field = (name, value) if first < 0x10 else (name, value, b"")
            sized = False
            room -= len(field[0]) + len(field[1]) + ENTRY_BYTES
            if room >= 0 and len(fields) < most:
                fields.append(field)
            else:
                self.oversized = True
        return fields

    def _add(self, field: Field) -> None:
        self.version += 1
        size = len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict(size)
        if size <= self._size:
            self._table.insert(_FIRST, field)
            self._used += size

    def _evict(self, room: int) -> None:
        table = self._table
        while len(table) > _FIRST and self._used + room > self._size:
            name, value = table.pop()
            self._used -= len(name) + len(value) + ENTRY_BYTES


def _integer(block: bytes, position: int, start: int) -> tuple[int, int]:
    """Read the rest of an integer whose prefix is full (RFC 7541 5.1)."""
    value, shift = start, 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if value > _MAX_INTEGER or shift > 28:
            raise ProtocolError(Code.COMPRESSION_ERROR, "header block: integer too large")
        if byte < 0x80:
            return value, position
        shift += 7


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    """Read a string literal (RFC 7541 5.2)."""
    first = block[position]
    length = first & 0x7F
    position += 1
    if length == 0x7F:
        length, position = _integer(block, position, 0x7F)
    end = position + length
    raw = block[position:end]
    if len(raw) < length:
        raise IndexError("cut short")
    return decode_huffman(raw) if first >= 0x80 else raw, end


class Encoder:
    """Writes the header blocks of one connection.

    A field is put into the peer's table when it comes for the second time, as long as there is room; nothing is ever
    evicted. So what varies costs no entry, and an index moves only when an entry is added.
    """

    def __init__(self) -> None:
        self._known: dict[Field, bytes] = dict(_KNOWN)
        self._added: list[Field] = []
        self._seen: set[Field] = set()
        self._room = TABLE_BYTES
        self._limit = TABLE_BYTES
        self._update = b""
        self._moved = False
        self._blocks: dict[object, bytes] = {}  # of what is sent again and again, as long as the table is the same

    def resize(self, size: int) -> None:
        """Take the peer's SETTINGS_HEADER_TABLE_SIZE: forget what is there, and say so in the next block."""
        size = min(size, TABLE_BYTES)
        if size == self._limit:
            return
        self._limit = self._room = size
        for field in self._added:
            del self._known[field]
        self._added.clear()
        self._blocks.clear()
        self._update = b"\x20" + (_prefixed(0x20, 0x1F, size) if size else b"")

    def encode(self, fields: list[Field]) -> bytes:
        """Return one block. It has to be sent before any that is made later."""
        known = self._known
        out = [known.get(field) or self._new(field) for field in fields]
        if self._update:
            out.insert(0, self._update)
            self._update = b""
        return b"".join(out)

    def encode_known(self, key: object, fields: list[Field]) -> bytes:
        """Return the block of ``fields``, which are always the same for a ``key`` (by identity)."""
        block = self._blocks.get(key)
        if block is None or self._update:
            self._moved = False
            sized = self._update != b""
            block = self.encode(fields)
            if not self._moved and not sized and len(block) <= _KNOWN_BYTES:
                if len(self._blocks) >= _KNOWN_BLOCKS:
                    self._blocks.clear()
                self._blocks[key] = block
        return block

    def _new(self, field: Field) -> bytes:
        name, value = field[0], field[1]
        if len(field) > 2 or name in _SENSITIVE:
            known = _NAMES.get(name)
            if known is None:
                return b"\x10" + _length(name) + name + _length(value) + value
            return bytes((known[0] | 0x10,)) + known[1:] + _length(value) + value
        size = len(name) + len(value) + ENTRY_BYTES
        if size > self._room:
            return literal(name, value)
        self._moved = True  # the next block of these fields comes out otherwise
        if field not in self._seen:
            if len(self._seen) >= _SEEN_ONCE:
                self._seen.clear()
            self._seen.add(field)
            return literal(name, value)
        self._seen.discard(field)
        self._blocks.clear()
        self._room -= size
        added = self._added
        added.append(field)
        last = _FIRST + len(added) - 1
        for number, one in enumerate(added):
            self._known[one] = _prefixed(0x80, 0x7F, last - number)
        return b"\x40" + _length(name) + name + _length(value) + value


def _prefixed(pattern: int, mask: int, value: int) -> bytes:
    """Return an integer behind a bit pattern (RFC 7541 5.1)."""
    if value < mask:
        return bytes((pattern | value,))
    out = bytearray((pattern | mask,))
    value -= mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length(text: bytes) -> bytes:
    size = len(text)
    return _ONE_BYTE[size] if size < 0x7F else _prefixed(0x00, 0x7F, size)


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field that is not worth an entry; to be put behind a block."""
    return (_NAMES.get(name) or b"\x00" + _length(name) + name) + _length(value) + value


_ONE_BYTE: Final = [bytes((size,)) for size in range(0x7F)]
_KNOWN: Final[dict[Field, bytes]] = {field: _prefixed(0x80, 0x7F, i + 1) for i, field in enumerate(STATIC)}
_NAMES: Final[dict[bytes, bytes]] = {}
"""How a literal of a name begins: its index in the static table, or the name where it is one that varies a lot."""
for _index, _field in enumerate(STATIC):
    _NAMES.setdefault(_field[0], _prefixed(0x00, 0x0F, _index + 1))
for _name in (b"x-request-id", b"traceparent", b"grpc-timeout"):
    _NAMES[_name] = b"\x00" + _length(_name) + _name
