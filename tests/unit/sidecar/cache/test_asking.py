"""Which requests have a key, and that it is another one wherever anything differs."""

from __future__ import annotations

import pytest

from sidecar.cache.asking import Asked, asked_of
from sidecar.cache.terms import Refused, Terms
from sidecar.settings import Admission, Cache, Tenant, Trust

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
TARGET = b"/v2/models/m/infer"


def ask(
    fields: bytes = b"",
    target: bytes = TARGET,
    method: bytes = b"POST",
    cache: Cache | None = None,
    *,
    admission: Admission | None = None,
    trusted: bool = False,
    identity: bytes = b"",
) -> object:
    terms = Terms(cache or Cache(), admission or Admission())
    return asked_of(method, target, HEAD + fields, terms, trusted=trusted, identity=identity)


def key(
    fields: bytes = b"",
    body: bytes = b"{}",
    cache: Cache | None = None,
    version: str = "",
    *,
    admission: Admission | None = None,
    trusted: bool = False,
    identity: bytes = b"",
) -> bytes:
    asked = ask(fields, cache=cache, admission=admission, trusted=trusted, identity=identity)
    assert isinstance(asked, Asked)
    return asked.keys("m", (version,), body)[0]


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


# --- tenants that others know ----------------------------------------------------------------------------------------

BELIEVED = Admission(tenant=Tenant(header="X-Tenant"))
ANYBODY = Admission(tenant=Tenant(header="X-Tenant"), trust=Trust.ANYBODY)
OF_A, OF_B = b"x-tenant: a\r\n", b"X-Tenant: b\r\n"


def test_whom_admission_knows_as_tenants_the_cache_tells_apart() -> None:
    assert key(OF_A, admission=ANYBODY) == key(OF_A, admission=ANYBODY)
    assert key(OF_A, admission=ANYBODY) != key(OF_B, admission=ANYBODY)
    assert key(OF_A, admission=BELIEVED, trusted=True) != key(OF_B, admission=BELIEVED, trusted=True)
    assert key(OF_A, admission=BELIEVED, trusted=True) != key(OF_A, admission=ANYBODY)  # kept by another's word


@pytest.mark.parametrize("fields", [b"", b"x-tenant: \r\n", OF_A + OF_B])
def test_who_names_no_tenant_to_admission_is_nobodys(fields: bytes) -> None:
    assert ask(fields, admission=ANYBODY) is Refused.NO_TENANT


def test_who_is_not_believed_is_no_tenant() -> None:
    assert ask(OF_A, admission=BELIEVED) is Refused.NO_TENANT


def test_such_a_tenant_does_not_stand_for_credentials() -> None:
    assert ask(OF_A + b"Authorization: x\r\n", admission=ANYBODY) is Refused.CREDENTIALS
    by_key = Admission(tenant=Tenant(header="x-api-key"), trust=Trust.ANYBODY)
    assert key(b"x-api-key: 1\r\n", admission=by_key) != key(b"x-api-key: 2\r\n", admission=by_key)


def test_a_field_of_the_caches_own_stands_before_what_others_know() -> None:
    own = Cache(tenant_header="x-org")
    fields = b"x-org: o\r\n"
    assert key(fields + OF_A, cache=own, admission=BELIEVED) == key(fields + OF_B, cache=own, admission=BELIEVED)
    assert key(fields, cache=own, identity=b"1") == key(fields, cache=own, identity=b"2")


def test_certificates_tell_callers_apart() -> None:
    keys = {key(fields, admission=ANYBODY, identity=shown) for fields in (OF_A, OF_B) for shown in (b"", b"1", b"2")}
    assert len(keys) == 6
    assert len({key(identity=shown) for shown in (b"", b"1", b"2")}) == 3


def test_what_is_shared_is_everybodys() -> None:
    shared = Cache(shared=True)
    everybody = [(OF_A, b"1"), (OF_B, b"2"), (b"", b"")]
    assert len({key(fields, cache=shared, admission=BELIEVED, identity=shown) for fields, shown in everybody}) == 1
    assert key(cache=shared) != key()
    assert ask(b"Authorization: x\r\n", cache=shared) is Refused.CREDENTIALS
