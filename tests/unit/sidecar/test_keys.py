"""Where a request has its key."""

from __future__ import annotations

import pytest

from router.policy import BalancerName, KeyPolicy, ModelPolicy
from router.routes import Route
from sidecar.http1.head import RequestHead
from sidecar.http1.keys import KeySource, key_source_of
from sidecar.http1.parsing import parse_request
from sidecar.http2.hpack import Field
from tests.support.fleet import Driven


def head(target: bytes = b"/", *fields: bytes) -> RequestHead:
    return parse_request(b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: a", *fields]) + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ((), None),
        ((b"X-Key: abc",), b"abc"),
        ((b"x-key:abc",), b"abc"),
        ((b"X-KEY: \t a b \t",), b"a b"),
        ((b"X-Key:",), None),
        ((b"X-Key:   ",), None),
        ((b"X-Key: first", b"X-Key: second"), b"first"),
        ((b"X-Keys: abc",), None),
        ((b"Not-X-Key: abc",), None),
        ((b"Other: x-key: abc",), None),
        ((b"Other: 1", b"X-Key: \xc3\xa4"), b"\xc3\xa4"),
    ],
)
def test_a_field_s_value_is_the_key(fields: tuple[bytes, ...], key: bytes | None) -> None:
    assert KeySource("X-Key").of(head(b"/x-key:path", *fields)) == key


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (b"/", None),
        (b"/a", b"a"),
        (b"/sessions/17", b"17"),
        (b"/sessions/17?x=/y", b"17"),
        (b"/sessions/17/", None),
        (b"/sessions/a%20b%2Fc", b"a b/c"),
        (b"/sessions/%C3%A4", b"\xc3\xa4"),
        (b"/sessions/%zz", b"%zz"),
        (b"/?a=b", None),
        (b"http://a/x/y", b"y"),
    ],
)
def test_the_path_s_last_segment_is_the_key(target: bytes, key: bytes | None) -> None:
    assert KeySource(None).of(head(target)) == key


def test_metadata_of_a_call() -> None:
    fields: list[Field] = [(b"x-other", b"1"), (b"x-key", b"abc"), (b"x-key", b"def")]
    assert KeySource("X-Key").of_metadata(fields) == b"abc"
    assert KeySource("x-none").of_metadata(fields) is None
    assert KeySource("x-key").of_metadata([(b"x-key", b"")]) is None
    assert KeySource(None).of_metadata(fields) is None


def test_a_head_that_is_read_again_by_its_shape_has_its_own_key() -> None:
    one = head(b"/", b"x-request-id: 1", b"x-key: abc")
    assert KeySource("x-key").of(one) == b"abc"
    assert one.again(one.raw)
    assert KeySource("x-key").of(one) == b"abc"


def test_only_routes_that_go_by_a_key_look_for_one() -> None:
    def route(balancer: BalancerName, key: KeyPolicy | None) -> Route:
        return Driven(models=[ModelPolicy("m", balancer=balancer, key=key)]).route()

    key = KeyPolicy(header="x-key")
    assert key_source_of(None) is None
    assert key_source_of(route(BalancerName.WARM, key)) is None
    assert key_source_of(route(BalancerName.KEYED, None)) is None
    assert key_source_of(route(BalancerName.KEYED, key)) is not None
