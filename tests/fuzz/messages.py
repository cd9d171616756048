"""Streams of requests and responses, most of them nearly right: grammar first, then damage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

METHODS: Final = (b"GET", b"GET", b"POST", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"get", b"CONNECT", b"PRI")
TARGETS: Final = (
    b"/", b"/x?y=1", b"/v2/models/m/infer", b"/v1/chat/completions", b"http://a.test/x", b"HTTP://a.test:80?q", b"*",
    b"//a//b", b"/%0d%0aX:1", b"/a#b", b"a.test:80", b"/\xc3\xa9", b"/a\tb", b"http://u@a.test/", b"/" + b"a" * 600,
)  # fmt: skip
VERSIONS: Final = (b"HTTP/1.1",) * 6 + (b"HTTP/1.0",) * 3 + (b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"")
STATUS_LINES: Final = (
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 404 Not Found",
    b"HTTP/1.1 503 Busy", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 103 Early Hints", b"HTTP/1.1 101 Switching Protocols", b"HTTP/1.1 200", b"HTTP/1.1 999 ?",
    b"HTTP/1.1 099 x", b"HTTP/1.1  200 OK", b"HTTP/2 200", b"HTTP/1.1 200 O\x00K", b"ICY 200 OK",
)  # fmt: skip
FRAMING: Final = (
    b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: 5", b"content-length:5 ", b"Content-Length: 05",
    b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: 5 5", b"Content-Length:",
    b"Content-Length: 99999999999999999999", b"Content-Length : 5", b"Content_Length: 9", b"Content-Length\x00: 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", b"transfer-encoding:\tCHUNKED",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked\x0b", b"Transfer-Encoding: \x00chunked", b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding: chunked;x", b"Transfer-Encoding: 'chunked'", b"Transfer_Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked", b"X: y\nTransfer-Encoding: chunked",
)  # fmt: skip
FIELDS: Final = (
    b"Connection: close", b"Connection: keep-alive", b"Connection: X, close", b"Connection: Content-Length",
    b"Connection: Transfer-Encoding, Host", b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c",
    b"Expect: 100-continue", b"Expect: x", b"X: 1", b"X:", b"X : 1", b": 1", b"X", b"X: caf\xe9", b"X: a\x00b",
    b"TE: trailers", b"Trailer: X", b"Keep-Alive: timeout=5", b"x-request-id: 1", b"x-request-id:", b" folded",
    b"\tfolded", b"Retry-After: 1", b"traceparent: 00-0", b"X-Forwarded-For: 1.2.3.4", b"Host: b.test", b"Via: 1.1 b",
    b"x-request-timeout-ms: soon", b"Content-Type: text/event-stream", b"Date: Sun, 06 Nov 1994 08:49:37 GMT",
)  # fmt: skip
EXTENSIONS: Final = (b"", b"", b"", b"", b";x", b' ; x="a;b" ', b';x="', b";", b"\t", b" ", b"\x00", b";x=\\")
TRAILERS: Final = (b"", b"", b"", b"T: 1\r\n", b"Content-Length: 5\r\n", b"T : 1\r\n", b"T\r\n", b" f\r\n", b"T: 1\n")
ODD: Final = (
    b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r\n", b":", b" ", b"\t", b"\x00", b"\xff", b"0", b"-", b"+", b";", b'"', b",",
    b"chunked", b"0\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\x0b", b"\x7f",
)  # fmt: skip


def requests(rng: random.Random) -> bytes:
    """Return a few pipelined requests, some damaged."""
    return damaged(rng, b"".join(_request(rng) for _ in range(rng.randint(1, 4))))


def responses(rng: random.Random) -> bytes:
    """Return interim answers, an answer and what may follow it, some damaged."""
    return damaged(rng, b"".join(_response(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return ``data`` with a few bytes cut out or put in, or as it is."""
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        at = rng.randint(0, len(data))
        data = data[:at] + rng.choice((b"", *ODD)) + data[at + rng.choice((0, 0, 1, 1, 2, 5)) :]
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """Cut ``data`` anywhere."""
    if rng.random() < 0.1:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.choice((0, 1, 2, 5))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def _request(rng: random.Random) -> bytes:
    line = b" ".join((rng.choice(METHODS), rng.choice(TARGETS), rng.choice(VERSIONS)))
    host = [b"Host: a.test"] if rng.random() < 0.95 else []
    return b"\r\n" * rng.choice((0, 0, 0, 0, 1)) + line + b"\r\n" + _rest(rng, host, 0.6)


def _response(rng: random.Random) -> bytes:
    return rng.choice(STATUS_LINES) + b"\r\n" + _rest(rng, [], 0.9)


def _rest(rng: random.Random, fields: list[bytes], framed: float) -> bytes:
    framing: list[bytes] = []
    if rng.random() < framed:
        usual = (b"Content-Length: 5", b"Transfer-Encoding: chunked")
        framing = [rng.choice(usual if rng.random() < 0.7 else FRAMING)]
        if rng.random() < 0.1:
            framing.append(rng.choice(FRAMING))
    fields = [*fields, *framing, *(rng.choice(FIELDS) for _ in range(rng.choice((0, 0, 1, 2, 4))))]
    rng.shuffle(fields)
    body = b""
    if b"chunked" in b"".join(framing).lower():
        body = _chunked(rng)
    elif framing:
        body = rng.choice((b"hello", b"hello", b"GET /", b"", b"hell", b"HTTP/1.1 200 OK\r\n\r\n"))
    return b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def _chunked(rng: random.Random) -> bytes:
    out: list[bytes] = []
    for _ in range(rng.randint(0, 3)):
        data = rng.choice(
            (b"hello", b"\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: e\r\n\r\n", bytes(rng.randint(1, 20)))
        )
        size = _usually(rng, b"%x" % len(data), (b"0%X" % len(data), b"+5", b"0x5", b"-1", b"", b"5 ", b"5" * 17))
        out += [size, rng.choice(EXTENSIONS), b"\r\n", data, _usually(rng, b"\r\n", (b"", b"\n", b"\r", b"\r\r\n"))]
    last = _usually(rng, b"0", (b"00", b"", b"0;x", b"-0", b"0 "))
    return b"".join(out) + last + b"\r\n" + rng.choice(TRAILERS) + _usually(rng, b"\r\n", (b"", b"\n", b"\r"))


def _usually(rng: random.Random, usual: bytes, others: Sequence[bytes]) -> bytes:
    return usual if rng.random() < 0.9 else rng.choice(others)
