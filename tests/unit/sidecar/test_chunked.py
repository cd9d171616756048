"""The chunked coding: whatever the pieces, the same bytes come out; whatever is wrong, nothing behind it does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http1.chunked import MAX_SIZE_LINE, MAX_TRAILER_BYTES, ChunkError, ChunkScanner

BODY = b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\nX-T: v\r\nX-U:\r\n\r\n"
PASSED = b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"
DATA = b"hello0123456789"


def feed(scanner: ChunkScanner, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Feed ``data`` in pieces; return what came out and what follows the body."""
    out = b""
    start = 0
    for end in [*sorted(cuts), len(data)]:
        piece, start = data[start:end], end
        if piece:
            out += scanner.feed(piece)
        if scanner.done:
            return out, scanner.rest + data[end:]
    return out, b""


@given(st.lists(st.integers(0, len(BODY) + 4), max_size=12), st.booleans())
def test_pieces_do_not_matter(cuts: list[int], decode: bool) -> None:
    scanner = ChunkScanner(decode=decode)
    out, rest = feed(scanner, BODY + b"NEXT", cuts)
    assert scanner.done
    assert out == (DATA if decode else PASSED)
    assert rest == b"NEXT"
    assert scanner.payload_bytes == len(DATA)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=10))
def test_what_is_encoded_is_decoded(chunks: list[bytes], cuts: list[int]) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    scanner = ChunkScanner(decode=True)
    out, _ = feed(scanner, body, [cut for cut in cuts if cut <= len(body)])
    assert scanner.done
    assert out == b"".join(chunks)


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_a_copy_has_the_data_without_its_framing(cuts: list[int]) -> None:
    scanner = ChunkScanner()
    scanner.copy = []
    out, _ = feed(scanner, BODY, cuts)
    assert (out, b"".join(scanner.copy)) == (PASSED, DATA)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_anything_else_is_refused_or_unfinished(data: bytes, cuts: list[int]) -> None:
    scanner = ChunkScanner()
    try:
        out, _ = feed(scanner, data, cuts)
    except ChunkError:
        return
    assert scanner.done or data.startswith(out)


@pytest.mark.parametrize(
    "bad",
    [
        b"5\r\nhelloXX",
        b"5\r\nhello\rX",
        b"5\r\nhello\n",
        b"5\nhello",
        b"-5\r\n",
        b"+5\r\n",
        b"0x5\r\n",
        b"5_0\r\n",
        b" 5\r\n",
        b"5 \r\nhello",
        b"\r\n",
        b"g",
        b"5;a\x00b\r\n",
        b"5;a\nb\r\n",
        b"5;a\rb\r\n",
        b"1" * 16 + b"\r\n",
        b"5;" + b"x" * MAX_SIZE_LINE + b"\r\n",
        b"5;" + b"x" * MAX_SIZE_LINE,
        b"0\r\n: v\r\n\r\n",
        b"0\r\nX : v\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"0\r\nGET / HTTP/1.1\r\n\r\n",
        b"0\r\nX: a\nY: b",
        b"0\r\nX: a\rb",
        b"0\r\nX: " + b"x" * (MAX_TRAILER_BYTES + 1),
        (b"0\r\n" + b"X: y\r\n" * 2000) + b"Y: z",
    ],
)
def test_broken_framing_is_refused_as_early_as_it_shows(bad: bytes) -> None:
    with pytest.raises(ChunkError):
        ChunkScanner().feed(bad)


@pytest.mark.parametrize("line", [b"0x5", b"0X5", b"5_", b"+5", b" 5", b"5g", b"5;"])
def test_a_whole_chunk_in_one_piece_is_read_as_strictly(line: bytes) -> None:
    with pytest.raises(ChunkError):
        ChunkScanner().feed(line + b"\r\nhello\r\n")


@given(st.text("0159aAfFxXoOgG_+-. \t", min_size=1, max_size=6))
def test_a_whole_chunk_in_one_piece_has_digits_and_nothing_else(line: str) -> None:
    size = int(line, 16) if set(line) <= set("0123456789abcdefABCDEF") else 0
    chunk = line.encode() + b"\r\n" + b"x" * min(size, 4096) + b"\r\n"
    if 0 < size <= 4096:
        assert ChunkScanner().feed(chunk) == chunk
    elif not size and set(line) != {"0"}:
        with pytest.raises(ChunkError):
            ChunkScanner().feed(chunk)


def test_trailers_are_bounded_whatever_their_pieces() -> None:
    line = b"X: yyyy\r\n"
    scanner = ChunkScanner()
    scanner.feed(b"0\r\n")
    for _ in range(MAX_TRAILER_BYTES // len(line)):
        scanner.feed(line)
    with pytest.raises(ChunkError, match="too long"):
        scanner.feed(line)


def test_trailer_lines_are_kept_and_not_passed_on() -> None:
    scanner = ChunkScanner()
    assert scanner.feed(b"1\r\nx\r\n0\r\na: 1\r\nb:") == b"1\r\nx\r\n0\r\n"
    assert scanner.feed(b" 2\r\n\r\nrest") == b"\r\n"
    assert (scanner.trailers, scanner.done, scanner.rest) == (b"\r\na: 1\r\nb: 2", True, b"rest")


def test_nothing_of_a_size_line_goes_on_before_it_is_known_to_be_good() -> None:
    scanner = ChunkScanner()
    assert scanner.feed(b"5\r\nhello\r\n3;e") == b"5\r\nhello\r\n"
    assert scanner.feed(b"xt\r\nab") == b"3;ext\r\nab"
    assert not scanner.done


@pytest.mark.parametrize(
    ("extensions", "good"),
    [
        (b";a", True),
        (b" \t; a\t=  b;c", True),
        (b';a="b;\\"=c" ;d=e', True),
        (b';a=""', True),
        (b";", False),
        (b";a;", False),
        (b";a=", False),
        (b";a b", False),
        (b";a ", False),
        (b';a="', False),
        (b';a="b\\"', False),
        (b';a="b"c', False),
        (b';"a"', False),
        (b";a=\x00", False),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_extensions_are_names_with_values(extensions: bytes, good: bool, split: bool) -> None:
    body = b"5" + extensions + b"\r\nhello\r\n0\r\n\r\n"
    scanner = ChunkScanner()
    cuts = list(range(len(body))) if split else []
    if good:
        assert feed(scanner, body, cuts)[0] == body
    else:
        with pytest.raises(ChunkError):
            feed(scanner, body, cuts)


def test_bytes_behind_the_end_are_no_part_of_it() -> None:
    scanner = ChunkScanner()
    scanner.feed(b"0\r\n\r\n")
    with pytest.raises(ChunkError):
        scanner.feed(b"x")
