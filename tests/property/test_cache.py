"""The cache: keys differ with any part, bounds hold, tenants never meet, bytes are the same."""

from __future__ import annotations

import random
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from sidecar.cache.asking import Asked, asked_of
from sidecar.cache.keeping import ENTRY_BYTES, Kept, kept
from sidecar.cache.store import SWEPT_AT_ONCE, Answers
from sidecar.cache.terms import Refused, Terms
from sidecar.settings import Admission, Cache

TERMS = Terms(Cache(deterministic=True, tenant_header="x-tenant", key_headers=("x-a", "x-b")), Admission())
SMALL = st.binary(max_size=6)
PARTS = st.tuples(SMALL, SMALL, SMALL, SMALL, st.lists(st.tuples(SMALL, SMALL), max_size=3), SMALL, st.text(max_size=3))
Parts = tuple[bytes, bytes, bytes, bytes, list[tuple[bytes, bytes]], bytes, str]


def key(parts: Parts) -> bytes:
    method, target, tenant, identity, fields, body, version = parts
    return Asked(b"r", method, target, tenant, identity, fields).keys("m", (version,), body)[0]


@given(PARTS, PARTS)
def test_two_requests_have_one_key_if_and_only_if_all_their_parts_are_equal(one: Parts, other: Parts) -> None:
    assert (key(one) == key(other)) == (one == other)


@given(PARTS, st.integers(0, 60))
def test_a_byte_that_moves_from_one_part_to_the_next_makes_another_key(parts: Parts, at: int) -> None:
    method, target, tenant, identity, fields, body, version = parts
    whole = method + target + tenant + identity
    first, second, third = sorted([(at * step) % (len(whole) + 1) for step in (1, 7, 11)])
    moved: Parts = (whole[:first], whole[first:second], whole[second:third], whole[third:], fields, body, version)
    assert (key(moved) == key(parts)) == (moved == parts)


VALUES = st.text("abc,;: ", max_size=5).map(str.encode)


@given(st.lists(st.tuples(st.sampled_from([b"x-tenant", b"x-a", b"x-b", b"accept", b"x-c"]), VALUES), max_size=6))
def test_no_two_tenants_share_a_key_whatever_else_they_send(fields: list[tuple[bytes, bytes]]) -> None:
    keys = set()
    for tenant in (b"one", b"two", b"one two"):
        lines = [b"%s: %s" % field for field in fields if field[0] != b"x-tenant"]
        head = b"\r\n".join([b"POST / HTTP/1.1", *lines, b"X-Tenant: " + tenant, b""])
        asked = asked_of(b"POST", b"/", head, TERMS, trusted=False, identity=b"")
        assert isinstance(asked, Asked)
        keys.add(asked.keys("m", ("",), b"")[0])
    assert len(keys) == 3


@given(st.lists(st.tuples(st.sampled_from([b"x-tenant", b"x-a"]), VALUES), max_size=4))
def test_a_request_with_no_one_tenant_has_no_key(fields: list[tuple[bytes, bytes]]) -> None:
    head = b"\r\n".join([b"POST / HTTP/1.1", *[b"%s: %s" % field for field in fields], b""])
    tenants = [value.strip(b" \t") for name, value in fields if name == b"x-tenant"]
    asked = asked_of(b"POST", b"/", head, TERMS, trusted=False, identity=b"")
    if len(tenants) == 1 and tenants[0]:
        assert isinstance(asked, Asked)
        assert asked.tenant == tenants[0]
    else:
        assert asked is Refused.NO_TENANT


COMMAND = st.one_of(
    st.tuples(st.just("keep"), st.integers(0, 12), st.integers(0, 900)),
    st.tuples(st.just("drop"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("expire"), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("resize"), st.integers(1, 9), st.integers(600, 6000)),
    st.tuples(st.sampled_from(["shed", "clear"]), st.just(0), st.just(0)),
)


@given(st.lists(COMMAND, max_size=60))
def test_the_bounds_hold_and_what_is_found_is_what_was_kept_last(commands: list[tuple[str, int, int]]) -> None:
    most, most_bytes = 6, 4000
    answers = Answers(most, most_bytes)
    last: dict[bytes, Kept] = {}
    now = 0.0
    for what, one, two in commands:
        now += 1
        name = b"%d" % one
        if what == "keep":
            answer = Kept(b"h", b"x" * two, now, 20.0)
            if answers.keep(name, answer):
                last[name] = answer
                assert answers.find(name, now) is answer or answer.size_bytes * 10 > most_bytes or most < 10
            else:
                assert answer.size_bytes > most_bytes
                last.pop(name, None)
        elif what == "drop":
            answers.drop(name)
            last.pop(name, None)
        elif what == "expire":
            answers.expire(now)
        elif what == "resize":
            most, most_bytes = one, two
            answers.resize(one, two)
        elif what == "shed":
            before = answers.kept_bytes
            answers.shed()
            assert answers.kept_bytes <= before - before // 4
        else:
            answers.clear()
            last.clear()
        found = {one: held for one in last if (held := answers.find(one, now)) is not None}
        assert all(held is last[one] and held.fresh(now) for one, held in found.items())
        assert len(answers) <= most
        assert answers.kept_bytes <= most_bytes
        assert sum(held.size_bytes for held in found.values()) <= answers.kept_bytes
        assert answers.kept_bytes >= len(answers) * ENTRY_BYTES
    answers.expire(now + 100)
    assert (len(answers), answers.kept_bytes) == (0, 0)


def test_the_age_of_many_is_looked_at_in_parts() -> None:
    answers = Answers(10_000, 1 << 30)
    for number in range(2 * SWEPT_AT_ONCE + 1):
        answers.keep(b"%d" % number, Kept(b"h", b"", 0.0, 1.0))
    left = []
    for _ in range(3):
        answers.expire(2.0)
        left.append(len(answers))
    assert left == [SWEPT_AT_ONCE + 1, 1, 0]


def test_what_is_asked_again_survives_what_is_asked_once_better_than_by_lru() -> None:
    """Decision 0022 has the table of which this is one row: Zipf, six of ten requests never asked again."""
    rng = random.Random(1)
    weights = [1 / (rank + 1) for rank in range(2000)]
    popular = iter(rng.choices(range(2000), weights, k=20_000))
    answers, lru = Answers(200, 1 << 30), OrderedDict[bytes, None]()
    asked = [b"%d" % (next(popular) if rng.random() < 0.4 else -number) for number in range(1, 15_001)]
    for key_ in asked:
        if answers.renews(key_, 0.0):
            answers.keep(key_, Kept(b"h", b"", 0.0, 100.0))
        lru[key_] = None
        lru.move_to_end(key_)
        if len(lru) > 200:
            lru.popitem(last=False)
    later = [b"%d" % next(popular) for _ in range(3000)]
    found = sum(answers.find(one, 0.0) is not None for one in later)
    found_by_lru = sum(one in lru for one in later)
    assert found > 1.1 * found_by_lru


def test_a_young_answer_stays_and_counts_as_used_again() -> None:
    answers = Answers(2, 10_000)
    assert answers.renews(b"a", 0.0)
    answers.keep(b"a", Kept(b"h", b"1", 0.0, 100.0))
    assert not answers.renews(b"a", 9.9)
    answers.keep(b"b", Kept(b"h", b"2", 0.0, 100.0))
    answers.keep(b"c", Kept(b"h", b"3", 0.0, 100.0))
    assert answers.find(b"a", 10.0) is not None  # asked again, so it was another that made room
    assert len(answers) == 2
    assert answers.renews(b"a", 10.0)


@given(st.binary(max_size=200), st.integers(0, 500), st.booleans())
def test_a_body_is_told_byte_for_byte(body: bytes, age: int, close: bool) -> None:
    answer = kept(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n", body, 10.0, Terms(Cache(), Admission()))
    assert isinstance(answer, Kept)
    head, _, told = answer.tell(10.0 + age, b"id", close=close).partition(b"\r\n\r\n")
    assert told == body
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert b"\r\nAge: %d\r\n" % age in head


@given(SMALL, st.text(max_size=3), st.text(max_size=3))
def test_the_end_of_a_body_is_never_taken_for_a_version(body: bytes, end: str, version: str) -> None:
    asked = Asked(b"r", b"POST", b"/", b"", b"", [])
    one, two = asked.keys("m", (version, end + version), body)
    (other,) = asked.keys("m", (version,), body + end.encode())
    assert (one == other) == (not end)
    assert two != other or not end
