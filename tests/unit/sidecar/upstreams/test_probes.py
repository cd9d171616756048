from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health, health_pb2_grpc

from sidecar.settings import UpstreamTls
from sidecar.upstreams.adapters import Answer
from sidecar.upstreams.probes import HttpProber
from tests.support.certificates import Authority, write


async def _ask(path: str, timeout_s: float = 5.0) -> tuple[Answer, list[web.BaseRequest]]:
    seen: list[web.BaseRequest] = []
    forever = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        if request.path == "/hang":
            await forever.wait()
        if request.path == "/away":
            raise web.HTTPFound("/ready")
        return web.Response(status=200 if request.path == "/ready" else 503)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        return await HttpProber()(address, path, timeout_s), seen
    finally:
        forever.set()
        await runner.cleanup()


@pytest.mark.parametrize(("path", "status"), [("/ready", 200), ("/other", 503), ("/away", 302)])
def test_the_status_comes_back_and_redirects_are_not_followed(path: str, status: int) -> None:
    answer, seen = asyncio.run(_ask(path))
    assert answer == Answer(status)
    assert [(request.method, request.path) for request in seen] == [("GET", path)]
    assert seen[0].headers["user-agent"] == "warmroute-probe"


def test_a_unix_socket_is_asked_too(tmp_path: Path) -> None:
    async def main() -> list[Answer]:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=200 if request.path == "/ready" else 503)

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "w.sock")).start()
        try:
            ask = HttpProber()
            return [await ask(f"unix:{tmp_path / name}", "/ready", 5.0) for name in ("w.sock", "none.sock")]
        finally:
            await runner.cleanup()

    there, none = asyncio.run(main())
    assert there == Answer(200)
    assert none.status is None
    assert str(tmp_path / "none.sock") in none.error


@pytest.mark.parametrize(
    ("names", "tls", "answer"),
    [
        (("127.0.0.1",), {}, Answer(200)),
        (("w.test",), {"server_name": "w.test"}, Answer(200)),
        (("spiffe://a.test/w",), {"allowed_names": ("spiffe://a.test/*",)}, Answer(200)),
        (("spiffe://b.test/w",), {"allowed_names": ("spiffe://a.test/*",)}, "none of its names is allowed"),
        (("w.test",), {}, "certificate is not valid for '127.0.0.1'"),
    ],
)
def test_tls_is_spoken_as_requests_speak_it(
    tmp_path: Path, names: tuple[str, ...], tls: dict[str, Any], answer: Answer | str
) -> None:
    authority = Authority()
    upstream = UpstreamTls(ca_file=write(tmp_path / "ca.pem", authority.pem), **tls)

    async def main() -> Answer:
        async def handle(_: web.BaseRequest) -> web.StreamResponse:
            return web.Response()

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        context = authority.server(authority.issue(*names).write(tmp_path, "w"))
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            return await HttpProber(upstream)(f"https://127.0.0.1:{runner.addresses[0][1]}", "/", 5.0)
        finally:
            await runner.cleanup()

    got = asyncio.run(main())
    if isinstance(answer, Answer):
        assert got == answer
    else:
        assert got.status is None
        assert answer in got.error


def test_a_probe_goes_by_one_configuration_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    authority = Authority()
    upstream = UpstreamTls(ca_file=write(tmp_path / "ca.pem", authority.pem), allowed_names=("good.test",))
    context = authority.server(authority.issue("evil.test").write(tmp_path, "w"))

    async def main() -> Answer:
        loop = asyncio.get_running_loop()
        ask = HttpProber(upstream)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            probe = loop.create_task(ask(f"https://127.0.0.1:{listener.getsockname()[1]}", "/", 5.0))
            accepted, _ = await loop.sock_accept(listener)
            ask.configure(UpstreamTls(ca_file=upstream.ca_file, server_name="good.test"))
            serving = loop.create_task(loop.connect_accepted_socket(asyncio.Protocol, accepted, ssl=context))
            answer = await probe
            await asyncio.gather(serving, return_exceptions=True)
            return answer

    assert "none of its names is allowed" in asyncio.run(main()).error


def test_tls_files_that_cannot_be_used_are_the_answer() -> None:
    async def main() -> Answer:
        return await HttpProber(UpstreamTls(ca_file="/nonexistent/ca.pem"))("https://127.0.0.1:1", "/", 1.0)

    assert (
        asyncio.run(main()).error
        == "https://127.0.0.1:1: TLS: /nonexistent/ca.pem: cannot be read (No such file or directory)"
    )


def test_silence_ends_at_the_time_out() -> None:
    answer, _ = asyncio.run(_ask("/hang", timeout_s=0.05))
    assert answer == Answer(None, "nothing within 0.05 s")


def test_a_refused_connection_is_an_answer_too() -> None:
    async def main() -> Answer:
        return await HttpProber()("http://127.0.0.1:1", "/", 1.0)

    answer = asyncio.run(main())
    assert answer.status is None
    assert "127.0.0.1:1" in answer.error


class Health:
    """A gRPC server's health, played by ``grpcio``."""

    def __init__(self, status: int | None) -> None:
        self._status = status

    def __enter__(self) -> str:
        self._server = grpc.server(ThreadPoolExecutor(2))
        if self._status is not None:
            servicer = health.HealthServicer()
            servicer.set("", self._status)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return f"grpc://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(5)


@pytest.mark.parametrize(
    ("status", "answer"),
    [(1, Answer(200)), (2, Answer(503)), (None, "health check: grpc-status 12")],
    ids=["serving", "not serving", "no health service"],
)
def test_a_grpc_worker_is_asked_for_its_health(status: int | None, answer: Answer | str) -> None:
    with Health(status) as address:
        found = asyncio.run(HttpProber()(address, "/unused", 5.0))
        assert found == (answer if isinstance(answer, Answer) else Answer(None, f"{address}: {answer}"))


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\4\0\0\0\0\0" * 300, b"\xff" * 40])
def test_what_is_no_grpc_server_is_not_ready(says: bytes) -> None:
    async def main() -> Answer:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(24)
            writer.write(says)
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            return await HttpProber()(f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/", 5.0)

    found = asyncio.run(main())
    assert found.status is None
    assert found.error
