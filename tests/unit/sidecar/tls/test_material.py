from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from sidecar.settings import ClientAuth, ListenerTls, TlsVersion, UpstreamTls
from sidecar.tls.material import (
    HTTP1,
    Follower,
    MaterialError,
    check_files,
    client_context,
    plain,
    server_context,
)
from tests.support.certificates import Authority, write


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def listener(directory: Path, authority: Authority, stem: str = "a", **more: object) -> ListenerTls:
    cert_file, key_file = authority.issue("a.test").write(directory, stem)
    return ListenerTls(cert_file=cert_file, key_file=key_file, **more)  # type: ignore[arg-type]


def test_a_listener_s_context(tmp_path: Path, authority: Authority) -> None:
    context = server_context(listener(tmp_path, authority), HTTP1)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_TICKET
    ca_file = write(tmp_path / "ca.pem", authority.pem)
    strict = listener(
        tmp_path, authority, ca_file=ca_file, client_auth=ClientAuth.REQUIRED, min_version=TlsVersion.V1_3
    )
    context = server_context(strict, HTTP1)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1, "and not the system's"


def test_a_client_s_context_always_verifies(tmp_path: Path, authority: Authority) -> None:
    ca_file = write(tmp_path / "ca.pem", authority.pem)
    context = client_context(UpstreamTls(ca_file=ca_file), HTTP1)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1
    context = client_context(UpstreamTls(ca_file=ca_file, allowed_names=("spiffe://a/b",)), HTTP1)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False), "the list goes instead"


def test_what_cannot_be_used_is_named(tmp_path: Path, authority: Authority) -> None:
    tls = listener(tmp_path, authority)
    other = listener(tmp_path, authority, "b")
    half = write(tmp_path / "half.pem", authority.pem[:-30])
    locked = authority.issue("a.test", password=b"x").write(tmp_path, "locked")
    for wrong, field, text in (
        (ListenerTls(cert_file=tls.cert_file, key_file=other.key_file), "cert_file", "do not belong together"),
        (ListenerTls(cert_file=half, key_file=tls.key_file), "cert_file", "or only the beginning of one"),
        (ListenerTls(cert_file=str(tmp_path / "none"), key_file=tls.key_file), "cert_file", "No such file"),
        (ListenerTls(cert_file=tls.cert_file, key_file=tls.cert_file), "cert_file", tls.cert_file),
        (ListenerTls(cert_file=locked[0], key_file=locked[1]), "cert_file", "the key is encrypted"),
        (ListenerTls(cert_file=tls.cert_file, key_file=tls.key_file, ca_file=tls.key_file), "ca_file", tls.key_file),
    ):
        with pytest.raises(MaterialError) as raised:
            check_files(wrong)
        assert raised.value.field == field
        assert text in str(raised.value)
        assert "_ssl.c" not in str(raised.value)


def follower(tls: ListenerTls) -> Follower:
    made = Follower("a", tls, HTTP1)
    first = made.look()
    assert first is not None
    made.take(first)
    return made


def test_nothing_is_made_anew_while_nothing_changes(tmp_path: Path, authority: Authority) -> None:
    tls = listener(tmp_path, authority)
    followed = follower(tls)
    terms = followed.terms
    assert terms is not None
    os.utime(tls.cert_file)
    write(Path(tls.cert_file), Path(tls.cert_file).read_bytes())
    assert followed.look() is None
    assert followed.terms is terms


def test_a_mismatched_pair_keeps_the_old_one_says_so_once_and_is_tried_again(
    tmp_path: Path, authority: Authority
) -> None:
    tls = listener(tmp_path, authority)
    followed = follower(tls)
    old = followed.terms
    new = authority.issue("a.test")
    write(Path(tls.cert_file), new.cert)
    change = followed.look()
    assert change is not None
    assert "do not belong together" in change.error
    followed.take(change)
    assert followed.terms is old
    assert followed.look() is None, "said once"
    write(Path(tls.key_file), new.key)
    change = followed.look()
    assert change is not None
    followed.take(change)
    assert followed.error == ""
    assert followed.terms is not None
    assert followed.terms is not old


def test_files_that_come_back_as_they_were_are_good_again(tmp_path: Path, authority: Authority) -> None:
    tls = listener(tmp_path, authority)
    followed = follower(tls)
    content = Path(tls.key_file).read_bytes()
    Path(tls.key_file).unlink()
    change = followed.look()
    assert change is not None
    assert "No such file" in change.error
    followed.take(change)
    assert followed.look() is None
    write(Path(tls.key_file), content)
    change = followed.look()
    assert change is not None
    assert change.error == ""
    followed.take(change)
    assert followed.look() is None


def test_links_swapped_as_kubernetes_does_it(tmp_path: Path, authority: Authority) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        pair = authority.issue("a.test")
        (tmp_path / version / "tls.crt").write_bytes(pair.cert)
        (tmp_path / version / "tls.key").write_bytes(pair.key)
    (tmp_path / "..data").symlink_to("1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    followed = follower(ListenerTls(cert_file=str(tmp_path / "tls.crt"), key_file=str(tmp_path / "tls.key")))
    (tmp_path / "..new").symlink_to("2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    change = followed.look()
    assert change is not None
    assert change.terms is not None


def test_what_openssl_says_is_said_without_where() -> None:
    assert plain(OSError("odd (_ssl.c:123)")) == "odd"
    assert plain(ConnectionResetError()) == "ConnectionResetError"
    assert plain(ConnectionResetError(104, "Connection reset by peer")) == "Connection reset by peer"


def test_terms_change_as_a_whole_or_not_at_all(tmp_path: Path, authority: Authority) -> None:
    ca_file = Path(write(tmp_path / "ca.pem", authority.pem))
    named = UpstreamTls(ca_file=str(ca_file), allowed_names=("good.test",), server_name="good.test")
    followed = Follower("a", named, HTTP1)
    first = followed.look()
    assert first is not None
    followed.take(first)
    assert followed.changed_to(named) is followed
    ca_file.unlink()
    other = followed.changed_to(UpstreamTls(ca_file=str(ca_file)))
    assert other.terms is followed.terms, "no context without the list that it was made for"
    change = other.look()
    assert change is not None
    assert "No such file" in change.error, "and the next look says why"
    write(ca_file, authority.pem)
    change = other.look()
    assert change is not None
    other.take(change)
    assert other.terms is not None
    assert other.terms.context.check_hostname
    assert (other.terms.allowed.entries, other.terms.server_name) == ((), None)
