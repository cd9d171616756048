"""How connections end over TLS, on both sides: what is on its way arrives, whoever reads slowly, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from sidecar.http1.downstream import DownstreamConnection
from sidecar.settings import Limits, Settings
from sidecar.telemetry.page import Scalar
from sidecar.tls.material import HTTP1
from sidecar.tls.process import ProcessTls
from sidecar.tls.transport import TlsTransport
from tests.support.certificates import Authority, write
from tests.support.data_path import DataPath, Origin, echo, on_data_path
from tests.support.wires import Client, OriginConnection, answer, post, request

AUTHORITY = Authority()
LARGE = bytes(range(256)) * 16384  # 4 MiB: more than all buffers on the way hold


@asynccontextmanager
async def over_tls(path: DataPath, directory: Path) -> AsyncIterator[int]:
    """Listen with TLS in front of the data path, and speak TLS to workers that have it; yields the port."""
    cert_file, key_file = AUTHORITY.issue("a.test").write(directory, "ours")
    document = {
        "version": 1,
        "listeners": [{"address": "127.0.0.1:0", "tls": {"cert_file": cert_file, "key_file": key_file}}],
        "upstream_tls": {"ca_file": write(directory / "ca.pem", AUTHORITY.pem)},
    }
    tls = ProcessTls(
        msgspec.convert(document, Settings), loop=path.plane.loop, page=path.plane.page, clock=path.plane.clock
    )
    path.plane.upstream_tls = tls.upstream
    enter = tls.guard(0, "in", HTTP1, lambda: DownstreamConnection(path.plane))
    server = await path.plane.loop.create_server(enter, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def connect(path: DataPath, port: int, *, receive_buffer: int = 0) -> Client:
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    # a limit of 4 KiB: what is not asked for is not read
    streams = await asyncio.open_connection(
        sock=sock, ssl=AUTHORITY.client(), server_hostname="a.test", limit=4096 if receive_buffer else 1 << 20
    )
    client = Client(*streams)
    path.clients.append(client)
    return client


class SecureOrigin(Origin):
    """A worker with a certificate."""

    async def start(self) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        await super().start()

    def show(self, directory: Path) -> None:
        assert self.tls is not None
        self.tls.load_cert_chain(*AUTHORITY.issue("127.0.0.1").write(directory, "worker"))


async def closes_behind_it(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(answer(LARGE, b"Connection: close"))


async def ends_with_it(origin: OriginConnection) -> None:
    await origin.request()
    await origin.send(b"HTTP/1.1 200 OK\r\n\r\n" + LARGE)


async def _slowly(client: Client) -> bytes:
    """Read an answer, but nothing of it for longer than an end without progress may take."""
    await client.send(request(b"GET / HTTP/1.1", b"Connection: close"))
    head = await client.head()
    await asyncio.sleep(2.5)
    return (await client.body(head)).body


@on_data_path(SecureOrigin(closes_behind_it))
async def test_a_worker_that_closes_behind_its_answer_loses_none_of_it(path: DataPath, tmp_path: Path) -> None:
    async with over_tls(path, tmp_path) as port:
        path.origin.show(tmp_path)  # type: ignore[attr-defined]
        client = await connect(path, port, receive_buffer=4096)
        assert await _slowly(client) == LARGE
        assert not await client.ended()


@on_data_path(SecureOrigin(ends_with_it))
async def test_an_answer_that_ends_with_its_connection_is_whole_for_a_slow_reader(
    path: DataPath, tmp_path: Path
) -> None:
    async with over_tls(path, tmp_path) as port:
        path.origin.show(tmp_path)  # type: ignore[attr-defined]
        client = await connect(path, port, receive_buffer=4096)
        assert await _slowly(client) == LARGE
    assert path.results == {"success": 1}


@on_data_path(echo, limits=Limits(body_bytes=1000))
async def test_a_refusal_can_be_read_by_who_still_sends(path: DataPath, tmp_path: Path) -> None:
    async with over_tls(path, tmp_path) as port:

        def ask() -> bytes:  # with the standard library's socket, which writes on behind the other side's end
            with AUTHORITY.client().wrap_socket(
                socket.create_connection(("127.0.0.1", port), 5), server_hostname="a.test"
            ) as sock:
                sock.sendall(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000\r\n\r\n")
                for _ in range(20):  # most of it after the answer, and after our end
                    sock.sendall(b"x" * 1000)
                    time.sleep(0.005)
                got = b""
                while piece := sock.recv(65536):
                    got += piece
                return got

        got = await asyncio.to_thread(ask)
        assert got.startswith(b"HTTP/1.1 413 ")
        assert b"Connection: close" in got


@on_data_path(echo)
async def test_a_caller_that_ends_in_the_middle_has_gone(path: DataPath, tmp_path: Path) -> None:
    async with over_tls(path, tmp_path) as port:
        for end in ("close_notify", "nothing", "reset"):
            client = await connect(path, port)
            await client.send(post(b"x" * 50)[:-10])
            await path.until(lambda: path.in_flight == 1, "under way")
            if end == "close_notify":
                client.close()
            elif end == "nothing":
                client.writer.transport.abort()
            else:
                client.reset()
            await path.until(lambda: path.in_flight == 0, f"let go after {end}")
    assert path.outcomes == {"client_abort": 3}


@on_data_path(echo)
async def test_what_is_pipelined_is_answered_in_order(path: DataPath, tmp_path: Path) -> None:
    async with over_tls(path, tmp_path) as port:
        client = await connect(path, port)
        bodies = [b"%d" % number * 3000 for number in range(50)]
        await client.send(b"".join(post(body) for body in bodies))
        assert [(await client.answer()).body for _ in bodies] == bodies


@on_data_path(echo)
async def test_bytes_come_through_whatever_pieces_they_come_in(path: DataPath, tmp_path: Path) -> None:
    async with over_tls(path, tmp_path) as port:
        client = await connect(path, port)
        data = post(b"0123456789" * 20)
        for start in range(0, len(data), 7):
            await client.send(data[start : start + 7])
            await asyncio.sleep(0)
        assert (await client.answer()).body == b"0123456789" * 20
        assert (await client.ask(post(LARGE))).body == LARGE


SWITCH = request(b"GET /tunnel HTTP/1.1", b"Connection: Upgrade", b"Upgrade: echo")


async def switches(origin: OriginConnection) -> None:
    """Switch protocols and send everything back; end after ``bye``."""
    await origin.head()
    await origin.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
    while data := await origin.reader.read(65536):
        await origin.send(data)
        if data.endswith(b"bye"):
            return


@on_data_path(SecureOrigin(switches))
async def test_a_tunnel_ends_in_order_whichever_side_ends_it(path: DataPath, tmp_path: Path) -> None:
    async with over_tls(path, tmp_path) as port:
        path.origin.show(tmp_path)  # type: ignore[attr-defined]
        for last in (b"more", b"bye"):
            client = await connect(path, port)
            await client.send(SWITCH)
            assert (await client.head()).status == 101
            for data in (b"x" * 100_000, last):
                await client.send(data)
                assert await client.reader.readexactly(len(data)) == data
            if last == b"more":
                client.close()
            else:
                assert await client.rest() == b""
            await path.until(lambda: not path.plane.connections, "both are gone")
    assert path.outcomes == {"ok": 2}


def test_a_worker_that_ends_its_half_first_still_gets_all_that_its_caller_sent(tmp_path: Path) -> None:
    took: list[int] = []
    full, go = asyncio.Event(), asyncio.Event()

    async def reads_later(origin: OriginConnection) -> None:
        await origin.head()
        await origin.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        await full.wait()
        origin.writer.write_eof()
        await go.wait()
        took.append(len(await origin.reader.read()))

    @on_data_path(reads_later)
    async def scenario(path: DataPath) -> None:
        async with over_tls(path, tmp_path) as port:

            def upload() -> None:  # with the standard library's socket, which writes on behind the other side's end
                with AUTHORITY.client().wrap_socket(
                    socket.create_connection(("127.0.0.1", port), 5), server_hostname="a.test"
                ) as sock:
                    sock.sendall(SWITCH)
                    assert sock.recv(65536).startswith(b"HTTP/1.1 101 ")
                    sock.sendall(LARGE * 6)
                    assert sock.recv(1) == b"", "the worker's end came through"
                    sock.unwrap().close()

            uploading = asyncio.create_task(asyncio.to_thread(upload))
            await path.until(lambda: any(c._read_paused for c in path.plane.connections), "the worker is full")
            (connection,) = path.plane.connections
            assert isinstance(connection.transport, TlsTransport)
            full.set()
            await path.until(lambda: connection._ended, "the worker's end")
            go.set()
            await uploading
            await path.until(lambda: took, "the worker has read to the end")
        assert took == [6 * len(LARGE)]
        await path.until(lambda: path.outcomes, "the outcome")
        assert path.outcomes == {"ok": 1}

    scenario()


@pytest.mark.parametrize(("missing", "comes_in"), [("", True), ("no such file", False)])
@on_data_path(echo)
async def test_a_reload_lets_no_caller_in_that_neither_configuration_does(
    path: DataPath, tmp_path: Path, missing: str, comes_in: bool
) -> None:
    cert_file, key_file = AUTHORITY.issue("a.test").write(tmp_path, "ours")
    context = AUTHORITY.client(AUTHORITY.issue("evil.test").write(tmp_path, "evil"))
    mutual = {"ca_file": write(tmp_path / "ca.pem", AUTHORITY.pem), "client_auth": "required"}
    base = {"cert_file": cert_file, "key_file": key_file}

    def settings(tls: dict[str, object]) -> Settings:
        return msgspec.convert({"version": 1, "listeners": [{"address": "127.0.0.1:0", "tls": tls}]}, Settings)

    process = ProcessTls(
        settings({**base, **mutual, "allowed_names": ["good.test"]}),
        loop=path.plane.loop,
        page=path.plane.page,
        clock=path.plane.clock,
    )
    let_in: list[asyncio.Protocol] = []

    def enter() -> asyncio.Protocol:
        let_in.append(DownstreamConnection(path.plane))
        return let_in[-1]

    server = await path.plane.loop.create_server(process.guard(0, "in", HTTP1, enter), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    try:
        for number in (1, 2):
            sock = socket.socket()
            sock.setblocking(False)
            await path.plane.loop.sock_connect(sock, address)
            if number == 1:  # and so in the handshake
                await path.until(lambda: process.handshakes == 1, "accepted")
                process.configure(settings({**base, **mutual, "ca_file": missing or mutual["ca_file"]}))
            _, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname="a.test")
            await path.until(lambda: not process.handshakes, "over")
            writer.transport.abort()
            assert len(let_in) == (number == 2 and comes_in)
    finally:
        server.close()
    assert path.scalar(Scalar.TLS_PEERS_REJECTED_TOTAL) == 2 - comes_in
    await path.until(lambda: not path.plane.connections, "gone")
