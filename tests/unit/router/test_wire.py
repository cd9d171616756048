from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import EndpointRecord, EndpointSeen, Replica, State
from router.urls import protocol_of
from router.wire import (
    MALFORMED,
    MAX_FIELD_CHARS,
    MAX_ID_CHARS,
    MAX_INTEGER,
    MAX_RECORD_BYTES,
    MAX_REPLICAS,
    Keys,
    ModelEvent,
    ModelNews,
    WireError,
    changed_fields,
    decode_delta,
    decode_fields,
    decode_news,
    decode_revision,
    encode_fields,
    encode_news,
    record_bytes,
)
from sidecar.channel import MAX_MESSAGE_BYTES, encode

TEXT = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=12)
NAME = TEXT.filter(bool)
ESCAPE = "\x1b]0;pwned\x07\x9b2J\u202e"
ADDRESSES = ("http://a:1", "https://b.test:65535", "grpc://[::1]:2", "grpcs://1.2.3.4:3", "unix:/s", "grpc+unix:/s/t")
REPLICAS = st.builds(
    Replica,
    model=NAME,
    version=TEXT,
    shard=st.integers(0, 3),
    shard_count=st.integers(4, 5),
    state=st.sampled_from(State),
    warmth=st.dictionaries(TEXT, st.floats(0, 1), max_size=3).map(lambda pairs: tuple(sorted(pairs.items()))),
    content_hash=TEXT,
    generation=st.integers(0, 9),
    warm_for_s=st.floats(0, 1e6).map(lambda value: round(value, 3)),
    warm_in_s=st.integers(0, 1000).map(float),
    reason=TEXT,
    group=TEXT,
)
COUNT = st.none() | st.integers(0, 1 << 50)
RECORDS = st.builds(
    lambda address, memory, **fields: EndpointRecord(
        address=address,
        protocol=protocol_of(address),
        free_memory_bytes=memory[0],
        total_memory_bytes=memory[1],
        **fields,
    ),
    id=NAME,
    address=st.sampled_from(ADDRESSES),
    epoch=TEXT,
    revision=st.integers(1, 1 << 40),
    replicas=st.lists(REPLICAS, max_size=3, unique_by=lambda r: (r.model, r.version, r.shard)).map(tuple),
    memory=st.tuples(COUNT, COUNT).map(lambda two: two if None in two else tuple(sorted(two))),
    queue_depth=COUNT,
    cpu_load=st.none() | st.floats(0, 1).map(abs),
    idle_for_s=st.none() | st.floats(0, 1e9).map(abs),
    draining=st.booleans(),
)


def stored(record: EndpointRecord) -> dict[str, str]:
    """Return the hash as the script leaves it in the store."""
    return {"v": "1", "epoch": record.epoch, "rev": str(record.revision), **encode_fields(record)}


def sample() -> dict[str, str]:
    return stored(EndpointRecord("e", "http://e:1", epoch="x", revision=3, replicas=(Replica("m", "1"),)))


@given(RECORDS)
def test_what_is_written_is_read(record: EndpointRecord) -> None:
    assert decode_fields(record.id, stored(record)) == record


@given(RECORDS, RECORDS)
def test_changes_applied_to_the_old_give_the_new(before: EndpointRecord, after: EndpointRecord) -> None:
    old, new = encode_fields(before), encode_fields(after)
    assert old | changed_fields(old, new) == new
    assert changed_fields(new, new) == {}


def test_keys_share_one_hash_slot() -> None:
    keys = Keys("prod")
    names = [keys.endpoint("e:1"), keys.index, keys.revision, keys.channel]
    assert names == ["wr:{prod}:ep:e:1", "wr:{prod}:eps", "wr:{prod}:rev", "wr:{prod}:delta"]


def replica(**fields: object) -> str:
    return json.dumps([{"m": "m", "v": "1", "s": "warm"} | fields])


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("v", "2", "schema version 2, this is 1"),
        ("v", "", "'' is no whole number"),
        ("rev", "x", "'x' is no whole number"),
        ("addr", None, "KeyError"),
        ("addr", "x" * (MAX_FIELD_CHARS + 1), "characters, at most"),
        ("free", "-1", "negative"),
        ("free", "1.5", "'1.5' is no whole number"),
        ("idle", "nan", "is not a duration"),
        ("idle", "-1", "is not a duration"),
        ("replicas", "x" * (MAX_FIELD_CHARS + 1), "characters, at most"),
        ("replicas", "{}", "not a list"),
        ("replicas", json.dumps([0] * (MAX_REPLICAS + 1)), "not a list of at most"),
        ("replicas", replica(p="g" * 129), "group of 129 characters, at most 128"),
        ("replicas", replica(p=3), "3 is not text"),
        ("replicas", replica(m=""), "model is empty"),
        ("replicas", replica(m=ESCAPE), r"model '\x1b]0;pwned\x07\x9b2J\u202e' holds control or invisible characters"),
        ("replicas", replica(v="1\n"), r"version '1\n' holds control or invisible characters"),
        ("replicas", replica(p="\x7f"), r"group '\x7f' holds control or invisible characters"),
        ("replicas", replica(h="\0"), r"content hash '\x00' holds control or invisible characters"),
        ("replicas", replica(c="\x80"), r"configuration revision '\x80' holds control or invisible characters"),
        ("replicas", replica(w={"\t": 1.0}), r"shape class '\t' holds control or invisible characters"),
        ("epoch", "\u2028", r"epoch '\u2028' holds control or invisible characters"),
        ("replicas", replica(v="9" * 129), "version of 129 characters, at most 128"),
        ("replicas", replica(m="m" * 129), "model of 129 characters, at most 128"),
        ("replicas", "[7]", "AttributeError"),
        ("replicas", "[", "JSONDecodeError"),
        ("replicas", "[" * 100_000, "RecursionError"),
        ("replicas", replica(s="lukewarm"), "'lukewarm' is not a valid State"),
        ("replicas", replica(k=2, n=2), "shard 2 of 2"),
        ("replicas", replica(k=float("inf"), n=2), "inf is no whole number"),
        ("replicas", replica(w={"a": 1.5}), "is not a ratio"),
        ("replicas", replica(w={"a": True}), "is not a duration"),
        ("replicas", replica(w={"a": float("nan")}), "is not a duration"),
        ("replicas", replica(w=[]), "AttributeError"),
        ("replicas", replica(m=5), "is not text"),
        ("replicas", replica(t="long"), "is not a duration"),
        ("replicas", replica(i=1e300), "warm in 1e+300 s, at most 604800"),
        ("rev", str(1 << 63), "too large"),
        ("queue", "99999999999999999999", "too large"),
        ("queue", "-1", "negative"),
        ("queue", "1.5", "'1.5' is no whole number"),
        ("queue", "nan", "'nan' is no whole number"),
        ("cpu", "nan", "cpu: nan is no load in [0, 1]"),
        ("cpu", "inf", "cpu: inf is no load in [0, 1]"),
        ("cpu", "-0.1", "cpu: -0.1 is no load in [0, 1]"),
        ("cpu", "1.0001", "cpu: 1.0001 is no load in [0, 1]"),
        ("cpu", "9" * 400, "is no load in [0, 1]"),
        ("cpu", "half", "cpu: half is no load in [0, 1]"),
        ("cpu", "[]", "cpu: [] is no load in [0, 1]"),
        ("free", "1" + "0" * 400, "too large"),
        ("total", "1" + "0" * 5000, "too large"),
        ("replicas", replica(g=1e300), "1e+300 is no whole number"),
        ("replicas", replica(n=1 << 63), "too large"),
        ("replicas", replica(k=-1), "negative"),
        ("replicas", replica(m="\ud800"), "UnicodeEncodeError"),
        ("addr", "\udfff", "UnicodeEncodeError"),
        ("addr", "", "addr: '' must be HOST:PORT after http://"),
        ("addr", "http://e:0", "must have a port between 1 and 65535"),
        ("addr", "grpc://e:1", "proto: 'http', but at grpc://e:1 it is 'grpc'"),
        ("proto", "", "proto: '', but at http://e:1 it is 'http'"),
        ("draining", "2", "draining: '2' is neither '0' nor '1'"),
        ("idle", "1_0", "'1_0' is not a duration"),
        ("wait", " 5", "' 5' is not a duration"),
        ("queue", "1_0", "'1_0' is no whole number"),
        ("queue", "٣", "'٣' is no whole number"),
        ("queue", "3\n", "is no whole number"),
        ("replicas", replica(k=False), "False is no whole number"),
        ("replicas", replica(n=1.0), "1.0 is no whole number"),
        ("replicas", replica(g="1"), "'1' is no whole number"),
        (
            "replicas",
            '[{"m":"m","v":"1","s":"warm"},{"m":"m","v":"1","s":"cold"}]',
            "replicas: 'm' version '1' shard 0 stands there twice",
        ),
        ("replicas", json.dumps([{"m": f"{n:0100}", "s": "warm"} for n in range(500)]), "bytes, at most"),
    ],
)
def test_what_cannot_be_read_says_which_endpoint_and_why(field: str, value: str | None, says: str) -> None:
    fields = sample()
    if value is None:
        del fields[field]
    else:
        fields[field] = value
    with pytest.raises(WireError) as caught:
        decode_fields("e", fields)
    assert says in str(caught.value)


def test_an_id_is_short_and_an_error_does_not_repeat_a_long_one() -> None:
    assert decode_fields("i" * MAX_ID_CHARS, sample()).id == "i" * MAX_ID_CHARS
    for read in (
        lambda id_: decode_fields(id_, sample()),
        lambda id_: decode_delta(json.dumps(delta(id=id_))),
    ):
        with pytest.raises(WireError, match="id of 100000 characters, at most 128") as caught:
            read("i" * 100_000)
        assert len(str(caught.value)) < 300


@given(RECORDS)
def test_a_record_that_is_read_fits_a_datagram(record: EndpointRecord) -> None:
    most = replace(record, revision=MAX_INTEGER, free_memory_bytes=MAX_INTEGER, total_memory_bytes=MAX_INTEGER)
    most = replace(most, queue_depth=MAX_INTEGER, cpu_load=0.1, idle_for_s=0.1)
    most = replace(
        most,
        replicas=tuple(
            replace(
                r,
                shard=MAX_INTEGER - 1,
                shard_count=MAX_INTEGER,
                generation=MAX_INTEGER,
                warm_for_s=0.1,
                warm_in_s=0.1,
                proven_at=0.1,
            )
            for r in most.replicas
        ),
    )
    assert len(encode(EndpointSeen(most, 0.1))) <= record_bytes(record)
    assert MAX_RECORD_BYTES < MAX_MESSAGE_BYTES


@pytest.mark.parametrize("value", [None, "", "abc", [], -1, 1 << 63, 1.5, True])
def test_what_is_no_revision_is_said(value: object) -> None:
    with pytest.raises(WireError):
        decode_revision(value)
    assert decode_revision(7) == 7


@pytest.mark.parametrize(
    ("id", "says"),
    [("", "endpoint '': id is empty"), (ESCAPE, "holds control or invisible characters"), ("a\nb", r"id 'a\nb' holds")]
    + [(f"a{one}", f"id {'a' + one!a} holds") for one in "\u00ad\u00a0\u200b\u3000\ue000\u0378\U000e0001"],
)
def test_an_id_that_moves_a_cursor_or_hides_is_refused_and_named_as_spelled(id: str, says: str) -> None:  # noqa: A002
    with pytest.raises(WireError, match=re.escape(says)) as caught:
        decode_fields(id, sample())
    assert (caught.value.reason, str(caught.value).isprintable()) == (MALFORMED, True)
    with pytest.raises(WireError):
        decode_delta(json.dumps(delta(id=id)))


def test_an_id_may_be_in_any_script_and_hold_spaces() -> None:
    assert decode_fields("za\u017c \u6a21\u578b-1 \U0001f525", sample()).id == "za\u017c \u6a21\u578b-1 \U0001f525"


def test_control_characters_in_a_reason_are_spelled_out() -> None:
    told = r"\x1b]0;pwned\x07\x9b2J\u202e"
    assert decode_fields("e", sample() | {"replicas": replica(r=ESCAPE)}).replicas[0].reason == told
    assert decode_news("e", json.dumps([[1, "model-loaded", "m", "1", ESCAPE]]))[0].reason == told
    assert (
        decode_fields("e", sample() | {"replicas": replica(r="za\u017c\u00f3\u0142\u0107 \U0001f525")})
        .replicas[0]
        .reason[-1]
        == "\U0001f525"
    )


def test_unknown_fields_of_a_later_minor_writer_are_passed_over() -> None:
    assert decode_fields("e", sample() | {"later": "x"}) == decode_fields("e", sample())


def delta(**fields: object) -> dict[str, object]:
    return {"v": 1, "id": "e", "epoch": "x", "rev": 4, "kind": "set", "f": {"free": "9"}} | fields


def test_deltas_are_read() -> None:
    read = decode_delta(json.dumps(delta()))
    assert (read.id, read.epoch, read.revision, read.kind, read.fields) == ("e", "x", 4, "set", {"free": "9"})
    assert decode_delta(json.dumps(delta(kind="beat", f=None)).encode()).fields == {}


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[]",
        "7",
        "{}",
        "[" * 100_000,
        b"\xff\xfe\xfd",
        json.dumps(delta(v=2)),
        json.dumps(delta(kind="other")),
        json.dumps(delta(f=[1])),
        json.dumps(delta(f={"free": 9})),
        json.dumps(delta(rev=None)),
        json.dumps(delta(rev=float("inf"))),
        json.dumps(delta(id=1)),
        json.dumps(delta(id="\ud800")),
        json.dumps(delta(rev=1 << 63)),
        json.dumps(delta(rev=-1)),
        json.dumps(delta(rev=4.0)),
        json.dumps(delta(rev="4")),
        json.dumps(delta(rev=True)),
        json.dumps(delta(v=True)),
    ],
)
def test_other_payloads_raise_only_the_documented_error(payload: str | bytes) -> None:
    with pytest.raises(WireError):
        decode_delta(payload)


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_no_payload_raises_anything_else(payload: bytes | str) -> None:
    with pytest.raises(WireError):
        decode_delta(payload)


def test_a_static_record_is_not_made_by_the_store() -> None:
    assert (
        decode_fields(
            "e", stored(replace(EndpointRecord("e", "http://a:1", epoch="x", revision=1), static=True))
        ).static
        is False
    )


NEWS = [
    ModelNews(7, ModelEvent.SWAPPED, "m", "1", ""),
    ModelNews(8, ModelEvent.UNLOADED, "m", "1", "idle"),
]


def test_news_are_read_from_a_number_on_and_later_kinds_are_left_out() -> None:
    text = encode_news(NEWS)
    assert decode_news("e", text) == NEWS
    assert decode_news("e", text, 7) == NEWS[1:]
    assert decode_news("e", text.replace("model-unloaded", "model-moved")) == NEWS[:1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "endpoint 'e': news: not a list of at most 8"),
        ("[" + ",".join(['[1,"model-loaded","m","1",""]'] * 9) + "]", "endpoint 'e': news: not a list of at most 8"),
        ('[[-1,"model-loaded","m","1",""]]', "endpoint 'e': news: -1 is negative"),
        ('[[1,"model-loaded",7,"1",""]]', "endpoint 'e': news: 7 is not text"),
        ('[[1,"model-loaded","m"]]', "endpoint 'e': news: ValueError: not enough values to unpack (expected 5, got 3)"),
        ("[", "endpoint 'e': news: JSONDecodeError: Expecting value: line 1 column 2 (char 1)"),
    ],
)
def test_news_that_cannot_be_read_say_whose(text: str, says: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_news("e", text)
    assert str(caught.value) == says
