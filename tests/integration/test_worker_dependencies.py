"""Dependencies on real sockets, and a worker whose model depends on a server that comes, goes and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess
from worker.dependencies import amiss, parse


@contextlib.contextmanager
def answering(raw: bytes | None, port: int = 0) -> Iterator[int]:
    """Accept on a port; answer each connection with ``raw`` and close it, or with None say nothing."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(0.05)
        held: list[socket.socket] = []

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                held.append(connection)
                if raw is not None:
                    connection.settimeout(5)
                    with contextlib.suppress(OSError):
                        connection.recv(4096)
                        connection.sendall(raw)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()
            for connection in held:
                connection.close()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", ""),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "HTTP 101"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "HTTP 503"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "the connection was closed without an answer"),
        (b"", "the connection was closed without an answer"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 70_000, "its answer has too long a head"),
        (None, "no answer within 0.5 s"),
    ],
)
def test_a_server_is_well_where_it_answers_2xx(raw: bytes | None, why: str) -> None:
    with answering(raw) as port:
        said = asyncio.run(amiss([parse(f"http://127.0.0.1:{port}/ready?x=1")], 0.5))
    assert (why in said and f"http://127.0.0.1:{port}/ready?x=1: " in said) if why else said == ""


def test_a_port_is_well_where_somebody_accepts_and_a_file_where_it_is(tmp_path: Path) -> None:
    with answering(None) as port:
        assert asyncio.run(amiss([parse(f"tcp://127.0.0.1:{port}"), parse(f"file://{tmp_path}")])) == ""
    assert "tcp://127.0.0.1" in asyncio.run(amiss([parse(f"file://{tmp_path}"), parse(f"tcp://127.0.0.1:{port}")]))
    assert asyncio.run(amiss([parse(f"file://{tmp_path}/a")])) == f"file://{tmp_path}/a: no such file"


class Well(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(port: int) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Well)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_model_follows_what_it_depends_on_and_others_do_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for name in ("alone", "dependent"):
        (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / "dependent" / "1" / "model.yaml").write_text(f"depends_on: ['http://127.0.0.1:{port}/']")
    flags = ["--models", str(tmp_path), "--engine", "deterministic"]
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("alone")
        assert worker.event("model.waits")["model"] == "dependent"
        status, answer, headers = worker.ask("/v2/models/dependent/ready")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert f"it waits for what it depends on: http://127.0.0.1:{port}/" in answer["error"]
        with serving(port):
            worker.warm("dependent")
            assert worker.ask("/v2/models/dependent/ready")[0] == 200
        worker.event("model.state", model="dependent", to="failed")
        assert "what it depends on is amiss" in worker.ask("/v2/models/dependent/ready")[1]["error"]
        assert worker.ask("/v2/models/alone/ready")[0] == 200
        with serving(port):
            until(lambda: worker.ask("/v2/models/dependent/ready")[0] == 200, "it serves again")
            assert len([one for one in worker.events if one["event"] == "model.warm"]) == 2  # it was not loaded again
            worker.terminate()
            assert worker.wait() == 0


def test_a_load_is_held_back_and_told_of(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "weights").write_bytes(bytes(4096))
    flags = [
        "--models",
        str(tmp_path),
        "--engine",
        "deterministic",
        "--memory-mark",
        "0.0001",
        "--memory-wait-s",
        "0.5",
    ]
    with WorkerProcess(*flags) as worker:
        worker.listening()
        assert worker.event("model.held_back")["reason"].startswith("host memory: a load takes about 4096 bytes")
        failed = worker.event("model.state", to="failed")
        assert "there was no memory for it within 0.5 s" in failed["reason"]
        assert worker.ask("/stats")[1]["loads_held_back"]["count"] == 1
        assert "--memory-mark" in worker.ask("/v2/models/m/ready")[1]["error"]
