"""Which requests have a key, and that it is another one wherever anything differs."""

from __future__ import annotations

import pytest

from sidecar.cache.asking import Asked, asked_of
from sidecar.cache.terms import Refused, Terms
from sidecar.settings import Cache

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
TARGET = b"/v2/models/m/infer"


def ask(fields: bytes = b"", target: bytes = TARGET, method: bytes = b"POST", cache: Cache | None = None) -> object:
    return asked_of(method, target, HEAD + fields, Terms(cache or Cache()))


def key(fields: bytes = b"", body: bytes = b"{}", cache: Cache | None = None, version: str = "") -> bytes:
    asked = ask(fields, cache=cache)
    assert isinstance(asked, Asked)
    return asked.key("m", version, body)


@pytest.mark.parametrize(
    ("why", "got"),
    [
        (Refused.METHOD, ask(method=b"GET")),
        (Refused.METHOD, ask(method=b"PUT", cache=Cache(deterministic=True))),
        (Refused.PATH, ask(target=b"/v1/chat/completions")),
        (Refused.PATH, ask(target=b"/x?/infer")),
        (Refused.NO_TENANT, ask(cache=Cache(tenant_header="X-Tenant"))),
        (Refused.NO_TENANT, ask(b"X-Tenant: \r\n", cache=Cache(tenant_header="X-Tenant"))),
        (Refused.NO_TENANT, ask(b"X-Tenant: a\r\nx-tenant: b\r\n", cache=Cache(tenant_header="X-Tenant"))),
        (Refused.CREDENTIALS, ask(b"authorization: Bearer x\r\n")),
        (Refused.CREDENTIALS, ask(b"Cookie: a=b\r\n")),
        (Refused.CREDENTIALS, ask(b"api-key: a\r\n")),
        (Refused.CREDENTIALS, ask(b"X-Auth-Token: a\r\n")),
        (Refused.CREDENTIALS, ask(b"X-Forwarded-User: a\r\n")),
        (Refused.CREDENTIALS, ask(b"X-Our-Key: a\r\n", cache=Cache(credential_headers=("x-our-KEY",)))),
        (Refused.REQUEST_CONTROL, ask(b"Cache-Control: max-age=0, No-Store\r\n")),
        (Refused.REQUEST_CONTROL, ask(b"cache-control:no-cache\r\n")),
        (Refused.REQUEST_CONTROL, ask(b"Pragma: no-cache\r\n")),
        (Refused.CONDITIONAL, ask(b"Range: bytes=0-1\r\n")),
        (Refused.CONDITIONAL, ask(b'If-None-Match: "a"\r\n')),
    ],
)
def test_what_has_no_key_says_why(why: Refused, got: object) -> None:
    assert got is why


@pytest.mark.parametrize(
    ("target", "cache"),
    [
        (b"/v2/models/m/infer?a=b", Cache()),
        (b"/v1/embeddings", Cache()),
        (b"/anything", Cache(deterministic=True)),
        (b"/a[1]/x?y", Cache(paths=("/a[1]/*",))),
    ],
)
def test_paths_that_are_kept(target: bytes, cache: Cache) -> None:
    assert isinstance(ask(target=target, cache=cache), Asked)


def test_fields_that_say_nothing_of_the_answer_do_not_count() -> None:
    assert key(b"x-request-id: 1\r\nTraceparent: 00-1\r\nUser-Agent: a\r\nCache-Control: max-age=0\r\n") == key()


def test_fields_count_in_whatever_order_and_case_they_came() -> None:
    assert key(b"Accept: a\r\ncontent-type: b\r\n") == key(b"Content-Type:  b\r\nACCEPT: a\r\n")


TENANT = Cache(tenant_header="x-tenant")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (key(body=b"{}"), key(body=b"{ }")),
        (key(version="1"), key(version="2")),
        (key(version="1"), key()),
        (key(b"accept: a\r\n"), key(b"accept: b\r\n")),
        (key(b"accept: a\r\naccept: b\r\n"), key(b"accept: b\r\naccept: a\r\n")),
        (key(b"content-type: a\r\n"), key()),
        (key(b"content-encoding: gzip\r\n"), key()),
        (key(b"Inference-Header-Content-Length: 1\r\n"), key(b"Inference-Header-Content-Length: 2\r\n")),
        (key(b"x-tenant: a\r\n", cache=TENANT), key(b"x-tenant: b\r\n", cache=TENANT)),
        (
            key(b"authorization: a\r\n", cache=Cache(credentials=True)),
            key(b"authorization: b\r\n", cache=Cache(credentials=True)),
        ),
        (key(b"x-mode: a\r\n", cache=Cache(key_headers=("X-Mode",))), key(cache=Cache(key_headers=("X-Mode",)))),
    ],
)
def test_where_a_part_differs_the_key_does(one: bytes, other: bytes) -> None:
    assert one != other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Cache(), Cache(credential_headers=("x-our-key",))),
        (Cache(), Cache(credentials=True)),
        (Cache(), Cache(key_headers=("x-mode",))),
        (Cache(), Cache(streams=True)),
        (Cache(), Cache(statuses=(200, 203))),
        (Cache(), Cache(deterministic=True)),
        (Cache(tenant_header="x-org"), Cache(tenant_header="x-user")),
        (Cache(tenant_header="x-org"), Cache(tenant_header="x-user", key_headers=("x-org",))),
    ],
)
def test_what_was_kept_by_other_terms_has_another_key(one: Cache, other: Cache) -> None:
    fields = b"x-org: 7\r\nx-user: 7\r\n"
    assert key(fields, cache=one) != key(fields, cache=other)


def test_bounds_times_and_the_order_of_names_make_no_other_key() -> None:
    one = Cache(key_headers=("x-a", "X-B"))
    assert key(cache=one) == key(cache=Cache(key_headers=("x-b", "x-a"), ttl_s=1, entries=1, max_entry_bytes=300))


def test_a_tenant_that_is_named_stands_for_its_credentials() -> None:
    fields = b"x-tenant: a\r\nauthorization: Bearer %d\r\n"
    assert key(fields % 1, cache=TENANT) == key(fields % 2, cache=TENANT)
