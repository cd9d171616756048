from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.tls.names import (
    AllowList,
    NameFormError,
    PeerNames,
    check_name,
    identity_of,
    is_spiffe_id,
    names_shown,
    peer_names,
)

ID = "spiffe://example.org/ns/prod/sa/app"
LIST = AllowList((ID, "spiffe://example.org/ns/dev/*", "app.example.org", "*.Wild.example.org."))


def test_names_are_those_of_the_subject_alternative_name() -> None:
    certificate = {
        "subject": ((("commonName", "cn.example.org"),),),
        "subjectAltName": (("DNS", "a"), ("URI", ID), ("IP Address", "127.0.0.1"), ("email", "a@b"), ("DNS", "b")),
    }
    assert peer_names(certificate) == PeerNames((ID,), ("a", "b"))
    assert peer_names({"subject": certificate["subject"]}) == peer_names(None) == PeerNames()


@pytest.mark.parametrize(
    "names",
    [
        PeerNames((ID,)),
        PeerNames(("spiffe://example.org/ns/dev/sa/app",)),
        PeerNames(("spiffe://example.org/ns/dev/a/b/c",)),
        PeerNames((), ("app.example.org",)),
        PeerNames((), ("other.example.org", "APP.example.org")),
        PeerNames((), ("a.wild.example.org",)),
        PeerNames(("https://not.spiffe", ID), ("app.example.org",)),
    ],
)
def test_allowed(names: PeerNames) -> None:
    assert LIST.refusal(names) == ""


@pytest.mark.parametrize(
    "names",
    [
        PeerNames(("spiffe://example.org/ns/prod/sa/app2",)),
        PeerNames(("spiffe://example.org/ns/prod/sa",)),
        PeerNames(("spiffe://example.org/ns/dev",)),
        PeerNames(("spiffe://example.org/ns/dev/",)),
        PeerNames(("spiffe://example.org/ns/dev/../prod/x",)),
        PeerNames(("spiffe://example.org/ns/dev/a%2fb",)),
        PeerNames(("spiffe://example.org/ns/dev/a\nb",)),
        PeerNames(("spiffe://EXAMPLE.org/ns/prod/sa/app",)),
        PeerNames(("spiffe://example.org.evil/ns/dev/a",)),
        PeerNames((), ("spiffe://example.org/ns/prod/sa/app",)),
        PeerNames((), ("wild.example.org",)),
        PeerNames((), (".wild.example.org",)),
        PeerNames((), ("a.b.wild.example.org",)),
        PeerNames((), ("app.example.org.evil",)),
    ],
)
def test_not_allowed(names: PeerNames) -> None:
    assert LIST.refusal(names) == "none of its names is allowed"


def test_a_certificate_that_cannot_be_read_lets_nobody_in() -> None:
    def raises() -> dict[str, object]:
        return {"subjectAltName": (("DNS", b"a\xff".decode()),)}

    assert names_shown(raises) == PeerNames(unreadable=True)
    assert LIST.refusal(names_shown(raises)) == "its certificate cannot be read"
    assert names_shown(lambda: {"subjectAltName": (("DNS", "a"),)}) == PeerNames((), ("a",))


APP = {
    "issuer": ((("commonName", "CA"),),),
    "subject": ((("commonName", "app"),),),
    "subjectAltName": (("DNS", "app.example.org"),),
    "serialNumber": "01",
    "notAfter": "Jan  1 00:00:00 2027 GMT",
}


def test_an_identity_is_that_of_the_name_not_of_the_certificate() -> None:
    renewed = APP | {"serialNumber": "02", "notAfter": "Jan  1 00:00:00 2028 GMT"}
    assert identity_of(lambda _: APP) == identity_of(lambda _: renewed)
    others = [APP | {part: (("DNS", "x"),)} for part in ("issuer", "subject", "subjectAltName")]
    assert len({identity_of({False: one}.__getitem__) for one in (APP, *others)}) == 4


def test_who_shows_no_certificate_has_no_identity_and_an_unreadable_one_is_its_own() -> None:
    assert identity_of(lambda _: None) == identity_of(lambda _: {}) == b""

    def unreadable(der: bytes) -> Callable[[bool], object]:
        return lambda binary: der if binary else b"\xff".decode()

    one, other = identity_of(unreadable(b"1")), identity_of(unreadable(b"2"))
    assert len({one, other, b""}) == 3
    assert one == identity_of(unreadable(b"1"))


def test_a_certificate_of_two_uris_is_no_spiffe_certificate() -> None:
    assert "more than one URI" in LIST.refusal(PeerNames((ID, ID + "2")))


def test_no_name_at_all_says_so_and_an_empty_list_asks_for_none() -> None:
    assert LIST.refusal(PeerNames()) == "its certificate holds no name"
    assert AllowList(()).refusal(PeerNames()) == ""


@pytest.mark.parametrize(
    "entry",
    [ID, "spiffe://example.org", "spiffe://a.org/*", "spiffe://a/b/*", "host", "*.a-b.example.org", "A.b."],
)
def test_entries(entry: str) -> None:
    check_name(entry)


@pytest.mark.parametrize(
    "entry",
    [
        "", "*", "*.", "a.*.b", "*a.b", "spiffe://", "spiffe:///a", "spiffe://A.b/c", "spiffe://a/*/b", "spiffe://a//b",
        "spiffe://a/b/", "spiffe://a/b*", "https://a", "a b", "a..b", "-a.b", "spiffe://a/..", "spiffe://a/b?c",
    ],
)  # fmt: skip
def test_entries_that_cannot_be(entry: str) -> None:
    with pytest.raises(NameFormError, match="must be"):
        check_name(entry)


def test_an_id_is_bounded() -> None:
    assert is_spiffe_id("spiffe://a/" + "b" * 2037)
    assert not is_spiffe_id("spiffe://a/" + "b" * 2038)
