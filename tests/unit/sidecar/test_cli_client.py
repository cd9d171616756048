"""The client of the admin API: places, tokens, refusals, and every way to get no answer."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from sidecar.cli import client
from sidecar.cli.client import Admin, decoded, segment
from sidecar.cli.outcome import CliError


class Seen(msgspec.Struct):
    """What the stand-in for an admin API was asked."""

    method: str
    path: str
    token: str | None
    body: str


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers what it was asked; 403 and 502 on demand."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        seen = Seen(self.command, self.path, self.headers.get("Authorization"), body)
        status, data = 200, msgspec.json.encode(seen)
        if self.path == "/refused":
            status, data = 403, b'{"error": "writes over TCP need a token"}'
        elif self.path == "/unknown":
            status, data = 404, b'{"error": "no route for \'x\'", "known": ["a", "b"]}'
        elif self.path == "/broken":
            status, data = 502, b"<html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 (http.server's names)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (http.server's name)
        """Stay quiet."""


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def place() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


class UnixServer(socketserver.UnixStreamServer):
    """HTTP on a Unix socket."""


def test_over_tcp(place: str) -> None:
    for url in (place, f"{place}/"):
        seen = decoded(Admin(url).get("/routes"), Seen)
        assert (seen.method, seen.path, seen.token) == ("GET", "/routes", None)


def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with serving(UnixServer(str(path), Handler)):
        for place in (f"unix:{path}", f"unix://{path}"):
            assert decoded(Admin(place).get("/healthz"), Seen).path == "/healthz"


def test_changes_carry_token_and_content(place: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    seen = decoded(Admin(place, token).change("POST", "/faults", {"kind": "abort"}), Seen)
    assert seen == Seen("POST", "/faults", "Bearer s3cret", '{"kind":"abort"}')
    assert decoded(Admin(place).change("DELETE", "/faults/1"), Seen).token is None


def test_refusals_are_told_as_the_sidecar_words_them(place: str) -> None:
    with pytest.raises(
        CliError, match=r"^writes over TCP need a token \(here: --admin unix:PATH, or --token-file FILE\)$"
    ) as caught:
        Admin(place).change("POST", "/refused")
    assert caught.value.code == 1
    with pytest.raises(CliError, match=r"^no route for 'x'; known here: a, b$"):
        Admin(place).get("/unknown")
    with pytest.raises(CliError, match=r"^the admin API answered 502 Bad Gateway$"):
        Admin(place).get("/broken")
    assert Admin(place).ask("GET", "/broken", accept_errors=True).status == 502


def test_something_else_than_expected(place: str) -> None:
    with pytest.raises(CliError, match=r"is it a sidecar of this version\?$") as caught:
        decoded(Admin(place).get("/"), list[int])
    assert caught.value.code == 1


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, not listening: refused, and no other test gets the port
        taken.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CliError) as caught:
            Admin(place).get("/routes")
    remedy = "is a sidecar running there? --admin or WARMROUTE_ADMIN names another place"
    assert (str(caught.value), caught.value.code) == (f"{place}: connection refused: {remedy}", 3)
    place = f"unix:{tmp_path}/none.sock"
    with pytest.raises(CliError) as caught:
        Admin(place).get("/routes")
    assert (str(caught.value), caught.value.code) == (f"{place}: no such file or directory: {remedy}", 3)


def test_silence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(CliError, match=r": silent for 0\.05 s: ") as caught:
            Admin(f"http://127.0.0.1:{silent.getsockname()[1]}").get("/routes")
    assert caught.value.code == 3


def test_not_http() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def greet() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"-ERR unknown command\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(CliError) as caught:
            Admin(f"http://127.0.0.1:{listening.getsockname()[1]}").get("/routes")
        thread.join()
    assert caught.value.code == 3


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("127.0.0.1:9901", '--admin or WARMROUTE_ADMIN: "127.0.0.1:9901": must be http://HOST:PORT or unix:/PATH'),
        ("https://h:1", '--admin or WARMROUTE_ADMIN: "https://h:1": must be http://HOST:PORT or unix:/PATH'),
        ("http://h", '--admin or WARMROUTE_ADMIN: "http://h": must be HOST:PORT, for example 127.0.0.1:8080'),
        ("", '--admin or WARMROUTE_ADMIN: "": must be http://HOST:PORT or unix:/PATH'),
        ("unix:", '--admin or WARMROUTE_ADMIN: "unix:": must be http://HOST:PORT or unix:/PATH'),
    ],
)
def test_places_that_are_none(place: str, text: str) -> None:
    with pytest.raises(CliError) as caught:
        Admin(place).get("/")
    assert (str(caught.value), caught.value.code) == (text, 2)


@pytest.mark.parametrize("content", [b"", b"a\nb", b"\xff"])
def test_token_files_that_hold_none(content: bytes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    with pytest.raises(CliError, match=r"^--token-file: ") as caught:
        Admin(token_file=token).change("POST", "/")
    assert caught.value.code == 2
    with pytest.raises(CliError, match="No such file"):
        Admin(token_file=tmp_path / "none").change("POST", "/")


def test_segments_cannot_leave_their_place() -> None:
    assert segment("a/../b?c#d e") == "a%2F..%2Fb%3Fc%23d%20e"
    assert segment("magika@1") == "magika@1"
