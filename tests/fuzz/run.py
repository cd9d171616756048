"""One step of the fuzzer for each direction: make bytes, pass them whole and in pieces, judge, compare."""

from __future__ import annotations

import random

from sidecar.telemetry.page import Page
from tests.fuzz import codec, messages

ASKS = (
    (b"GET", False, b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    (b"GET", True, b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    (b"HEAD", False, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (b"POST", False, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"),
    (b"GET", False, b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"),
)


def requests(page: Page, rng: random.Random) -> None:
    """Judge one stream of requests."""
    data = messages.requests(rng)
    try:
        whole = _asked(page, data, [data])
        cut = messages.pieces(rng, data)
        pieces = _asked(page, data, cut)
        assert pieces.whole == whole.whole, f"in pieces {cut!r} arrived {pieces.whole}, in one {whole.whole}"
    except AssertionError as error:
        error.add_note(f"a caller sent {data!r}")
        raise


def _asked(page: Page, data: bytes, pieces: list[bytes]) -> codec.Passed:
    passed = codec.ask(page, pieces)
    codec.check_asked(data, passed)
    return passed


def responses(page: Page, rng: random.Random) -> None:
    """Judge one stream of responses to one request."""
    method, old, asked = rng.choice(ASKS)
    data = messages.responses(rng)
    ended, reset = rng.random() < 0.6, rng.random() < 0.3
    try:
        passed = [
            _answered(page, method, old, asked, pieces, ended, reset) for pieces in ([data], messages.pieces(rng, data))
        ]
        assert passed[0] == passed[1], "it passes whole or in pieces, but not both"
    except AssertionError as error:
        error.add_note(f"{method!r}{' of HTTP/1.0' * old}, a worker said {data!r}, {ended=} {reset=}")
        raise


def _answered(
    page: Page, method: bytes, old: bool, asked: bytes, pieces: list[bytes], ended: bool, reset: bool
) -> bool:
    passed, read, kept = codec.answer(page, asked, pieces, ended=ended, reset=reset)
    return codec.check_answered(method, old, read, passed, ended=ended and not reset, kept=kept)
