"""Traffic over HTTP/2, gRPC and TLS against real servers: sent in an open loop, recorded on its way, sent again."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from sidecar.cli.main import main
from sidecar.cli.sending import unconnected
from sidecar.traffic.messages import framed
from sidecar.traffic.recording.listener import Recorder
from sidecar.traffic.recording.noting import Terms
from sidecar.traffic.requests import Timed
from sidecar.traffic.samples import Ended, Sample
from sidecar.traffic.sender import Sender
from sidecar.traffic.trusting import client_context, server_context
from tests.integration.test_record import ended, recording
from tests.support.certificates import Authority, write
from tests.support.http2_origin import Http2Origin, http2_origin
from tests.support.loops import in_loop, until

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from sidecar.traffic.traces.recorded import Recorded

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

pytestmark = [pytest.mark.beside, pytest.mark.timeout(60)]

TIMEOUT_S = 20.0
METADATA = [("authorization", "Bearer s3cret"), ("x-tenant", "blue"), ("token-bin", b"\0\1"), ("seed-bin", b"\0\1")]


class Worker(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Gives back what it got: once, or three times on ``/w.W/Thrice``; on ``/w.W/Refuse`` a status."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, dict[str, Any]]] = []

    def service(self, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)

        def note(request: bytes) -> None:
            self.seen.append((details.method, request, metadata))

        def once(request: bytes, context: Any) -> bytes:
            note(request)
            if details.method == "/w.W/Refuse":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such")
            return request

        def thrice(request: bytes, _: Any) -> Iterator[bytes]:
            note(request)
            yield from (request,) * 3

        if details.method == "/w.W/Thrice":
            return grpc.unary_stream_rpc_method_handler(thrice)
        return grpc.unary_unary_rpc_method_handler(once)


@contextmanager
def serving(worker: Worker, authority: Authority | None, directory: Path) -> Iterator[int]:
    """Serve with a certificate and ask callers for theirs, or without TLS."""
    server = grpc.server(ThreadPoolExecutor(4), handlers=(worker,))
    if authority is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        cert, key = authority.issue("127.0.0.1").write(directory, "worker")
        pair = ((directory / key).read_bytes(), (directory / cert).read_bytes())
        credentials = grpc.ssl_server_credentials([pair], authority.pem, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait(5)


def ask(channel: grpc.Channel) -> None:
    """Make a call of each kind, one after the other."""
    assert channel.unary_unary("/w.W/Once")(b"one", metadata=METADATA, timeout=TIMEOUT_S) == b"one"
    assert list(channel.unary_stream("/w.W/Thrice")(b"two" * 10_000, timeout=TIMEOUT_S)) == [b"two" * 10_000] * 3
    with suppress(grpc.RpcError):
        channel.unary_unary("/w.W/Refuse")(b"three", timeout=TIMEOUT_S)


def test_calls_are_recorded_and_made_again_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, worker, out = Authority(), Worker(), tmp_path / "trace.jsonl"
    ca = write(tmp_path / "ca.pem", authority.pem)
    own_cert, own_key = authority.issue("client").write(tmp_path, "own")
    cert, key = authority.issue("127.0.0.1").write(tmp_path, "recorder")
    trust = ["--ca-file", ca, "--cert-file", own_cert, "--key-file", own_key]
    with serving(worker, authority, tmp_path) as port:
        target = f"grpcs://127.0.0.1:{port}"
        listening = ["--listen-cert-file", cert, "--listen-key-file", key]
        with recording(target, out, *trust, *listening) as (process, place):
            with grpc.secure_channel(f"{place[0]}:{place[1]}", grpc.ssl_channel_credentials(authority.pem)) as channel:
                ask(channel)
            assert ended(process) == f"{out}: 3 requests\n"
        assert main(["replay", str(out), "--to", target, "--json", "--speed", "100", *trust]) == 0
        report = json.loads(capsys.readouterr().out)
        assert main(["replay", str(out), "--to", f"https://127.0.0.1:{port}", *trust]) == 2
        assert "3 a gRPC call, which needs a grpc:// target" in capsys.readouterr().err
        assert main(["replay", str(out), "--to", target, "--json", "--limit", "1"]) == 1  # nobody is trusted
        untrusted = json.loads(capsys.readouterr().out)
    assert report["ends"] == {"grpc_status": 1, "ok": 2}
    assert (report["errors"], report["new_failures"]) == ({"grpc NOT_FOUND": 1}, 0)
    assert untrusted["ends"] == {"tls_failed": 1}
    assert untrusted["reasons"].keys() == {"tls_failed"}
    (why,) = unconnected(untrusted["reasons"], target)
    assert why.startswith("tls_failed: unable to get local issuer certificate; --ca-file FILE says whose certificates")
    assert [(method, body) for method, body, _ in worker.seen[:3]] == [
        ("/w.W/Once", b"one"),
        ("/w.W/Thrice", b"two" * 10_000),
        ("/w.W/Refuse", b"three"),
    ]
    assert sorted(one[:2] for one in worker.seen[3:]) == sorted(one[:2] for one in worker.seen[:3])
    again = next(metadata for method, _, metadata in worker.seen[3:] if method == "/w.W/Once")
    assert (again["x-tenant"], again["seed-bin"]) == ("blue", b"\0\1")
    assert not {"authorization", "token-bin"} & set(again)
    assert "s3cret" not in out.read_text()
    lines = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    seen = [(line["protocol"], line.get("grpc_status"), line.get("answer_messages", 0)) for line in lines]
    assert seen == [("grpc", 0, 1), ("grpc", 0, 3), ("grpc", 5, 0)]


@in_loop
async def test_many_calls_share_a_connection(tmp_path: Path) -> None:
    worker, samples = Worker(), list[Sample]()
    with serving(worker, None, tmp_path) as port:
        requests = [Timed(0.0, "POST", "/w.W/Thrice", body=framed(b"%d" % number), call=True) for number in range(250)]
        sender = Sender(f"grpc://127.0.0.1:{port}", samples.append, max_connections=2)
        await sender.run([*requests, Timed(0.0, "POST", "/w.W/None", body=framed(b""), call=True)])
    assert [sample.ended for sample in samples] == [Ended.OK] * 251
    assert {sample.body_bytes for sample in samples} == {5, 18, 21, 24}
    assert sorted(body for method, body, _ in worker.seen if method == "/w.W/Thrice") == sorted(
        b"%d" % number for number in range(250)
    )


@pytest.mark.parametrize("secure", [False, True])
@in_loop
async def test_http_2_with_prior_knowledge_and_as_tls_agrees_on(secure: bool, tmp_path: Path) -> None:
    authority = Authority()
    files = authority.issue("127.0.0.1").write(tmp_path, "origin")
    server_tls = authority.server(files) if secure else None
    if server_tls is not None:
        server_tls.set_alpn_protocols(["h2"])
    ca = tmp_path / "ca.pem"
    write(ca, authority.pem)
    samples: list[Sample] = []
    async with http2_origin(server_tls) as origin:
        sender = Sender(
            f"http{'s' if secure else ''}://127.0.0.1:{origin.port}",
            samples.append,
            http2=True,
            tls=client_context(["h2"], ca, None, None, insecure=False) if secure else None,
        )
        big = b"x" * 200_000
        await sender.run(
            [
                Timed(0.0, "POST", "/big", body=big),
                Timed(0.0, target="/fail"),
                Timed(0.0, target="/ok", headers=(("X-Request-Id", "mine"),)),
            ]
        )
        assert len(origin.connections) == 1
    assert sorted((sample.ended, sample.status, sample.body_bytes) for sample in samples) == [
        (Ended.OK, 200, 1),
        (Ended.OK, 200, 6),
        (Ended.STATUS_5XX, 503, 1),
    ]
    assert big in origin.bodies
    heads = {head[":path"]: head for head in origin.heads}
    assert heads["/ok"]["x-request-id"] == "mine"
    assert {head[":scheme"] for head in heads.values()} == {"https" if secure else "http"}


@in_loop
async def test_a_server_that_speaks_http_1_alone_is_told_apart(tmp_path: Path) -> None:
    authority = Authority()
    server_tls = authority.server(authority.issue("127.0.0.1").write(tmp_path, "origin"))
    samples: list[Sample] = []
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    for insecure in (True, False):
        tls = client_context(["h2"], None, None, None, insecure=insecure)
        await Sender(f"https://127.0.0.1:{port}", samples.append, http2=True, tls=tls).run([Timed(0.0)])
    server.close()
    async with serving_raw(refuse) as port:
        await Sender(f"https://127.0.0.1:{port}", samples.append, http2=True, tls=tls).run([Timed(0.0)])
    assert [(sample.ended, sample.error) for sample in samples] == [
        (Ended.NO_HTTP2, "it did not choose h2 (ALPN)"),
        (Ended.TLS_FAILED, "unable to get local issuer certificate"),
        (Ended.NO_HTTP2, "it took none of what it was offered (ALPN)"),
    ]


@asynccontextmanager
async def serving_raw(serve: Serve) -> AsyncIterator[int]:
    """Serve on a port, which is given; TLS is for ``serve`` to begin."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a handshake as servers do that insist: no_application_protocol, fatal (RFC 8446 6, RFC 7301 3.2)."""
    await reader.read(65536)
    writer.write(bytes([21, 3, 3, 0, 2, 2, 120]))
    writer.close()


def of_one_authority(tmp_path: Path, protocols: list[str]) -> tuple[tuple[str, str], Path, ssl.SSLContext]:
    """Return a listener's files, the authority's own, and what a server speaks TLS with that takes ``protocols``."""
    authority = Authority()
    files = authority.issue("127.0.0.1").write(tmp_path, "both")
    ca = tmp_path / "ca.pem"
    write(ca, authority.pem)
    served = authority.server(files)
    served.set_alpn_protocols(protocols)
    return files, ca, served


@in_loop
async def test_a_server_that_takes_something_else_than_before_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.traffic.recording.listener.LEARN_S", 0.01)
    files, ca, origin_tls = of_one_authority(tmp_path, ["h2", "http/1.1"])
    insists = False
    samples: list[Sample] = []

    async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if insists:
            await refuse(reader, writer)
            return
        with suppress(OSError, asyncio.IncompleteReadError):  # it was only asked what it takes
            await writer.start_tls(origin_tls)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def tls(*alpn: str) -> ssl.SSLContext:
        return client_context([*alpn], ca, None, None, insecure=False)

    async with serving_raw(origin) as port:
        recorder = Recorder(
            f"https://127.0.0.1:{port}",
            Terms(lambda: 0.0, lambda told: None),
            lambda: 1.0,
            callers_tls=server_context(["http/1.1"], Path(files[0]), Path(files[1])),
            tls=tls,
        )
        host, own_port = await recorder.listen("127.0.0.1", 0)
        assert recorder.untold == ""
        insists = True
        await Sender(f"https://{host}:{own_port}", samples.append, http2=True, tls=tls("h2")).run([Timed(0.0)])
        await until(lambda: recorder.untold == "it takes neither h2 nor http/1.1 (ALPN)", "it was asked again")
        insists = False
        origin_tls.set_alpn_protocols(["http/1.1"])
        await until(lambda: not recorder.untold, "the server said what it speaks now")
        await Sender(f"https://{host}:{own_port}", samples.append, tls=tls("h2", "http/1.1")).run([Timed(0.0)])
        await recorder.close()
    assert [(sample.ended, sample.status) for sample in samples] == [(Ended.CUT, 0), (Ended.OK, 200)]


@asynccontextmanager
async def serving_http1(serve: Serve, tls: ssl.SSLContext) -> AsyncIterator[Http2Origin]:
    """Serve HTTP/1.1 over TLS, where :func:`http2_origin` would serve the other."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    origin = Http2Origin()
    origin.port = server.sockets[0].getsockname()[1]
    try:
        yield origin
    finally:
        server.close()


@pytest.mark.parametrize("http2", [False, True])
@in_loop
async def test_callers_over_tls_are_offered_what_the_server_takes(
    http2: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.traffic.recording.listener.LEARN_S", 0.01)
    files, ca, origin_tls = of_one_authority(tmp_path, ["h2" if http2 else "http/1.1"])
    taken: list[Recorded] = []
    samples: list[Sample] = []

    def tls(*alpn: str) -> ssl.SSLContext:
        return client_context([*alpn], ca, None, None, insecure=False)

    asked: list[str] = []

    def not_at_first(alpn: str) -> ssl.SSLContext:
        asked.append(alpn)
        if len(asked) == 1:
            raise ConnectionRefusedError("not yet")
        return tls(alpn)

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\nbody")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with http2_origin(origin_tls) if http2 else serving_http1(once, origin_tls) as origin:
        recorder = Recorder(
            f"https://127.0.0.1:{origin.port}",
            Terms(lambda: 0.0, lambda told: taken.append(told.recorded())),
            lambda: 1.0,
            callers_tls=server_context(["http/1.1" if http2 else "h2"], Path(files[0]), Path(files[1])),
            tls=not_at_first,
        )
        host, port = await recorder.listen("127.0.0.1", 0)
        assert recorder.untold == "not yet"
        await until(lambda: not recorder.untold, "the server said what it speaks")
        sender = Sender(f"https://{host}:{port}", samples.append, http2=http2, tls=tls("h2", "http/1.1"))
        await sender.run([Timed(0.0, "POST", "/ask", body=b"body")])
        await recorder.close()
    assert [(sample.ended, sample.status) for sample in samples] == [(Ended.OK, 200)]
    assert [(one.protocol, one.target, one.body, one.ended) for one in taken] == [
        ("h2" if http2 else "", "/ask", "body", Ended.OK)
    ]
