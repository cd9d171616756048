"""A data process whose listener speaks TLS: who comes in, who does not, and how each connection ends."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.telemetry.page import Scalar
from tests.support.certificates import Authority, write
from tests.support.data_process import DataProcess, read_answer
from tests.support.sidecars import until

OWN = "/v2/health/live"
ASK = f"GET {OWN} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode()
HANDSHAKE_S = 1.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@contextmanager
def listening(
    directory: Path, authority: Authority, tls: dict[str, Any] | None = None, **settings: Any
) -> Iterator[DataProcess]:
    cert_file, key_file = authority.issue("a.test", "127.0.0.1").write(directory, "server")
    listener = {"address": "127.0.0.1:0", "processes": 1, "name": "in"}
    listener["tls"] = {"cert_file": cert_file, "key_file": key_file, **(tls or {})}
    settings.setdefault("timeouts", {"handshake_s": HANDSHAKE_S})
    with DataProcess(directory, listeners=[listener], logging={"level": "debug"}, **settings) as process:
        process.snapshot()
        process.process.await_event("process.accepting")
        yield process
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_NOW) == 0, "no handshake is left")


def secure(process: DataProcess, context: ssl.SSLContext, server_name: str = "a.test") -> ssl.SSLSocket:
    return context.wrap_socket(process.connect(), server_hostname=server_name)


def ask(process: DataProcess, context: ssl.SSLContext) -> int:
    """Ask on a connection of its own; return the status, or 0 where the connection ended instead."""
    try:
        with secure(process, context) as sock:
            sock.sendall(ASK)
            answer = read_answer(sock)
            return int(answer.split()[1]) if answer else 0
    except (ssl.SSLError, ConnectionError):
        return 0


def ends(sock: socket.socket) -> bytes:
    """Return what comes until the connection ends; a reset is an end too."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


def test_versions_ciphers_and_the_protocol_agreed_on(tmp_path: Path, authority: Authority) -> None:
    with listening(tmp_path, authority) as process:
        context = authority.client()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with secure(process, context) as sock:
            assert sock.version() == "TLSv1.3"
            assert sock.selected_alpn_protocol() == "http/1.1"
            assert sock.getpeercert() is not None
            sock.sendall(ASK)
            assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        context = authority.client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with secure(process, context) as sock:
            assert sock.version() == "TLSv1.2"
            sock.sendall(ASK)
            assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
            assert sock.session is None or not sock.session.has_ticket, "sessions are not resumed"
        assert process.scalar(Scalar.TLS_HANDSHAKES_TOTAL) == 2
        assert process.scalar(Scalar.TLS_HANDSHAKES_FAILED_TOTAL) == 0


INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n%s\r\n{}"


@contextmanager
def one_answer() -> Iterator[str]:
    """Run a worker that answers one request, and is not there any more then; yields its address."""

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            while b"{}" not in connection.recv(65536):
                pass
            listener.close()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_kept_for_one_certificate_is_told_to_no_other(
    tmp_path: Path, authority: Authority, shared: bool
) -> None:
    tls = {"client_auth": "optional", "ca_file": write(tmp_path / "ca.pem", authority.pem)}
    models = [{"name": "m", "cache": {"shared": shared}, "static_answer": {"body": "nobody's"}}]

    def infer(certificate: tuple[str, str] | None) -> bytes:
        with secure(process, authority.client(certificate)) as sock:
            sock.sendall(INFER % b"")
            return read_answer(sock).partition(b"\r\n\r\n")[2]

    app, renewed, other = [
        authority.issue(name).write(tmp_path, stem)
        for name, stem in (("app.test", "app"), ("app.test", "renewed"), ("other.test", "other"))
    ]
    with one_answer() as worker, listening(tmp_path, authority, tls, models=models) as process:
        process.snapshot(worker)
        assert infer(app) == b"mine"
        assert infer(renewed) == b"mine"  # by the same name
        expected = b"mine" if shared else b"nobody's"
        assert (infer(other), infer(None)) == (expected, expected)


def test_what_is_kept_for_one_tenant_that_admission_knows_is_told_to_no_other(
    tmp_path: Path, authority: Authority
) -> None:
    models = [{"name": "m", "cache": {}, "static_answer": {"body": "nobody's"}}]
    policies = {"admission": {"tenant": {"header": "x-tenant"}, "trust": "anybody"}}

    def infer(field: bytes) -> bytes:
        with secure(process, authority.client()) as sock:
            sock.sendall(INFER % field)
            return read_answer(sock).partition(b"\r\n\r\n")[2]

    with one_answer() as worker, listening(tmp_path, authority, models=models, policies=policies) as process:
        process.snapshot(worker)
        told = [infer(field) for field in (b"x-tenant: a\r\n", b"x-tenant: a\r\n", b"x-tenant: b\r\n", b"")]
        assert told == [b"mine", b"mine", b"nobody's", b"nobody's"]


def test_a_worker_is_told_that_its_caller_spoke_tls(tmp_path: Path, authority: Authority) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as worker,
        listening(tmp_path, authority, models=[{"name": "m", "default": True}]) as process,
    ):
        worker.settimeout(5)
        process.snapshot(f"http://127.0.0.1:{worker.getsockname()[1]}")
        with secure(process, authority.client()) as sock:
            sock.sendall(b"GET /p HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: ftp\r\n\r\n")
            with worker.accept()[0] as connection:
                head = connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        assert head.count(b"x-forwarded-proto: https\r\n") == 1
        assert b"ftp" not in head
        assert b"x-forwarded-for: 127.0.0.1\r\n" in head


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_older_versions_are_refused(tmp_path: Path, authority: Authority) -> None:
    with listening(tmp_path, authority, {"min_version": "1.3"}) as process:
        for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
            context = authority.client()
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.maximum_version = version
            with pytest.raises(ssl.SSLError):
                secure(process, context)
        assert ask(process, authority.client()) == 200
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_FAILED_TOTAL) == 2, "counted")
        assert "unsupported protocol" in process.process.await_event("tls.handshake_failed")["why"]


def test_plain_http_to_a_tls_port_and_tls_to_a_plain_one_end(tmp_path: Path, authority: Authority) -> None:
    with listening(tmp_path, authority) as process:
        with process.connect() as sock:
            sock.sendall(ASK)
            assert not ends(sock).startswith(b"HTTP/1.1 2")
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_FAILED_TOTAL) == 1, "counted")
        assert process.process.await_event("tls.handshake_failed")["why"] == "http request"
        with process.connect() as sock:  # nothing at all
            sock.shutdown(socket.SHUT_WR)
            assert ends(sock) == b""
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_FAILED_TOTAL) == 2, "counted")
    (tmp_path / "plain").mkdir()
    with DataProcess(tmp_path / "plain") as process:
        process.snapshot()
        process.process.await_event("process.accepting")
        with process.connect() as sock, pytest.raises(ssl.SSLError):
            authority.client().wrap_socket(sock, server_hostname="a.test")
        assert process.scalar(Scalar.REJECTED_MESSAGES_TOTAL) == 1


def test_a_handshake_has_its_time_and_there_are_only_so_many(tmp_path: Path, authority: Authority) -> None:
    handshake_s = 2.5  # gauges are written once a second
    with listening(tmp_path, authority, limits={"handshakes": 2}, timeouts={"handshake_s": handshake_s}) as process:
        began = time.monotonic()
        slow = [process.connect() for _ in range(2)]
        slow[0].sendall(b"\x16\x03\x01")
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_NOW) == 2, "both are under way")
        with process.connect() as third:
            assert ends(third) == b"", "there is no room for it"
        assert time.monotonic() - began < handshake_s
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_REFUSED_TOTAL) == 1, "counted")
        for sock in slow:
            assert ends(sock) == b""
            sock.close()
        assert handshake_s - 0.1 < time.monotonic() - began < handshake_s + 2
        assert ask(process, authority.client()) == 200
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_FAILED_TOTAL) == 2, "counted")
        assert process.process.await_event("tls.handshake_failed", count=2)["why"] == "no handshake in 2.5 s"


def test_a_first_request_waits_for_no_delayed_acknowledgement(tmp_path: Path, authority: Authority) -> None:
    with listening(tmp_path, authority) as process:
        context = authority.client()
        took = []
        for _ in range(8):
            with secure(process, context) as sock:  # with Nagle's algorithm on
                began = time.monotonic()
                sock.sendall(ASK)
                assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
                took.append(time.monotonic() - began)
        assert min(took) < 0.03  # the kernel's delay is 40 ms, every time


def test_who_is_let_in_and_who_is_not(tmp_path: Path, authority: Authority) -> None:
    def caller(signer: Authority, *names: str, days: float = 60) -> tuple[str, str]:
        return signer.issue(*names, days=days).write(tmp_path, f"caller-{len(list(tmp_path.iterdir()))}")

    tls = {
        "ca_file": write(tmp_path / "ca.pem", authority.pem),
        "client_auth": "required",
        "allowed_names": ["spiffe://a.test/ns/*", "*.callers.test"],
    }
    garbled = authority.issue(alternative=b"\x30\x18\x86\x16spiffe://a.test/ns/\xff\xfe\xfd")
    inside = [caller(authority, "spiffe://a.test/ns/x"), caller(authority, "one.callers.test")]
    outside: list[tuple[tuple[str, str] | None, list[str], str]] = [
        (caller(authority, "spiffe://a.test/other"), ["spiffe://a.test/other"], "none of its names is allowed"),
        (caller(authority), [], "its certificate holds no name"),
        (garbled.write(tmp_path, "garbled"), [], "its certificate cannot be read"),
        (None, [], "it shows no certificate"),
        (caller(Authority("stranger"), "spiffe://a.test/ns/x"), [], "unable to get local issuer certificate"),
        (caller(authority, "spiffe://a.test/ns/x", days=-1), [], "certificate has expired"),
    ]
    with listening(tmp_path, authority, tls) as process:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for certificate in inside:
                context = authority.client(certificate)
                context.maximum_version = version
                assert ask(process, context) == 200
        assert process.process.events("tls.peer_rejected") == []
        for number, (shown, names, why) in enumerate(outside, 1):
            assert ask(process, authority.client(shown)) == 0
            line = process.process.await_event("tls.peer_rejected", count=number)
            assert (line["listener"], line["names"]) == ("in", names)
            assert why in line["why"]
            assert line["peer"].startswith("127.0.0.1:")
        assert process.scalar(Scalar.TLS_PEERS_REJECTED_TOTAL) == len(outside)
        assert process.scalar(Scalar.TLS_HANDSHAKES_FAILED_TOTAL) == 0


def test_of_many_rejected_peers_some_are_only_counted(tmp_path: Path, authority: Authority) -> None:
    tls = {"ca_file": write(tmp_path / "ca.pem", authority.pem), "client_auth": "required"}
    with listening(tmp_path, authority, tls) as process:
        context = authority.client()
        for _ in range(60):
            ask(process, context)
        process.until(lambda: process.scalar(Scalar.TLS_PEERS_REJECTED_TOTAL) == 60, "all are counted")

        def told() -> int:
            left_out: int = sum(line["left_out"] for line in process.process.events("tls.peers_rejected"))
            return left_out + len(process.process.events("tls.peer_rejected"))

        until(lambda: told() == 60, "each is a line, or in a count of those left out")


def reloads(process: DataProcess, count: int) -> Callable[[], bool]:
    return lambda: process.scalar(Scalar.TLS_RELOADS_TOTAL) >= count


def test_a_ca_that_is_taken_out_lets_nobody_new_in_and_breaks_no_connection(
    tmp_path: Path, authority: Authority
) -> None:
    old = Authority("old")
    ca_file = Path(write(tmp_path / "ca.pem", authority.pem + old.pem))
    tls = {"ca_file": str(ca_file), "client_auth": "required"}
    context = authority.client(old.issue("b.test").write(tmp_path, "old"))
    with listening(tmp_path, authority, tls) as process, secure(process, context) as standing:
        assert ask(process, context) == 200
        write(ca_file, authority.pem)
        process.until(reloads(process, 1), "the new CAs are in use")
        assert ask(process, context) == 0
        standing.sendall(ASK)
        assert read_answer(standing).startswith(b"HTTP/1.1 200 ")


def test_what_cannot_be_used_leaves_the_last_good_ones(tmp_path: Path, authority: Authority) -> None:
    with listening(tmp_path, authority) as process:
        before = _serial(process, authority)
        new = authority.issue("a.test")
        write(tmp_path / "server.pem", new.cert)
        line = process.process.await_event("tls.reload_failed")
        assert (line["of"], line["effect"]) == ("in", "the last good ones stay in use")
        assert "do not belong together" in line["why"]
        assert _serial(process, authority) == before
        write(tmp_path / "server.key", new.key)
        process.until(reloads(process, 1), "the new pair is in use")
        assert _serial(process, authority) != before
        assert process.scalar(Scalar.TLS_RELOADS_FAILED_TOTAL) == 1
        process.process.await_event("tls.reloaded", of="in")


def test_a_process_that_starts_with_broken_files_serves_once_they_are_good(
    tmp_path: Path, authority: Authority
) -> None:
    with listening(tmp_path, authority) as process:
        good = (tmp_path / "server.key").read_bytes()
        write(tmp_path / "server.key", good[:100])
        assert process.stop() == 0
        process.start()
        process.snapshot()
        line = process.process.await_event("tls.unusable", of="in")
        assert "only the beginning of one" in line["why"]
        process.process.await_event("process.accepting", count=2)
        assert ask(process, authority.client()) == 0
        write(tmp_path / "server.key", good)
        process.until(reloads(process, 1), "taken")
        assert ask(process, authority.client()) == 200


def test_whoever_is_in_a_handshake_when_the_drain_begins_is_served(tmp_path: Path, authority: Authority) -> None:
    with (
        listening(tmp_path, authority, timeouts={"handshake_s": 5, "drain_s": 10}) as process,
        process.connect() as raw,
    ):
        process.until(lambda: process.scalar(Scalar.TLS_HANDSHAKES_NOW) == 1, "it is accepted")
        process.process.send(signal.SIGTERM)
        process.process.await_event("process.closed")
        time.sleep(0.5)
        assert process.process.popen.poll() is None
        with authority.client().wrap_socket(raw, server_hostname="a.test") as sock:
            sock.sendall(ASK)
            assert b"Connection: close" in read_answer(sock)
        assert process.process.wait() == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_our_end_is_a_real_one_and_a_callers_may_be_any(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    with listening(tmp_path, authority) as process:
        context = authority.client()
        context.maximum_version = version
        with secure(process, context) as sock:
            sock.sendall(ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            while sock.recv(65536):
                pass  # an end without close_notify would be an error here
        for end in (lambda sock: sock.unwrap(), lambda sock: sock.shutdown(socket.SHUT_RDWR), _reset):
            sock = secure(process, context)
            sock.sendall(ASK)
            assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
            end(sock)
            process.until(lambda: process.scalar(Scalar.CONNECTIONS_NOW) == 0, "it is gone")
            sock.close()


def _reset(sock: ssl.SSLSocket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def _serial(process: DataProcess, authority: Authority) -> Any:
    with secure(process, authority.client()) as sock:
        certificate = sock.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]
