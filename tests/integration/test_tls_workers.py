"""Workers that speak TLS: who they must be, how their connections are kept, and how each one may break."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.outcomes import AttemptResult
from sidecar.faults.rules import FaultRule
from sidecar.grpc.plane import GrpcPlane
from sidecar.grpc.pool import WorkerPool
from sidecar.settings import Settings
from sidecar.telemetry.page import Scalar
from sidecar.tls.material import HTTP1, HTTP2
from sidecar.tls.process import ProcessTls
from tests.support.certificates import Authority, write
from tests.support.data_path import BRIEF, POLICIES, DataPath, Origin, echo, on_data_path, silent
from tests.support.wires import OriginConnection, answer, post, request

AUTHORITY = Authority()
ONE_TRY = replace(POLICIES, retry=replace(POLICIES.retry, attempts=0))
LOOK_WAIT_S = 3.0


class SecureOrigin(Origin):
    """A worker with a certificate of its own, made when it starts; ``asks`` callers for one."""

    def __init__(self, script: Any, *names: str, asks: bool = False, days: float = 60) -> None:
        super().__init__(script)
        self._names = names
        self._asks = asks
        self._days = days

    def show(self, directory: Path) -> None:
        files = AUTHORITY.issue(*self._names, days=self._days).write(directory, "worker")
        assert self.tls is not None
        self.tls.load_cert_chain(*files)

    async def start(self) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._asks:
            self.tls.load_verify_locations(cadata=AUTHORITY.pem.decode())
            self.tls.verify_mode = ssl.CERT_REQUIRED
        await super().start()


def settings_of(upstream: dict[str, Any]) -> Settings:
    document = {"version": 1, "listeners": [{"address": "127.0.0.1:0"}], "upstream_tls": upstream}
    return msgspec.convert(document, Settings)


def speak(path: DataPath, directory: Path, **upstream: Any) -> ProcessTls:
    """Let the data path speak TLS to workers as ``upstream_tls`` says, and its workers show their certificates."""
    upstream.setdefault("ca_file", write(directory / "ca.pem", AUTHORITY.pem))
    tls = ProcessTls(settings_of(upstream), loop=path.plane.loop, page=path.plane.page, clock=path.plane.clock)
    path.plane.upstream_tls = tls.upstream
    for origin in path.origins:
        if isinstance(origin, SecureOrigin):
            origin.show(directory)
    return tls


@on_data_path(SecureOrigin(echo, "127.0.0.1"))
async def test_a_connection_is_used_again_though_tickets_came(path: DataPath, tmp_path: Path) -> None:
    speak(path, tmp_path)
    client = await path.connect()
    for size in (1, 100_000, 10, 1_000_000, 0):
        body = b"x" * size
        assert (await client.ask(post(body))).body == body
    assert path.scalar(Scalar.UPSTREAM_CONNECTIONS_TOTAL) == 1
    assert path.scalar(Scalar.UPSTREAM_STALE_TOTAL) == 0
    assert path.scalar(Scalar.UPSTREAM_POISONED_TOTAL) == 0


@pytest.mark.parametrize(("kind", "told"), [("slicing", (200, b"hello")), ("reset", (502, b"upstream_reset"))])
@on_data_path(SecureOrigin(echo, "127.0.0.1"))
async def test_faults_strike_behind_tls(path: DataPath, tmp_path: Path, kind: str, told: tuple[int, bytes]) -> None:
    speak(path, tmp_path)
    client = await path.connect()
    path.inject(FaultRule("f", kind, 1.0, until=path.plane.clock() + 60, piece_bytes=1))
    got = await client.ask(post(b"hello"))
    assert (got.status, got.body if got.status == 200 else got.value(b"warmroute-outcome")) == told
    path.inject()
    assert (await client.ask(post(b"again"))).body == b"again"
    assert path.scalar(Scalar.UPSTREAM_CONNECTIONS_TOTAL) == 2


@pytest.mark.parametrize(
    ("upstream", "why"),
    [
        ({}, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ({"server_name": "other.test"}, "Hostname mismatch, certificate is not valid for 'other.test'"),
        (
            {"allowed_names": ["spiffe://a.test/x"]},
            "none of its names is allowed by upstream_tls.allowed_names: w.test",
        ),
        ({"ca_file": None}, "unable to get local issuer certificate"),
    ],
)
@on_data_path(SecureOrigin(echo, "w.test"), policies=ONE_TRY)
async def test_another_worker_than_the_one_meant_is_no_connection(
    path: DataPath, tmp_path: Path, upstream: dict[str, Any], why: str
) -> None:
    speak(path, tmp_path, **upstream)
    client = await path.connect()
    got = await client.ask(request())
    assert got.status == 502
    assert got.value(b"warmroute-outcome") == b"connect_failed"
    assert why in got.body.decode()
    assert b"o0: TLS: " in got.body
    assert path.results == {AttemptResult.CONNECT_REFUSED.value: 1}
    assert path.scalar(Scalar.TLS_UPSTREAM_FAILED_TOTAL) == 1
    assert path.origin.requests == []


@pytest.mark.parametrize("upstream", [{"server_name": "w.test"}, {"allowed_names": ["spiffe://a.test/x", "*.test"]}])
@on_data_path(SecureOrigin(echo, "w.test"))
async def test_the_name_that_is_meant_may_be_another_than_the_address(
    path: DataPath, tmp_path: Path, upstream: dict[str, Any]
) -> None:
    speak(path, tmp_path, **upstream)
    assert (await (await path.connect()).ask(request())).status == 200


@on_data_path(SecureOrigin(echo, "spiffe://a.test/y"))
async def test_a_worker_that_is_not_let_in_is_a_line_in_the_log(
    path: DataPath, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    speak(path, tmp_path, allowed_names=["spiffe://a.test/x"])
    assert (await (await path.connect()).ask(request())).status == 502
    lines: dict[str, Any] = {record.getMessage(): vars(record)["warmroute_fields"] for record in caplog.records}
    rejected = lines["tls.peer_rejected"]
    assert (rejected["endpoint"], rejected["names"]) == ("o0", ("spiffe://a.test/y",))
    failed = lines["tls.upstream_failed"]
    assert (failed["endpoint"], failed["held_back"]) == ("o0", 0)
    assert "none of its names is allowed by upstream_tls.allowed_names: spiffe://a.test/y" in failed["why"]
    assert path.scalar(Scalar.TLS_PEERS_REJECTED_TOTAL) == 1


@on_data_path(SecureOrigin(echo, "127.0.0.1", days=-1), echo)
async def test_a_request_goes_elsewhere_where_a_worker_s_certificate_has_ended(path: DataPath, tmp_path: Path) -> None:
    speak(path, tmp_path)
    got = await (await path.connect()).ask(post(b"once"))
    assert got.body == b"once"
    assert path.results == {AttemptResult.CONNECT_REFUSED.value: 1, AttemptResult.SUCCESS.value: 1}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_data_path(SecureOrigin(echo, "127.0.0.1", asks=True))
async def test_a_worker_that_wants_a_certificate_gets_ours(
    path: DataPath, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    assert path.origin.tls is not None
    path.origin.tls.maximum_version = version
    cert_file, key_file = AUTHORITY.issue("spiffe://a.test/sidecar").write(tmp_path, "ours")
    speak(path, tmp_path, cert_file=cert_file, key_file=key_file)
    assert (await (await path.connect()).ask(request())).status == 200


class Choosy:
    """A worker on a thread that takes one connection, and wants a certificate. (This loop's TLS sends no alerts.)"""

    def __init__(self, directory: Path, version: ssl.TLSVersion, *, silently: bool = False) -> None:
        context = AUTHORITY.server(AUTHORITY.issue("127.0.0.1").write(directory, "choosy"), asks=True)
        context.maximum_version = version
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.refused = ""
        self._silently = silently
        self._thread = threading.Thread(target=self._serve, args=(context,), daemon=True)
        self._thread.start()

    def _serve(self, context: ssl.SSLContext) -> None:
        raw, _ = self._listener.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_side=True)
        with raw, contextlib.suppress(ConnectionError):
            while not self.refused:
                try:
                    session.do_handshake()
                except ssl.SSLWantReadError:
                    raw.sendall(outgoing.read())
                    incoming.write(raw.recv(65536))
                except ssl.SSLError as error:
                    self.refused = error.reason
            if not self._silently:
                raw.sendall(outgoing.read())  # the alert
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):  # a reset for what we did not read could overtake the alert
                pass

    def close(self) -> None:
        self._thread.join(5)
        self._listener.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_data_path(echo, policies=ONE_TRY)
async def test_a_worker_that_refuses_us_did_not_start_anything(
    path: DataPath, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    speak(path, tmp_path)
    worker = Choosy(tmp_path, version)
    path.cluster.endpoints["o0"].address = worker.address
    got = await (await path.connect()).ask(post(b"not idempotent"))
    assert got.value(b"warmroute-outcome") == b"connect_failed"
    assert path.results == {AttemptResult.CONNECT_REFUSED.value: 1}
    assert "o0: TLS: " in got.body.decode()
    worker.close()
    assert worker.refused == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    assert path.scalar(Scalar.TLS_UPSTREAM_FAILED_TOTAL) == 1


class Waiting:
    """Stands for a call that waits for a connection."""

    def __init__(self) -> None:
        self.wanted = False
        self.failed: asyncio.Future[tuple[AttemptResult, str]] = asyncio.get_running_loop().create_future()

    def attempt_failed(self, result: AttemptResult, detail: str) -> None:
        self.failed.set_result((result, detail))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("silently", [False, True])
@on_data_path(echo)
async def test_a_grpc_worker_that_refuses_us_says_why(
    path: DataPath, tmp_path: Path, version: ssl.TLSVersion, silently: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    speak(path, tmp_path)
    worker = Choosy(tmp_path, version, silently=silently)
    call = Waiting()
    pool = WorkerPool(GrpcPlane(path.plane), "g0", worker.address.replace("https", "grpcs"))
    pool.submit(call, path.plane.clock())  # type: ignore[arg-type]
    result, detail = await asyncio.wait_for(call.failed, 5)
    worker.close()
    assert result is AttemptResult.CONNECT_REFUSED
    assert path.scalar(Scalar.TLS_UPSTREAM_FAILED_TOTAL) == 1
    (line,) = [vars(record)["warmroute_fields"] for record in caplog.records]
    assert line["endpoint"] == "g0"
    if not silently:
        alert = "certificate required" if version is ssl.TLSVersion.TLSv1_3 else "handshake failure"
        assert alert in detail
        assert alert in line["why"]
    elif version is ssl.TLSVersion.TLSv1_3:
        assert detail == "it ended without close_notify"
        assert line["why"] == f"{detail}: a worker that refuses our certificate may do so without a word"


async def to_its_end(origin: OriginConnection) -> None:
    """Answer without framing; the path says how the connection ends."""
    message = await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    if message.start.startswith(b"GET /cut "):  # below its TLS, which so says no goodbye
        with socket.socket(fileno=os.dup(origin.writer.get_extra_info("socket").fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)


@on_data_path(SecureOrigin(to_its_end, "127.0.0.1"))
async def test_an_answer_to_the_connection_s_end_is_whole_only_with_close_notify(
    path: DataPath, tmp_path: Path
) -> None:
    speak(path, tmp_path)
    client = await path.connect()
    assert (await client.ask(request())).body == b"all of it"
    await client.send(request(b"GET /cut HTTP/1.1"))
    head = await client.head()
    assert head.status == 200
    with pytest.raises(asyncio.IncompleteReadError):
        await client.body(head)
    assert path.results == {AttemptResult.SUCCESS.value: 1, AttemptResult.CUT.value: 1}


async def closes_when_told(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(answer(b"one"))


@on_data_path(SecureOrigin(closes_when_told, "127.0.0.1"))
async def test_an_idle_connection_that_ended_is_not_used_again(path: DataPath, tmp_path: Path) -> None:
    speak(path, tmp_path)
    client = await path.connect()
    for _ in range(3):
        assert (await client.ask(request())).body == b"one"
        await path.until(lambda: not path.pool().open_connections, "it is gone")
    assert path.results == {AttemptResult.SUCCESS.value: 3}


async def says_too_much(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(answer(b"one"))
    await asyncio.sleep(0.05)
    await origin.send(b"HTTP/1.1 200 OK\r\n\r\n")
    await origin.reader.read()


@on_data_path(SecureOrigin(says_too_much, "127.0.0.1"))
async def test_what_nobody_asked_for_poisons_a_connection(path: DataPath, tmp_path: Path) -> None:
    speak(path, tmp_path)
    client = await path.connect()
    assert (await client.ask(request())).body == b"one"
    await path.until(lambda: path.scalar(Scalar.UPSTREAM_POISONED_TOTAL) == 1, "dropped")
    assert (await client.ask(request())).body == b"one"


@pytest.mark.parametrize(("url", "read"), [("https://w.test:1", 1), ("grpcs://w.test:1", 1), ("http://w.test:1", 0)])
@on_data_path(silent)
async def test_files_are_read_before_the_first_request(path: DataPath, tmp_path: Path, url: str, read: int) -> None:
    document = {
        "version": 1,
        "listeners": [{"address": "127.0.0.1:0"}],
        "models": [{"name": "m", "endpoints": [url]}],
        "upstream_tls": {"ca_file": write(tmp_path / "ca.pem", AUTHORITY.pem)},
    }
    tls = ProcessTls(
        msgspec.convert(document, Settings), loop=path.plane.loop, page=path.plane.page, clock=path.plane.clock
    )
    tls.prepare()
    ready = [tls.upstream(alpn).follower.terms for alpn in (HTTP1, HTTP2)]
    assert sum(terms is not None for terms in ready) == read


@on_data_path(SecureOrigin(echo, "127.0.0.1"), policies=BRIEF)
async def test_certificates_follow_their_files(path: DataPath, tmp_path: Path) -> None:
    tls = speak(path, tmp_path)
    client = await path.connect()
    assert (await client.ask(request())).status == 200
    write(tmp_path / "ca.pem", Authority("another").pem)
    tls.tick(path.plane.clock())
    await path.until(lambda: path.scalar(Scalar.TLS_RELOADS_TOTAL) == 1, "taken", LOOK_WAIT_S)
    assert (await client.ask(request())).status == 200, "what stands goes on"
    path.pool().idle[0].drop()
    assert (await client.ask(request())).status == 502
    await asyncio.sleep(0.1)  # the quarantine
    write(tmp_path / "ca.pem", AUTHORITY.pem)
    tls.tick(path.plane.clock())
    await path.until(lambda: path.scalar(Scalar.TLS_RELOADS_TOTAL) == 2, "taken", LOOK_WAIT_S)
    assert (await client.ask(request())).status == 200


NOT_ALLOWED = "none of its names is allowed"


@pytest.mark.parametrize(("files", "then"), [("ca.pem", "certificate is not valid for 'good.test'"), ("", NOT_ALLOWED)])
@on_data_path(silent)
async def test_a_reload_lets_no_worker_in_that_neither_configuration_does(
    path: DataPath, tmp_path: Path, files: str, then: str
) -> None:
    tls = speak(path, tmp_path, allowed_names=["good.test"], server_name="good.test")
    gate, loop = tls.upstream(HTTP1), path.plane.loop
    context = AUTHORITY.server(AUTHORITY.issue("evil.test").write(tmp_path, "evil"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for why in (NOT_ALLOWED, then):  # the first is reloaded within its handshake, and may find no file
            opening = loop.create_task(gate.connect("w", asyncio.Protocol, *listener.getsockname()))
            accepted, _ = await loop.sock_accept(listener)
            tls.configure(settings_of({"ca_file": str(tmp_path / (files or "none")), "server_name": "good.test"}))
            serving = loop.create_task(loop.connect_accepted_socket(asyncio.Protocol, accepted, ssl=context))
            opened, served = await asyncio.wait_for(asyncio.gather(opening, serving, return_exceptions=True), 5)
            if isinstance(served, tuple):
                served[0].abort()
            assert isinstance(opened, OSError)
            assert why in str(opened)


@on_data_path(SecureOrigin(echo, "w.test"), policies=BRIEF)
async def test_terms_that_a_reload_changes_hold_from_the_next_connection_on(path: DataPath, tmp_path: Path) -> None:
    tls = speak(path, tmp_path, allowed_names=["w.test"])
    client = await path.connect()
    assert (await client.ask(request())).status == 200
    ca_file = str(tmp_path / "ca.pem")
    for upstream, good in (
        ({"server_name": "other.test"}, False),
        ({"server_name": "w.test"}, True),
        ({"allowed_names": ["other.test"]}, False),
        ({"server_name": "other.test", "allowed_names": ["w.test"]}, True),
    ):
        for connection in list(path.pool().open_connections):
            path.pool().forget(connection)
            connection.drop()
        await asyncio.sleep(0.1)  # the quarantine
        tls.configure(settings_of({"ca_file": ca_file, **upstream}))
        assert ((await client.ask(request())).status == 200) is good


@on_data_path(silent, policies=ONE_TRY)
async def test_a_handshake_that_does_not_end_is_no_connection(path: DataPath, tmp_path: Path) -> None:
    speak(path, tmp_path)
    endpoint = path.cluster.endpoints["o0"]
    endpoint.address = endpoint.address.replace("http:", "https:")
    path.plane.timeouts = msgspec.structs.replace(path.plane.timeouts, connect_s=0.2)
    got = await (await path.connect()).ask(request())
    assert got.value(b"warmroute-outcome") == b"connect_timeout"
    await path.until(lambda: path.origin.ended, "let go")


async def talks_first(origin: OriginConnection) -> None:
    await origin.send(answer(b"what?", status=b"400 Bad Request"))
    await origin.reader.read()


@on_data_path(talks_first, policies=ONE_TRY)
async def test_a_worker_that_speaks_no_tls_says_so(path: DataPath, tmp_path: Path) -> None:
    speak(path, tmp_path)
    endpoint = path.cluster.endpoints["o0"]
    endpoint.address = endpoint.address.replace("http:", "https:")
    got = await (await path.connect()).ask(request())
    assert got.value(b"warmroute-outcome") == b"connect_failed"
    assert b"o0: TLS: " in got.body
