"""Forwarding fields: what is believed of them, from whom, and what goes on to a worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.http1.forwarding import MAX_PEERS, STRANGER, UNIX, ListenerRules, Peer, numbered
from sidecar.http1.head import RequestHead
from sidecar.http1.parsing import parse_request

NETWORKS = ("10.0.0.0/8", "2001:db8::/32", "192.0.2.7", UNIX)


def head(*fields: bytes, peer: Peer = STRANGER) -> RequestHead:
    raw = b"GET /p HTTP/1.1\r\nHost: a.test\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"
    return parse_request(raw, peer=peer)


def sent(*fields: bytes, peer: Peer = STRANGER) -> list[bytes]:
    """Return the fields behind Host that a first attempt goes out with."""
    one = head(*fields, peer=peer)
    lines = (one.forward + one.end).split(b"\r\n")
    assert lines[:2] == [b"GET /p HTTP/1.1", b"Host: a.test"]
    assert lines[-2:] == [b"", b""]
    return lines[2:-2]


OURS = [b"x-forwarded-for: 198.51.100.1", b"x-forwarded-proto: http", b"via: 1.1 warmroute", b"warmroute-attempt: 1"]
CALLER = Peer("198.51.100.1")
PROXY = Peer("198.51.100.1", trusted=True)

FORGED = [
    b"X-Forwarded-For: 203.0.113.9",
    b"x-forwarded-for:203.0.113.9",
    b"X_Forwarded_For: 203.0.113.9",
    b"X-Forwarded_For: 203.0.113.9",
    b"X.Forwarded.For: 203.0.113.9",
    b"X-Forwarded: for=203.0.113.9",
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Host: b.test",
    b"X-Forwarded-Port: 443",
    b"X-Forwarded-Prefix: /admin",
    b"X-FORWARDED-CLIENT-CERT: By=spiffe://a",
    b"X-Real-IP: 203.0.113.9",
    b"X_Real_IP: 203.0.113.9",
    b"Forwarded: for=203.0.113.9",
    b"warmroute-attempt: 7",
    b"Warmroute_Attempt: 7",
    b"warmroute-outcome: ok",
    b"warmroute_model: m",
    b"x-envoy-attempt-count: 3",
    b"X-Envoy-Max-Retries: 9",
    b"x_envoy_upstream_rq_timeout_ms: 1",
]


@pytest.mark.parametrize("field", FORGED)
def test_a_stranger_is_not_believed(field: bytes) -> None:
    assert sent(b"A: 1", field, b"B: 2", peer=CALLER) == [b"A: 1", b"B: 2", *OURS]
    assert head(field).attempt == 1


@pytest.mark.parametrize("field", FORGED)
def test_what_is_taken_out_is_in_no_shape(field: bytes) -> None:
    one = head(b"Content-Length: 3", field, peer=CALLER)
    assert not one.fits(one.raw)


@pytest.mark.parametrize(
    "field",
    [
        b"X-Forward: 1",
        b"X-Forwardedfor: 1",
        b"Forwarded-For: 1",
        b"X-Real-IPs: 1",
        b"X-Envoys: 1",
        b"Y-Forwarded-For: 1",
        b"warmroutes: 1",
        b"warmroute-model: m",
        b"A: x-forwarded-for: 1",
        b"X-Name: caf\xe9",
    ],
)
def test_other_fields_pass(field: bytes) -> None:
    assert sent(field, peer=CALLER) == [field, *OURS]


def test_connection_cannot_take_out_what_is_written_here() -> None:
    fields = [b"Connection: X-Forwarded-For, via, warmroute-attempt", b"X-Forwarded-For: 203.0.113.9"]
    assert sent(*fields, peer=CALLER) == OURS
    assert sent(*fields, peer=PROXY) == OURS


@pytest.mark.parametrize(
    ("fields", "out"),
    [
        pytest.param([], OURS, id="nothing said"),
        pytest.param(
            [b"X-Forwarded-For: 203.0.113.9 ", b"A: 1"],
            [b"X-Forwarded-For: 203.0.113.9, 198.51.100.1", b"A: 1", *OURS[1:]],
            id="a chain is continued",
        ),
        pytest.param(
            [b"X-Forwarded-For: 2001:db8::"], [b"X-Forwarded-For: 2001:db8::, 198.51.100.1", *OURS[1:]], id="a colon"
        ),
        pytest.param([b"X-Forwarded-For:"], [b"X-Forwarded-For: 198.51.100.1", *OURS[1:]], id="an empty chain"),
        pytest.param(
            [b"X-Forwarded-For: a", b"x-forwarded-for: b"],
            [b"X-Forwarded-For: a", b"x-forwarded-for: b, 198.51.100.1", *OURS[1:]],
            id="the last of two lines",
        ),
        pytest.param(
            [b"X-Forwarded-Proto: https", b"X-Forwarded-Host: b.test", b"X-Real-IP: 203.0.113.9"],
            [b"X-Forwarded-Proto: https", b"X-Forwarded-Host: b.test", b"X-Real-IP: 203.0.113.9", OURS[0], *OURS[2:]],
            id="the rest is kept",
        ),
        pytest.param(
            [b'Forwarded: for="[2001:db8::1]";proto=https'],
            [b'Forwarded: for="[2001:db8::1]";proto=https, for=198.51.100.1;proto=http', *OURS[2:]],
            id="RFC 7239 alone",
        ),
        pytest.param(
            [b"Forwarded: for=a", b"X-Forwarded-For: a"],
            [b"Forwarded: for=a, for=198.51.100.1;proto=http", b"X-Forwarded-For: a, 198.51.100.1", *OURS[2:]],
            id="both",
        ),
        pytest.param([b"warmroute-attempt: 3"], [*OURS[:3], b"warmroute-attempt: 3"], id="an attempt"),
        pytest.param(
            [b"warmroute-attempt: 2", b"Warmroute-Attempt:4"], [*OURS[:3], b"warmroute-attempt: 4"], id="two of them"
        ),
        pytest.param([b"warmroute-attempt: 1"], OURS, id="the first attempt"),
        pytest.param([b"warmroute-attempt: 2, 3"], [*OURS[:3], b"warmroute-attempt: 2"], id="a list of attempts"),
        pytest.param([b"warmroute-attempt: 99999"], [*OURS[:3], b"warmroute-attempt: 2"], id="too long a number"),
        pytest.param([b"warmroute-attempt: -1"], [*OURS[:3], b"warmroute-attempt: 2"], id="no number of an attempt"),
        pytest.param([b"warmroute-attempt:"], [*OURS[:3], b"warmroute-attempt: 2"], id="no attempt"),
        pytest.param([b"x-envoy-attempt-count: 3"], [b"x-envoy-attempt-count: 3", *OURS], id="not ours to read"),
    ],
)
def test_a_trusted_proxy_is_believed(fields: list[bytes], out: list[bytes]) -> None:
    assert sent(*fields, peer=PROXY) == out
    assert head(*fields, peer=PROXY).attempt == int(out[-1].rpartition(b" ")[2])


def test_the_source_is_written_as_each_field_has_it() -> None:
    six = Peer("2001:db8::7", secure=True, trusted=True)
    assert sent(peer=six)[:2] == [b"x-forwarded-for: 2001:db8::7", b"x-forwarded-proto: https"]
    assert sent(b"Forwarded: for=a", peer=six)[0] == b'Forwarded: for=a, for="[2001:db8::7]";proto=https'


def test_a_unix_socket_has_no_address_to_write() -> None:
    local = ListenerRules(trusted_networks=(UNIX,)).peer("", secure=False)
    assert sent(peer=local) == OURS[1:]
    assert sent(b"X-Forwarded-For: a", peer=local) == [b"X-Forwarded-For: a", *OURS[1:]]
    assert sent(b"Forwarded: for=a", peer=local)[0] == b"Forwarded: for=a, for=unknown;proto=http"


@pytest.mark.parametrize(
    ("peername", "address", "trusted"),
    [
        (("10.1.2.3", 4711), b"10.1.2.3", True),
        (("11.1.2.3", 4711), b"11.1.2.3", False),
        (("192.0.2.7", 1), b"192.0.2.7", True),
        (("192.0.2.8", 1), b"192.0.2.8", False),
        (("2001:db8::7", 1, 0, 0), b"2001:db8::7", True),
        (("2001:db9::7", 1, 0, 0), b"2001:db9::7", False),
        (("::ffff:10.1.2.3", 1, 0, 0), b"10.1.2.3", True),
        (("fe80::1%eth0", 1, 0, 2), b"fe80::1", False),
        (("?", 1), b"", False),
        ("", b"", True),
        (b"\0name", b"", True),
        (None, b"", False),
    ],
)
def test_who_is_trusted(peername: object, address: bytes, trusted: bool) -> None:
    peer = ListenerRules(trusted_networks=NETWORKS).peer(peername, secure=False)
    assert (peer.address, peer.trusted) == (address, trusted)
    assert not ListenerRules().peer(peername, secure=False).trusted


def test_peers_are_made_once_and_their_number_is_bounded() -> None:
    rules = ListenerRules()
    first = rules.peer(("10.0.0.1", 1), secure=False)
    assert rules.peer(("10.0.0.1", 2), secure=False) is first
    assert rules.peer(("10.0.0.1", 1), secure=True) is not first
    for number in range(MAX_PEERS):
        rules.peer((f"10.1.{number >> 8}.{number & 255}", 1), secure=False)
    assert len(rules._peers) <= MAX_PEERS


def test_a_retry_says_its_number() -> None:
    one = head(b"X: warmroute-attempt: 1", peer=CALLER)
    out = one.forward + one.end
    assert numbered(out, 2) == out[: -len(b"1\r\n\r\n")] + b"2\r\n\r\n"
    assert numbered(numbered(out, 9), 10).endswith(b"\r\nwarmroute-attempt: 10\r\n\r\n")


NAMES = st.one_of(
    st.sampled_from([field.partition(b":")[0] for field in FORGED]),
    st.from_regex(rb"[Xx][-_.+][A-Za-z_-]{1,16}\Z", fullmatch=True),
    st.sampled_from([b"A", b"x-request-id", b"Connection"]),
)


@given(st.lists(st.tuples(NAMES, st.from_regex(rb"[a-z0-9.,= -]{0,20}\Z", fullmatch=True)), max_size=8))
def test_whatever_a_stranger_says_the_worker_reads_our_word_alone(fields: list[tuple[bytes, bytes]]) -> None:
    merged: dict[str, list[bytes]] = {}
    for line in sent(*(name + b": " + value for name, value in fields), peer=CALLER):
        name, _, value = line.partition(b":")
        key = "".join(char if char.isalnum() else "_" for char in name.decode().upper())
        merged.setdefault(key, []).append(value.strip())
    assert merged["X_FORWARDED_FOR"] == [b"198.51.100.1"]
    assert merged["X_FORWARDED_PROTO"] == [b"http"]
    assert merged["WARMROUTE_ATTEMPT"] == [b"1"]
    assert not {"FORWARDED", "X_REAL_IP", "X_FORWARDED_HOST", "X_ENVOY_MAX_RETRIES"} & set(merged)
