"""HPACK both ways, with the ``hpack`` library as the judge."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http2.frames import Code, ProtocolError
from sidecar.http2.hpack import Decoder, Encoder, Field, literal

NAMES = st.sampled_from(
    [b":path", b":status", b"content-type", b"x-a", b"x-long-" + b"n" * 200, b"grpc-status", b"cookie"]
)
VALUES = st.one_of(
    st.sampled_from([b"", b"200", b"/", b"application/grpc", b"v" * 126, b"v" * 127, b"v" * 128, b"v" * 2000]),
    st.binary(max_size=40),
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
BLOCKS = st.lists(FIELDS, max_size=12)
SIZES = st.sampled_from([0, 40, 64, 200, 4096, 100_000])


def decoder() -> Decoder:
    return Decoder(1 << 20, 1000)


@given(BLOCKS, st.lists(st.tuples(st.integers(0, 11), SIZES), max_size=3))
def test_what_is_encoded_is_what_the_judge_reads(blocks: list[list[Field]], sizes: list[tuple[int, int]]) -> None:
    encoder, judge = Encoder(), hpack.Decoder()
    for number, fields in enumerate(blocks):
        for at, size in sizes:
            if at == number:
                judge.max_allowed_table_size = size
                encoder.resize(size)
        block = encoder.encode(fields) + literal(b"x-request-id", b"%d" % number)
        assert list(judge.decode(block, raw=True)) == [*fields, (b"x-request-id", b"%d" % number)]


@given(BLOCKS, st.booleans(), st.dictionaries(st.integers(0, 11), st.integers(0, 4096), max_size=3))
def test_what_the_judge_encodes_is_what_is_read(
    blocks: list[list[Field]], huffman: bool, sizes: dict[int, int]
) -> None:
    judge, ours = hpack.Encoder(), decoder()
    for number, fields in enumerate(blocks):
        if number in sizes:  # once for a block: the judge forgets to say a size that is set twice
            judge.header_table_size = sizes[number]
        version = ours.version
        block = judge.encode([(field[0], field[1]) for field in fields], huffman=huffman)
        assert ours.decode(block) == fields
        if ours.version == version:  # the table is as it was: the same bytes mean the same again
            assert ours.decode(block) == fields


@given(BLOCKS)
def test_both_ends_here_agree(blocks: list[list[Field]]) -> None:
    encoder, ours = Encoder(), decoder()
    for fields in blocks * 3:
        read = ours.decode(encoder.encode(fields))
        assert [field[:2] for field in read] == fields
        assert [field for field in read if len(field) > 2] == [(*f, b"") for f in fields if f[0] == b"cookie" and f[1]]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_read_as_the_judge_reads_them(blocks: list[bytes]) -> None:
    ours, judge = decoder(), hpack.Decoder()
    judge.max_allowed_table_size = 4096
    for block in blocks:
        try:
            expected = [tuple(field) for field in judge.decode(block, raw=True)]
        except (hpack.HPACKError, UnicodeDecodeError):
            return  # the judge may be stricter in what it refuses, and state is lost then
        assert [field[:2] for field in ours.decode(block)] == expected


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # one past the table
        b"\xff\xff\xff\xff\xff\xff\x7f",  # an integer without end
        b"\x00",  # a literal without its name
        b"\x00\x05ab",  # a name cut short
        b"\x00\x01a\x7f\xff\xff\xff\x7f",  # a value longer than anything
        b"\x82\x20",  # a table size update behind a field
        b"\x3f\xe2\x1f",  # a table larger than allowed: 4097
        b"\x00\x81\x00\x01b",  # Huffman padding that is none
    ],
    ids=lambda block: block.hex(),
)
def test_bad_blocks_end_the_connection(block: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decoder().decode(block)
    assert caught.value.code is Code.COMPRESSION_ERROR


def test_a_bomb_is_read_to_its_end_and_kept_small() -> None:
    ours = Decoder(max_list_bytes=5000, max_fields=100)
    ours.decode(b"\x40\x01a\x7f\x81\x0f" + b"v" * 2048)
    fields = ours.decode(b"\xbe" * 60_000)  # each byte stands for 2 KB
    assert ours.oversized
    assert sum(len(value) for _, value in fields) < 5000
    assert ours.decode(b"\xbe") == [(b"a", b"v" * 2048)]
    assert not ours.oversized


def test_too_many_fields_are_oversized() -> None:
    ours = Decoder(max_list_bytes=1 << 20, max_fields=10)
    assert len(ours.decode(b"\x82" * 11)) == 10
    assert ours.oversized


def test_what_repeats_shrinks_and_what_varies_costs_no_entry() -> None:
    encoder = Encoder()
    steady: list[Field] = [(b"x-model", b"m" * 20), (b"user-agent", b"u" * 30)]
    sizes = [len(encoder.encode([*steady, (b"x-nonce", b"%d" % number)])) for number in range(300)]
    assert sizes[2] == sizes[3] < 20
    assert len(encoder.encode(steady)) == 2


def test_what_is_never_to_be_indexed_stays_so() -> None:
    encoder = Encoder()
    for _ in range(3):
        block = encoder.encode([(b"authorization", b"Bearer x"), (b"x-secret", b"s", b"")])
        assert [field.indexable for field in hpack.Decoder().decode(block, raw=True)] == [False, False]


@given(st.lists(st.integers(0, 5), max_size=60), st.lists(FIELDS, min_size=6, max_size=6), SIZES)
def test_blocks_that_are_kept_mean_what_they_meant(order: list[int], blocks: list[list[Field]], size: int) -> None:
    encoder, judge = Encoder(), hpack.Decoder()
    for number, which in enumerate(order):
        if number == 20:
            judge.max_allowed_table_size = size
            encoder.resize(size)
        block = encoder.encode_known(which, blocks[which])
        assert list(judge.decode(block, raw=True)) == blocks[which]
