"""The model that a JSON body names: read whole, read as it comes in any pieces, and as Python's own json reads it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http1.model_field import (
    MAX_MEMBERS,
    MAX_NAME_BYTES,
    MAX_SHORT,
    MAX_TIMES,
    SHORT_BYTES,
    TOO_LONG,
    ModelField,
    read_whole,
)

Verdict = tuple[bool, bytes, bool]


def verdict(field: ModelField) -> Verdict:
    return field.named, b"" if field.conflict else field.model, field.conflict


def members(count: int, value: bytes = b"1") -> bytes:
    """Return so many members, each with a comma behind it."""
    return b"".join(b'"m%d":%s,' % (number, value) for number in range(count))


def scanned(body: bytes, *cuts: int) -> Verdict:
    field = ModelField()
    edges = [0, *sorted(cuts), len(body)]
    for begin, end in pairwise(edges):
        field.feed(body[begin:end])
    field.finish()
    return verdict(field)


def by_piece(body: bytes, size: int) -> Verdict:
    return scanned(body, *range(size, len(body), size))


@pytest.mark.parametrize(
    ("body", "named", "model", "conflict"),
    [
        (b'{"model":"m"}', True, b"m", False),
        (b' \r\n\t{ "model" : "m" , "x" : 1 }', True, b"m", False),
        (b'{"messages":[{"role":"user","content":"\\"model\\":\\"no\\""}],"model":"m"}', True, b"m", False),
        (b'{"metadata":{"model":"no","deep":[[{"model":"no"}]]},"model":"m"}', True, b"m", False),
        (b'{"n":-1.5e+3,"t":true,"f":false,"z":null,"model":"m"}', True, b"m", False),
        (b'{"\\u006dod\\u0065l":"\\u006d"}', True, b"m", False),
        (b'{"mod\\u00e9l":"no","models":"no","Model":"no","mode":"l"}', False, b"", False),
        ('{"model":"modèle"}'.encode(), True, "modèle".encode(), False),
        (b'{"model":"a\\\\\\"b\\/"}', True, b'a\\"b/', False),
        (b'{"model":"m","model":"m"}', True, b"m", False),
        (b'{"model":"m","x":{},"model":"\\u006d"}', True, b"m", False),
        (b'{"model":"m","x":[1,2],"model":"n"}', True, b"", True),
        (b"{" + b'"model":"m",' * MAX_TIMES + b'"x":1}', True, b"m", False),
        (b"{" + b'"model":"m",' * MAX_TIMES + b'"model":"m"}', True, b"", True),
        (b'\xef\xbb\xbf {"model":"m"}', True, b"m", False),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"model":"no"}', False, b"", False),
        (b' \xef\xbb\xbf{"model":"no"}', False, b"", False),
        (b'\xef\xbb{"model":"no"}', False, b"", False),
        (b"{" + members(3 * MAX_MEMBERS) + b'"model":"m"}', True, b"m", False),
        (b"{" + members(MAX_MEMBERS - 1) + b'"model":"m"}', True, b"m", False),
        (b"{" + members(MAX_MEMBERS) + b'"model":"m"}', True, b"m", False),
        (b'{"model":"m",' + members(3 * MAX_MEMBERS) + b'"model":"n"}', True, b"", True),
        (b'{"model":"m",' + members(3 * MAX_MEMBERS) + b'"model":"m"}', True, b"m", False),
        (b"{" + members(3 * MAX_MEMBERS) + b'"x":1}', False, b"", False),
        (b"{" + members(MAX_MEMBERS - 9, b"[[[]],{}]") + b'"model":"m"}', True, b"m", False),
        (b'{"a":[1,"x"\\"],"model":"no"}', False, b"", False),
        (b'{"a":[1,"\\\\\\"]"],"model":"m"}', True, b"m", False),
        (b'{"a":[' + b"[]," * 9000 + b'{}],"model":"m","b":{"model":["no"]}}', True, b"m", False),
        (b'{"model":"m","mod\\u0065l":"n"}', True, b"", True),
        (b'{"model":"m","model":null}', True, b"", True),
        (b'{"model":5,"model":5}', True, b"", True),
        (b'{"model":5}', True, b"", False),
        (b'{"model":null,"x":1}', True, b"", False),
        (b'{"model":{"model":"no"}}', True, b"", False),
        (b'{"model":["no"]}', True, b"", False),
        (b'{"model":""}', True, b"", False),
        (b"{}", False, b"", False),
        (b"", False, b"", False),
        (b"[]", False, b"", False),
        (b'"model"', False, b"", False),
        (b'[{"model":"no"}]', False, b"", False),
        (b"model=m", False, b"", False),
        (b'{model:"no"}', False, b"", False),
        (b'{"model" "no"}', False, b"", False),
        (b'{"model":}', False, b"", False),
        (b'{"a":1 "model":"no"}', False, b"", False),
        (b'{"a":1}{"model":"no"}', False, b"", False),
        # what is broken further on does not change what stood before it
        (b'{"model":"m","a":[', True, b"m", False),
        (b'{"model":"m"} and more', True, b"m", False),
        # what servers in Python take all the same
        (b'{"temperature":NaN,"model":"m"}', True, b"m", False),
        (b'{"a":"\\ud800","model":"m"}', True, b"m", False),
        (b'{"a":"\x01","model":"m"}', True, b"m", False),
        (b'{"a":"\xff","model":"m"}', True, b"m", False),
        (b'{"model":"\\ud800"}', True, b"\\ud800", False),
        (b'{"a":' + b"[" * 3000 + b"]" * 3000 + b',"model":"m"}', True, b"m", False),
        (b'{"model":"' + b"m" * MAX_NAME_BYTES + b'"}', True, b"m" * MAX_NAME_BYTES, False),
        (b'{"model":"' + b"m" * (MAX_NAME_BYTES + 1) + b'"}', True, TOO_LONG, False),
        (b'{"model":"' + b"\\u006d" * 9000 + b'"}', True, TOO_LONG, False),
        (b'{"' + b"model" * 9000 + b'":"no","model":"m"}', True, b"m", False),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_what_a_body_names(body: bytes, named: bool, model: bytes, conflict: bool) -> None:
    expected = (named, model, conflict)
    assert verdict(read_whole(body)) == expected
    assert scanned(body) == expected
    for size in (1, 2, 3, 7, 64, 1000):
        assert by_piece(body, size) == expected, size


def test_the_name_is_known_as_soon_as_it_came() -> None:
    field = ModelField()
    field.feed(b'{"messages":[{"content":"hello"}],"model":"m')
    assert (field.named, field.done) == (False, False)
    field.feed(b'"')
    assert (field.named, field.done) == (True, False)
    field.feed(b',"stream":true}')
    assert (field.named, field.done) == (True, True)


def test_members_that_are_too_many_and_no_good_json_are_not_read() -> None:
    good = b'{"model":"m",' + members(MAX_MEMBERS)
    for rest in (
        b'"x":NaN}',
        b'"x":1',
        b'"x":[}',
        b'"\\u006dodel":"n"}',
        b'"model":["m"]}',
        b'"model":"m",' * 20 + b'"x":1}',
    ):
        body = good + rest
        field = ModelField()
        field.feed(body)
        assert not field.done
        assert field.kept_bytes >= len(rest)
        field.finish()
        assert (field.model, field.unreadable, field.kept_bytes) == (b"m", True, 0), rest
        assert read_whole(body).unreadable


HEAVY = {
    "text": b'"x":"' + b"hello " * 20_000 + b'"}',
    "brackets": b'"x":[' + (b"[" * 20 + b"]" * 20 + b",") * 3000 + b"1]}",
    "deep brackets": b'"x":[' + (b"[" * 1000 + b"]" * 1000 + b",") * 60 + b"1]}",
    "brackets that do not match": b'"x":[' + b"[{]}," * 24_000 + b"1]}",
    "one deep list": b'"x":' + b"[" * 60_000 + b"]" * 60_000 + b"}",
    "strings": b'"x":[' + b'"",' * 40_000 + b'""]}',
    "members": members(14_000) + b'"x":1}',
    "members with lists": members(9_000, b"[[]]") + b'"x":1}',
    "long members with lists": members(MAX_MEMBERS - 2, b"[" + b'{"a":[]},' * 100 + b"1]") + b'"x":1}',
    "models": b'"model":"a",' * 10_000 + b'"x":1}',
    "escapes": b'"x":"' + b'\\"' * 60_000 + b'"}',
    "backslashes": b'"x":["' + b"\\\\" * 60_000 + b'"]}',
    "blanks": b'"x":' + b" " * 120_000 + b"1}",
    "numbers": b'"x":[' + b"1," * 60_000 + b"1]}",
}


@pytest.mark.parametrize("rest", HEAVY.values(), ids=HEAVY)
@pytest.mark.parametrize("size", [1, 100, SHORT_BYTES, 65536, 1 << 20])
def test_the_work_is_bounded_whatever_a_body_holds(rest: bytes, size: int) -> None:
    body = b'{"model":"a",' + rest
    field = ModelField()
    for begin in range(0, len(body), size):
        field.feed(body[begin : begin + size])
    field.finish()
    assert field.model == b"a"
    by_member = 16 * MAX_MEMBERS  # its signs, and the small blocks at the beginning of its value
    by_piece = 4 * (MAX_SHORT + len(body) // SHORT_BYTES)
    assert field.steps < by_member + by_piece


def test_what_cannot_become_an_object_needs_no_more() -> None:
    for beginning in (b"[", b"--boundary", b"x", b'{"a"x', b"{}"):
        field = ModelField()
        field.feed(beginning)
        assert field.done, beginning


def reference(body: bytes) -> Verdict:
    """Read good JSON with Python's json."""
    pairs: object = json.loads(body, object_pairs_hook=Pairs)
    values = [value for name, value in pairs if name == "model"] if isinstance(pairs, Pairs) else []
    if not values:
        return False, b"", False
    first = values[0]
    if any(value != first or not isinstance(value, str) for value in values[1:]):
        return True, b"", True
    return True, first.encode() if isinstance(first, str) else b"", False


class Pairs(list[tuple[str, Any]]):
    """The members of an object, all of them."""


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text('"\\{}[]:,model\n', max_size=90)
NAMES = st.sampled_from(["model", "model", "messages", "m", "mode", "model "]) | TEXTS
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6) | st.lists(st.tuples(NAMES, inner), max_size=6).map(lambda pairs: Members(pairs))
    ),
    max_leaves=40,
)
TOPS = st.lists(st.tuples(NAMES, VALUES | st.sampled_from(["m", "n"])), max_size=6).map(lambda pairs: Members(pairs))


class Members(list[tuple[str, Any]]):
    """An object to be written, names twice and all."""


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """JSON in as many spellings as there are."""
    escape = draw(st.sampled_from([False, False, True]))
    blank = draw(st.sampled_from(["", " ", "\n\t "]))
    mark = draw(st.sampled_from(["", "", "\ufeff"]))
    ascii_only = draw(st.booleans())

    def text(value: str) -> str:
        if escape:
            units = value.encode("utf-16-be")
            return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + '"'
        return json.dumps(value, ensure_ascii=ascii_only)

    def write(value: Any) -> str:
        if isinstance(value, Members):
            inner = f"{blank},{blank}".join(f"{text(name)}{blank}:{blank}{write(member)}" for name, member in value)
            return f"{{{blank}{inner}{blank}}}"
        if isinstance(value, list):
            return f"[{blank}{f'{blank},{blank}'.join(map(write, value))}{blank}]"
        return text(value) if isinstance(value, str) else json.dumps(value)

    top = draw(TOPS | VALUES)
    return f"{mark}{blank}{write(top)}{blank}".encode()


@given(documents(), st.data())
def test_all_readings_of_good_json_agree(body: bytes, data: st.DataObject) -> None:
    expected = reference(body)
    assert verdict(read_whole(body)) == expected
    assert scanned(body) == expected
    assert by_piece(body, data.draw(st.integers(1, 40))) == expected
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=4))
    assert scanned(body, *cuts) == expected
    if len(body) < 400:
        for cut in range(len(body)):
            assert scanned(body, cut) == expected, cut


TOKENS = st.sampled_from(
    [b'"', b'"model"', b":", b",", b"{", b"}", b"[", b"]", b"\\", b'\\"', b"\\\\", b"1", b"x", b" ", b"\x01", b"\xff"]
) | st.binary(max_size=4)


@given(st.lists(TOKENS, max_size=120), st.lists(st.integers(0, 600), max_size=4), st.integers(1, 300))
def test_broken_json_means_the_same_in_any_pieces(tokens: list[bytes], cuts: list[int], size: int) -> None:
    body = b'{"a":[' * (size % 2) + b"".join(tokens)
    expected = verdict(read_whole(body))
    assert scanned(body) == expected
    assert scanned(body, *(cut for cut in cuts if cut < len(body))) == expected
    assert by_piece(body, size) == expected
