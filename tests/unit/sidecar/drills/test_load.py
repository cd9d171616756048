"""The drill's own load, as requests with their moments, and what became of them."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.drills import reaching
from sidecar.drills.load import call_of, timed
from sidecar.drills.scenario import Load, Spacing, Trust
from sidecar.traffic.samples import Ended, Sample

LOAD = Load(path="/m/$N", rate_per_s=10, headers={"k": "v$N"}, body='{"id": "$ID"}', distinct=2)


def test_requests_are_evenly_spaced_and_filled_in() -> None:
    requests = list(timed(LOAD, 0.4))
    assert [one.at_s for one in requests] == [0, 0.1, 0.2, pytest.approx(0.3)]
    assert [one.target for one in requests] == ["/m/0", "/m/1", "/m/0", "/m/1"]
    assert requests[1].headers == (("k", "v1"),)
    assert len({one.body for one in requests}) == 4


def test_independent_callers_are_the_same_ones_each_time() -> None:
    load = Load(path="/", rate_per_s=100, spacing=Spacing.RANDOM, for_s=5)
    moments = [one.at_s for one in timed(load, 60)]
    assert moments == [one.at_s for one in timed(load, 60)]
    assert 400 < len(moments) < 600
    assert all(one < 5 for one in moments)
    assert moments == sorted(moments)


def test_calls_have_one_message_each() -> None:
    load = Load(path="/s.S/M", rate_per_s=10, to="grpc://h:1", message_base64="CgFt")
    (one, *_) = timed(load, 1)
    assert (one.call, one.method, one.body) == (True, "POST", b"\0\0\0\0\3\n\1m")


@pytest.mark.parametrize(
    ("fields", "path", "remedy"),
    [
        ({"to": "ftp://h:1"}, ("to",), "must be http://HOST:PORT, https://HOST:PORT, "),
        ({"message_base64": "CgFt"}, ("message_base64",), "is what calls say: needs a to that begins with grpc"),
        ({"to": "grpc://h:1", "message_base64": "?"}, ("message_base64",), "is no base64: "),
        ({"to": "grpc://h:1", "body": "x"}, ("body",), "a gRPC call has message_base64 instead"),
        ({"to": "grpc://h:1", "ends_with": "x"}, ("ends_with",), "a gRPC call has message_base64 instead"),
        ({"to": "grpc://h:1", "method": "PUT"}, ("method",), "a gRPC call is a POST: leave it out"),
        ({"http2": True}, ("http2",), "a listener without TLS speaks HTTP/1.1 alone: leave it out, or add to with"),
        ({"to": "grpc://h:1", "http2": True}, ("http2",), "gRPC is over HTTP/2 anyway: leave it out"),
        ({"tls": Trust()}, ("tls",), "needs a to that begins with https:// or grpcs://"),
        ({"to": "http://h:1", "tls": Trust()}, ("tls",), "needs a to that begins with https:// or grpcs://"),
        ({"to": "https://h:1", "tls": Trust(ca_file="/no")}, ("tls", "ca_file"), "/no: No such file or directory"),
        ({"to": "https://h:1", "tls": Trust(cert_file="/no")}, ("tls", "cert_file"), "/no: No such file or directory"),
        ({"to": "https://h:1", "tls": Trust(key_file="/no")}, ("tls", "key_file"), "needs cert_file"),
    ],
)
def test_what_makes_no_sense_about_how_it_gets_there(
    fields: dict[str, Any], path: tuple[str, ...], remedy: str
) -> None:
    (found,) = reaching.problems(Load(path="/", rate_per_s=1, **fields))
    assert found.path == path
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"to": "unix:/run/a.sock"},
        {"to": "http://h:1", "http2": True},
        {"to": "grpcs://h:1", "tls": Trust(insecure=True)},
        {"to": "https://h:1"},
    ],
)
def test_what_makes_sense(fields: dict[str, Any]) -> None:
    load = Load(path="/", rate_per_s=1, **fields)
    assert not [*reaching.problems(load)]
    assert reaching.sender(load, "127.0.0.1:1", lambda _: None).in_flight == 0


@pytest.mark.parametrize(
    ("ended", "status", "ok", "outcome"),
    [
        (Ended.OK, 200, True, "ok"),
        (Ended.STATUS_5XX, 503, False, "http_503"),
        (Ended.CUT, 200, False, "cut"),
        (Ended.TIMED_OUT, 0, False, "timed_out"),
        (Ended.GRPC_STATUS, 200, False, "grpc_14"),
    ],
)
def test_what_became_of_one(ended: Ended, status: int, ok: bool, outcome: str) -> None:
    sample = Sample(1, "", "id", 2.0, 2.5, 2.9, 3.0, ended, status, 14, headers={"warmroute-degraded": "cache"})
    call = call_of(sample, 10.0)
    assert (call.at, call.latency_ms) == (12, 1000)  # from the moment that was meant
    assert (call.ok, call.outcome, call.degraded) == (ok, outcome, "cache")
