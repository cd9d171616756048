"""Class and tenant of a request, by its fields."""

from __future__ import annotations

import pytest

from sidecar.http1.sorting import Sorting, kinds_of
from sidecar.settings import Admission, Priority, Tenant, Trust

POLICY = Admission(
    priority=Priority(header="X-Class", classes={"Gold": 10, "batch": -5}), tenant=Tenant(header="x-tenant")
)


def of(policy: Admission, *lines: bytes, trusted: bool = True) -> tuple[str, int, str]:
    raw = b"\r\n".join((b"GET / HTTP/1.1", b"Host: a", *lines)) + b"\r\n\r\n"
    by_head = Sorting(policy).of_head(raw, 5, 7.0, trusted=trusted)
    parts = [line.partition(b":") for line in lines]
    fields = [(name.lower(), value.strip()) for name, _, value in parts]
    by_fields = Sorting(policy).of_fields([*fields], 5, 7.0, trusted=trusted)
    assert (by_head.kind, by_head.rank, by_head.tenant) == (by_fields.kind, by_fields.rank, by_fields.tenant)
    assert (by_head.bytes, by_head.ends_at) == (5, 7.0)
    return kinds_of(policy)[by_head.kind], by_head.rank, by_head.tenant


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), ("default", 0, "")),
        ((b"X-Class: gold",), ("Gold", 10, "")),
        ((b"x-class:GOLD  ", b"X-TENANT: t 1"), ("Gold", 10, "t 1")),
        ((b"x-class: batch", b"x-class: gold"), ("batch", -5, "")),
        ((b"x-class: silver", b"x-tenant: a", b"x-tenant: b"), ("default", 0, "a")),
        ((b"x-class2: gold", b"not-x-class: gold"), ("default", 0, "")),
        ((b"x-tenant: " + b"t" * 128,), ("default", 0, "t" * 128)),
        ((b"x-tenant: \xff",), ("default", 0, "\xff")),
    ],
)
def test_what_fields_say(lines: tuple[bytes, ...], said: tuple[str, int, str]) -> None:
    assert of(POLICY, *lines) == said


def test_long_names_are_told_apart_within_the_same_bound() -> None:
    same = b"t" * 200
    names = [of(POLICY, b"x-tenant: " + same + end)[2] for end in (b"", b"a", b"b", b"a")]
    assert names[1] == names[3]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {128}
    assert all("\n" in name for name in names)  # which no field can say


def test_who_is_believed() -> None:
    fields = (b"x-class: gold", b"x-tenant: t")
    assert of(POLICY, *fields, trusted=False) == ("default", 0, "")
    anybody = Admission(priority=POLICY.priority, tenant=POLICY.tenant, trust=Trust.ANYBODY)
    assert of(anybody, *fields, trusted=False) == ("Gold", 10, "t")


def test_without_classes_and_tenants_nothing_is_read() -> None:
    assert of(Admission(), b"warmroute-priority: gold", b"x-tenant: t") == ("default", 0, "")
    assert kinds_of(Admission()) == ("default",)
