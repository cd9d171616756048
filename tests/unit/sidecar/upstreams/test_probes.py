from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health, health_pb2_grpc

from sidecar.discovery.proving import NO_ANSWER, PROVEN, WRONG, judged
from sidecar.discovery.warming import question_of
from sidecar.http1.head import HeadError
from sidecar.http1.parsing import parse_response
from sidecar.settings import UpstreamTls, WarmupRequest
from sidecar.upstreams.adapters import Answer, Question
from sidecar.upstreams.probes import HttpProber
from tests.support.certificates import Authority, write


async def one(prober: HttpProber, address: str, path: str, timeout_s: float) -> Answer:
    (answer,) = await prober(address, [Question(path)], timeout_s)
    return answer


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
        return await one(HttpProber(), address, path, timeout_s), seen
    finally:
        forever.set()
        await runner.cleanup()


@pytest.mark.parametrize(("path", "status"), [("/ready", 200), ("/other", 503), ("/away", 302)])
def test_the_status_comes_back_and_redirects_are_not_followed(path: str, status: int) -> None:
    answer, seen = asyncio.run(_ask(path))
    assert (answer.status, answer.error) == (status, "")
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
            return [await one(ask, f"unix:{tmp_path / name}", "/ready", 5.0) for name in ("w.sock", "none.sock")]
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
            return await one(HttpProber(upstream), f"https://127.0.0.1:{runner.addresses[0][1]}", "/", 5.0)
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
            probe = loop.create_task(one(ask, f"https://127.0.0.1:{listener.getsockname()[1]}", "/", 5.0))
            accepted, _ = await loop.sock_accept(listener)
            ask.configure(UpstreamTls(ca_file=upstream.ca_file, server_name="good.test"))
            serving = loop.create_task(loop.connect_accepted_socket(asyncio.Protocol, accepted, ssl=context))
            answer = await probe
            await asyncio.gather(serving, return_exceptions=True)
            return answer

    assert "none of its names is allowed" in asyncio.run(main()).error


def test_tls_files_that_cannot_be_used_are_the_answer() -> None:
    async def main() -> Answer:
        return await one(HttpProber(UpstreamTls(ca_file="/nonexistent/ca.pem")), "https://127.0.0.1:1", "/", 1.0)

    assert (
        asyncio.run(main()).error
        == "https://127.0.0.1:1: TLS: /nonexistent/ca.pem: cannot be read (No such file or directory)"
    )


def test_silence_ends_at_the_time_out() -> None:
    answer, _ = asyncio.run(_ask("/hang", timeout_s=0.05))
    assert answer == Answer(None, "nothing within 0.05 s")


def test_a_refused_connection_is_an_answer_too() -> None:
    async def main() -> Answer:
        return await one(HttpProber(), "http://127.0.0.1:1", "/", 1.0)

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
        found = asyncio.run(one(HttpProber(), address, "/unused", 5.0))
        assert found == (answer if isinstance(answer, Answer) else Answer(None, f"{address}: {answer}"))


class Echo:
    """A gRPC server, played by ``grpcio``, with a method that says what it got and one that fails."""

    def __enter__(self) -> str:
        self.metadata: list[tuple[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo),
            "Stream": grpc.unary_stream_rpc_method_handler(lambda request, _: iter([request] * 3)),
            "Fail": grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.UNAVAILABLE, "loading: 0 %")
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return f"grpc://127.0.0.1:{port}"

    def _echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.metadata += context.invocation_metadata()
        return request

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(5)


@pytest.mark.parametrize(
    ("method", "size", "answer"),
    [
        ("Echo", 0, 0),
        ("Echo", 3 << 20, 3 << 20),  # many windows, both ways
        ("Stream", 1000, 3000),
        ("Fail", 10, "grpc-status 14 (UNAVAILABLE): loading: 0 %"),
        ("Other", 10, "grpc-status 12 (UNIMPLEMENTED): Method not found!"),
    ],
)
def test_a_warm_up_request_may_call_a_method_of_a_grpc_worker(method: str, size: int, answer: int | str) -> None:
    echo = Echo()
    with echo as address:
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        fields = (("X-Tenant", "a"), ("warmroute-background", "1"))
        question = Question(f"/test.Echo/{method}", body_bytes=1 << 23, method="POST", fields=fields, body=body)
        (found,) = asyncio.run(HttpProber()(address, (question,), 10.0))
    if isinstance(answer, str):
        assert found == Answer(None, ended=answer)
    else:
        assert (found.status, len(found.body)) == (200, answer)
        assert found.body[:size] == body
    if method == "Echo":
        assert {("x-tenant", "a"), ("warmroute-background", "1")} <= set(echo.metadata)


def test_an_answer_over_its_bound_is_none() -> None:
    with Echo() as address:
        question = Question("/test.Echo/Echo", body_bytes=10, method="POST", body=bytes(11))
        (found,) = asyncio.run(HttpProber()(address, (question,), 10.0))
        many = Question("/test.Echo/Stream", body_bytes=10, method="POST", body=b"four")
        (cut,) = asyncio.run(HttpProber()(address, (many,), 10.0))
    assert found == Answer(200, cut=True)
    assert cut == Answer(200, body=b"fourfour", cut=True)


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\4\0\0\0\0\0" * 300, b"\xff" * 40])
def test_what_is_no_grpc_server_is_not_ready(says: bytes) -> None:
    async def main() -> Answer:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(24)
            writer.write(says)
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            return await one(HttpProber(), f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/", 5.0)

    found = asyncio.run(main())
    assert found.status is None
    assert found.error


# --- several questions ------------------------------------------------------------------------------------------------


class Server:
    """A raw server: answers each path with the bytes that are given for it, and counts its connections."""

    def __init__(self, **answers: bytes) -> None:
        self._answers = {f"/{path}": answer for path, answer in answers.items()}
        self.connections = 0
        self.heads: list[bytes] = []
        self._talks: list[asyncio.Task[None] | None] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._talks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                answer = self._answers[head.split()[1].decode()]
                writer.write(answer.removeprefix(b"last:"))
                if answer.startswith(b"last:"):
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def ask(self, *questions: Question, timeout_s: float = 5.0) -> tuple[list[Answer], HttpProber]:
        async def main() -> tuple[list[Answer], HttpProber]:
            server = await asyncio.start_server(self.talk, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            prober = HttpProber()
            async with server:
                asked = [Question(q.path, port if q.port else 0, q.body_bytes) for q in questions]
                answers = await prober(f"http://127.0.0.1:{port}", asked, timeout_s)
                await asyncio.gather(*filter(None, self._talks))
                return answers, prober

        return asyncio.run(main())


def plain(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_one_connection_takes_all_questions_where_the_server_lets_it() -> None:
    server = Server(a=plain(b"yes"), b=CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", c=plain(b""))
    answers, prober = server.ask(Question("/a"), Question("/b", body_bytes=100), Question("/c"))
    assert answers == [Answer(200, body=b"yes"), Answer(200, body=b"abcde"), Answer(200)]
    assert server.connections == 1
    assert b"Connection: close" not in server.heads[0]
    assert b"Connection: close" in server.heads[2]
    costs = prober.costs
    assert (costs.questions, costs.read_bytes > 100, 0 < costs.seconds < 5) == (3, True, True)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", id="HTTP/1.0"),
        pytest.param(plain(b"", b"Connection: close\r\n"), id="says close"),
        pytest.param(b"last:" + plain(b""), id="closes without a word"),
    ],
)
def test_a_server_that_closes_behind_its_answer_is_asked_anew(first: bytes) -> None:
    server = Server(a=first, b=plain(b"there"))
    answers, _ = server.ask(Question("/a"), Question("/b", body_bytes=10))
    assert answers == [Answer(200), Answer(200, body=b"there")]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (plain(b"x" * 100), Answer(200, body=b"x" * 10, cut=True)),
        (plain(b"x" * 10), Answer(200, body=b"x" * 10)),
        (CHUNKED + b"8\r\nxxxxxxxx\r\n8\r\nxxxxxxxx\r\n0\r\n\r\n", Answer(200, body=b"x" * 10, cut=True)),
        (CHUNKED + b"5\r\nxxxxx\r\n5\r\nxxxxx\r\n0\r\n\r\n", Answer(200, body=b"x" * 10)),
        (b"last:HTTP/1.1 200 OK\r\n\r\nxxxxx", Answer(200, body=b"xxxxx")),
        (b"last:HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11, Answer(200, body=b"x" * 10, cut=True)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204)),
    ],
)
def test_a_body_is_read_up_to_what_was_asked_for(answer: bytes, found: Answer) -> None:
    answers, _ = Server(a=answer, b=plain(b"")).ask(Question("/a", body_bytes=10), Question("/b"))
    assert answers == [found, Answer(200)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"last:HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "closed before a whole answer"),
        (b"last:" + CHUNKED + b"9\r\nx", "closed before a whole answer"),
        (CHUNKED + b"-1\r\nx", "broken chunked framing"),
        (CHUNKED + b"ffffffffffffffffff\r\n", "broken chunked framing"),
        (CHUNKED + b"2\r\nabc\r\n0\r\n\r\n", "broken chunked framing"),
        (CHUNKED + b"2\nab\n0\n\n", "broken chunked framing"),
        (b"SSH-2.0\r\n\r\n", "no good HTTP/1.1 answer"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            "a 101 that nobody asked for",
        ),
        (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "Content-Length"),
        (plain(b"abc", b"Content-Length: 3\r\n"), "Content-Length"),
        (plain(b"abc", b"X: a\nb\r\n"), "no good HTTP/1.1 answer"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"),
        (plain(b"", b"Transfer-Encoding: gzip, chunked\r\n"), "no good HTTP/1.1 answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 17, "interim"),
    ],
)
def test_a_broken_answer_is_none_and_the_next_question_is_asked_all_the_same(answer: bytes, says: str) -> None:
    (broken, good), _ = Server(a=answer, b=plain(b"")).ask(Question("/a", body_bytes=100), Question("/b"))
    assert broken.status is None
    assert says in broken.error
    assert good == Answer(200)


TWO_READINGS = CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
@pytest.mark.parametrize(
    "answer",
    [
        TWO_READINGS,
        plain(b"abc", b"Content-Length: 4\r\n"),
        plain(b"abc"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 900000000\r\n\r\n12345",  # and no more of it ever comes
        CHUNKED + b"5\r\n12345\r\n",
    ],
)
def test_a_warm_up_request_is_proven_by_no_answer_that_callers_would_not_get(answer: bytes, method: bytes) -> None:
    try:
        parse_response(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", method)
    except HeadError:
        wanted = NO_ANSWER
    else:
        wanted = WRONG if b"12345" in answer and method != b"HEAD" else PROVEN
    request = WarmupRequest("b1", "/infer", method=method.decode(), within_s=5.0, max_answer_bytes=4)

    async def main() -> Answer:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(method + b" /infer ")
            writer.write(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer)
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            (found,) = await HttpProber()(address, (question_of(request),), 5.0)
            return found

    assert judged(request, asyncio.run(main()), 0.0)[0] == wanted


@pytest.mark.parametrize(
    "long", [plain(b"abc") + b"HTTP/1.1", CHUNKED + b"0\r\n\r\nHTTP/1.1"], ids=["length", "chunks"]
)
def test_what_comes_behind_an_answer_is_not_taken_for_the_next(long: bytes) -> None:
    server = Server(a=long, b=plain(b"b"))
    (_, then), _ = server.ask(Question("/a"), Question("/b"))
    assert then == Answer(200, body=b"b")
    assert server.connections == 2


def test_what_was_answered_before_the_time_was_over_counts() -> None:
    server = Server(a=plain(b""), b=b"HTTP/1.1 200 OK\r\n")
    answers, _ = server.ask(Question("/a"), Question("/b", body_bytes=10), Question("/c"), timeout_s=0.2)
    late = Answer(None, "nothing within 0.2 s")
    assert answers == [Answer(200), late, late]


def test_another_port_is_another_connection_and_one_that_refuses_is_tried_once() -> None:
    server = Server(a=plain(b""), m=plain(b"x 1\n"))
    answers, _ = server.ask(Question("/a"), Question("/m", port=1, body_bytes=10))
    assert answers == [Answer(200), Answer(200, body=b"x 1\n")]
    assert server.connections == 2

    async def refused() -> list[Answer]:
        return await HttpProber()("http://127.0.0.1:1", [Question("/a"), Question("/b"), Question("/c")], 5.0)

    first, *others = asyncio.run(refused())
    assert first.status is None
    assert all(other is first for other in others)


def test_a_unix_socket_has_no_other_port(tmp_path: Path) -> None:
    (answer,) = asyncio.run(HttpProber()(f"unix:{tmp_path / 'w'}", [Question("/metrics", port=8002)], 1.0))
    assert "a Unix socket has no other port" in answer.error
