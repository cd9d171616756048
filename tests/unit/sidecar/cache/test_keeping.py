"""Which answers are kept, what of their heads, for how long, and how they are told."""

from __future__ import annotations

import pytest

from sidecar.cache.keeping import Kept, judge, kept
from sidecar.cache.terms import Refused, Terms
from sidecar.settings import Admission, Cache

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
TERMS = Terms(Cache(), Admission())


@pytest.mark.parametrize(
    ("why", "status", "forward", "length", "cache"),
    [
        (None, 200, OK, 10, Cache()),
        (Refused.STATUS, 500, OK, 10, Cache()),
        (Refused.STATUS, 404, OK, 10, Cache()),
        (None, 404, OK, 10, Cache(statuses=(200, 404), errors=True)),
        (Refused.STREAM, 200, OK, -1, Cache()),
        (Refused.STREAM, 200, OK, -2, Cache()),
        (None, 200, OK, -1, Cache(streams=True)),
        (Refused.STREAM, 200, b"HTTP/1.1 200 OK\r\nContent-type: Text/Event-Stream; x=y\r\n", 10, Cache()),
        (None, 200, b"HTTP/1.1 200 OK\r\nContent-type: text/event-stream\r\n", -1, Cache(streams=True)),
        (Refused.SIZE, 200, OK, 1000, Cache(max_entry_bytes=1000)),
        (Refused.ANSWER_CONTROL, 200, OK + b"Set-Cookie: a=b\r\n", 10, Cache()),
        (Refused.ANSWER_CONTROL, 200, OK + b"cache-control: max-age=5, Private\r\n", 10, Cache()),
        (Refused.ANSWER_CONTROL, 200, OK + b'Cache-Control: no-cache="x"\r\n', 10, Cache()),
        (Refused.ANSWER_CONTROL, 200, OK + b"Cache-Control: no-store\r\n", 10, Cache()),
        (Refused.ANSWER_CONTROL, 200, OK + b"Vary: *\r\n", 10, Cache()),
        (Refused.ANSWER_CONTROL, 200, OK + b"Vary: Accept, Origin\r\n", 10, Cache()),
        (None, 200, OK + b"Vary: Accept, Origin\r\n", 10, Cache(key_headers=("origin",))),
        (None, 200, OK + b"Vary: Accept-Encoding,accept\r\n", 10, Cache()),
    ],
)
def test_what_may_be_kept(why: Refused | None, status: int, forward: bytes, length: int, cache: Cache) -> None:
    assert judge(status, forward, length, Terms(cache, Admission())) is why


def keep(fields: bytes, body: bytes = b"answer") -> Kept:
    found = kept(OK + fields, body, 100.0, TERMS)
    assert isinstance(found, Kept)
    return found


def test_fields_of_one_exchange_are_said_anew() -> None:
    answer = keep(
        b"Content-Length: 6\r\nx-request-id: old\r\nX-Model: m\r\nDate: d\r\nVia: x\r\nAge: 7\r\n"
        b"warmroute-outcome: x\r\n"
        b"endpoint-load-metrics: TEXT cpu_utilization=0.3\r\nServer-Timing: a\r\nCache-Status: other; hit\r\n"
    )
    told = answer.tell(130.5, b"new", close=False)
    assert told == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Model: m\r\nDate: d\r\nContent-Length: 6\r\n"
        b"Age: 37\r\n"
        b"Cache-Status: warmroute; hit; ttl=562\r\nwarmroute-degraded: cache\r\nx-request-id: new\r\n"
        b"via: 1.1 warmroute\r\n\r\nanswer"
    )


def test_a_closing_connection_is_told() -> None:
    assert b"\r\nConnection: close\r\n\r\nanswer" in keep(b"").tell(100.0, b"1", close=True)


@pytest.mark.parametrize(
    ("fields", "ttl_s"),
    [
        (b"", 600.0),
        (b"Cache-Control: max-age=30\r\n", 30.0),
        (b"Cache-Control: max-age=30, s-maxage=90\r\n", 90.0),
        (b"Cache-Control: s-maxage=90, max-age=30\r\n", 90.0),
        (b"Cache-Control: max-age=9999\r\n", 600.0),
        (b"Cache-Control: max-age=30\r\nAge: 10\r\n", 20.0),
    ],
)
def test_the_time_that_it_is_told_is_the_shorter_one(fields: bytes, ttl_s: float) -> None:
    answer = keep(fields)
    assert answer.ttl_s == ttl_s
    assert answer.fresh(99.9 + ttl_s)
    assert not answer.fresh(100.0 + ttl_s)


@pytest.mark.parametrize(
    "fields",
    [b"Age: " + b"9" * 5000 + b"\r\n", b"Cache-Control: max-age=0\r\n", b"Cache-Control: max-age=5\r\nAge: 5\r\n"],
)
def test_what_is_old_when_it_comes_is_not_kept(fields: bytes) -> None:
    assert kept(OK + fields, b"", 0.0, TERMS) is Refused.ANSWER_CONTROL


def test_what_turned_out_too_long_is_not_kept() -> None:
    assert kept(OK, b"x" * 300, 0.0, Terms(Cache(max_entry_bytes=256), Admission())) is Refused.SIZE
