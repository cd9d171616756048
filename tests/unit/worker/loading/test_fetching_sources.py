"""Where versions are fetched from: what servers say, will not say, or say for ever; TLS, addresses, S3."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, write
from tests.support.fetch_rig import BIG, CONTENT, Rig, sums
from tests.support.file_store import FileStore
from worker.engines import GivenUpError
from worker.loading.sources import RemoteFile, SourceError
from worker.loading.sources.http import HttpSource
from worker.store import StoreError, scan


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with FileStore({}) as store:
        yield Rig(tmp_path, store)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda store: store.files.pop("m/1/SHA256SUMS"), "SHA256SUMS: status 404"),
        (lambda store: store.files.pop("m/1/model.onnx"), "model.onnx: status 404"),
        (lambda store: setattr(store, "refuse", 503), "SHA256SUMS: status 503"),
        (lambda store: setattr(store, "ranges", False), "the server does not answer ranges (status 200 to one)"),
        (lambda store: store.files.update({"m/1/SHA256SUMS": b""}), "SHA256SUMS there lists no file"),
        (
            lambda store: store.files.update({"m/1/SHA256SUMS": sums({".git/x": b""}), "m/1/.git/x": b""}),
            ".git/x: names that begin with a dot are not fetched",
        ),
    ],
)
def test_what_a_server_will_not_give_is_said(rig: Rig, spoil: Callable[[FileStore], Any], error: str) -> None:
    spoil(rig.store)
    text = rig.refusal()
    assert text.startswith(rig.where)
    assert text.endswith(error)
    assert len(rig.store.seen) <= 10


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b"])
def test_names_that_lead_elsewhere_are_refused(rig: Rig, name: str) -> None:
    rig.store.files["m/1/SHA256SUMS"] = sums({name: b""})
    assert rig.refusal() == (
        f"{rig.store.url}/m/1/SHA256SUMS: line 1: {name!r}: name a file of this version, relative to its directory"
    )


class Dripping:
    """A server that answers each request with ``start`` and then a byte now and then, for as long as it is asked."""

    def __init__(self, start: bytes) -> None:
        self.asked, self.left = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start = start
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(taken,), daemon=True).start()

    def _answer(self, taken: socket.socket) -> None:
        try:
            with taken:
                taken.recv(4096)
                taken.sendall(self._start)
                self.asked.set()
                taken.settimeout(0.02)
                while True:
                    taken.sendall(b"x")
                    try:
                        if not taken.recv(4096):
                            break
                    except TimeoutError:
                        continue
        except OSError:
            pass
        self.left.set()

    def close(self) -> None:
        self._listener.close()


HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000000\r\nContent-Range: bytes 0-999999/1000000\r\n\r\n"

SUMS_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


class TestDripping:
    @pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nx-slow: ", SUMS_HEAD])
    def test_it_is_ended_at_once_where_the_load_is_given_up(self, rig: Rig, start: bytes) -> None:
        server = Dripping(start)
        rig.describe(server.url)

        def give_up() -> None:
            server.asked.wait(10)
            rig.cancellation.cancel()

        threading.Thread(target=give_up).start()
        began = time.monotonic()
        with pytest.raises(GivenUpError):
            rig.load()
        assert server.left.wait(5)
        assert time.monotonic() - began < 5
        server.close()

    def test_blocks_are_ended_too(self) -> None:
        server = Dripping(HEAD)
        source = HttpSource(server.url)
        pieces = source.read(RemoteFile("f", 1_000_000, ""), 0, 1_000_000)
        next(pieces)
        threading.Timer(0.05, source.close).start()
        began = time.monotonic()
        with contextlib.suppress(SourceError):
            for _ in pieces:
                pass
        assert time.monotonic() - began < 5
        with pytest.raises(SourceError, match="canceled"):
            source.sums()
        server.close()

    def test_a_body_that_comes_too_slowly_is_given_up(self) -> None:
        server = Dripping(HEAD)
        with pytest.raises(SourceError, match=r"comes too slowly: .* and 4096 a second are the least") as caught:
            list(HttpSource(server.url, stall_s=1.0).read(RemoteFile("f", 1_000_000, ""), 0, 1_000_000))
        assert caught.value.again
        server.close()

    @pytest.mark.parametrize(
        "said", ["bytes 0-0/" + "9" * 5000, "bytes 0-0/-1", "bytes 0-0/\u0661", "bytes 0-0/*", "", "x"]
    )
    def test_a_range_that_is_none_is_said(self, said: str) -> None:
        server = Dripping(
            f"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Range: {said}\r\n\r\n".encode()
        )
        source = HttpSource(server.url)
        with pytest.raises(SourceError, match=r"^f: a part without a Content-Range that tells the whole length$"):
            source.files(["f"])
        with pytest.raises(SourceError, match=r"^f: is another one by now$"):
            list(source.read(RemoteFile("f", 1, ""), 0, 1))
        server.close()

    def test_a_head_that_does_not_end_is_given_up(self) -> None:
        server = Dripping(b"HTTP/1.1 200 OK\r\nx-slow: ")
        with pytest.raises(SourceError) as caught:
            HttpSource(server.url, stall_s=0.2).sums()
        assert str(caught.value) == "SHA256SUMS: no answer within 0.2 s"
        server.close()


def test_a_version_is_fetched_over_tls_and_a_handshake_is_ended_too(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    monkeypatch.setenv("SSL_CERT_FILE", write(tmp_path / "ca.pem", authority.pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1").write(tmp_path, "server"))
    rig.put(BIG)
    with FileStore(rig.store.files, context) as store:
        rig.describe(f"{store.url}/m/1")
        rig.load()
        assert store.url.startswith("https://")
    assert rig.here() == BIG
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = HttpSource(f"https://127.0.0.1:{silent.getsockname()[1]}")

        def close() -> None:
            with silent.accept()[0] as taken:
                taken.recv(1)
                source.close()
                taken.recv(4096)

        threading.Thread(target=close).start()
        began = time.monotonic()
        with pytest.raises(SourceError):
            source.sums()
        assert time.monotonic() - began < 5


def test_nobody_there(rig: Rig) -> None:
    rig.describe("http://127.0.0.1:1/m/1")
    assert rig.refusal() == (
        f"{rig.directory}: cannot be fetched from http://127.0.0.1:1/m/1: SHA256SUMS: Connection refused"
    )


def described_as(rig: Rig, source: str) -> str:
    """Return why a source that is described so is refused."""
    rig.describe(source)
    with pytest.raises(StoreError) as caught:
        rig.load()
    return str(caught.value)


@pytest.mark.parametrize("source", ["http://user:s3cret@127.0.0.1/m", "https://s3cret@h:1/m", "s3://k:s3cret@bucket/m"])
def test_a_password_in_the_address_is_refused_and_not_told(rig: Rig, source: str) -> None:
    assert described_as(rig, source) == (
        f"{rig.directory}/model.yaml: load: source has a name or password before its host, which logs and status would "
        f"show; take it out (a signature in the query stays secret; S3's credentials come from the environment)"
    )


@pytest.mark.parametrize(
    "source", ["http://user:s3c/ret@127.0.0.1/m", "http://h:s3c/m", "http://h:0/m", "http://[s3c/m"]
)
def test_an_address_that_is_none_is_refused_and_not_told(rig: Rig, source: str) -> None:
    assert described_as(rig, source) == (
        f"{rig.directory}/model.yaml: load: source is no URL: its host or port is wrong (a port is a number from 1 to "
        f"65535)"
    )


@pytest.mark.parametrize("source", ["http://h/mod\u00e8les?s3cret", "https://h\u00f6st/m", "http://h/m#s3cret"])
def test_an_address_with_characters_that_cannot_be_sent_is_refused_and_not_told(rig: Rig, source: str) -> None:
    assert described_as(rig, source) == (
        f"{rig.directory}/model.yaml: load: source has characters that no URL has, beyond ASCII, or a #; percent-"
        f"encode them (of a host, give what DNS has: xn--...)"
    )


def test_redirects_are_followed(rig: Rig) -> None:
    with FileStore(rig.store.files) as other:
        rig.store.redirect = other.url
        rig.load()
    assert rig.here() == CONTENT


def test_a_source_must_be_one(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.yaml").write_text("load: {strategy: stream}")
    with pytest.raises(StoreError) as caught:
        scan(tmp_path, (), "model.onnx")
    assert str(caught.value) == (
        f"{directory}/model.yaml: load: strategy is stream, and there is no source; add an http(s):// or s3:// URL, or "
        f"peers"
    )
    (directory / "model.yaml").write_text("load: {source: 'file:///etc'}")
    with pytest.raises(StoreError, match=r"\$\.load\.source"):
        scan(tmp_path, (), "model.onnx")


class TestS3:
    @pytest.fixture
    def rig(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
        with FileStore({}) as store:
            made = Rig(tmp_path, store, "bucket/m/1")
            made.describe("s3://bucket/m/1")
            for name, value in {
                "AWS_ENDPOINT_URL": store.url,
                "AWS_ACCESS_KEY_ID": "AKID",
                "AWS_SECRET_ACCESS_KEY": "s3cret",
                "AWS_REGION": "us-east-1",
            }.items():
                monkeypatch.setenv(name, value)
            yield made

    def test_a_version_is_fetched_with_signed_requests(self, rig: Rig) -> None:
        loaded = rig.load()
        assert rig.here() == CONTENT
        assert loaded.bytes_fetched == sum(map(len, CONTENT.values()))
        signed = [fields.get("authorization", fields.get("Authorization", "")) for fields in rig.store.fields]
        assert all(one.startswith("AWS4-HMAC-SHA256 Credential=AKID/") for one in signed)

    def test_a_connection_that_breaks_is_tried_again(self, rig: Rig) -> None:
        rig.put(BIG)
        rig.store.cut_after, rig.store.cuts = 100_000, 3
        rig.load()
        assert rig.here() == BIG

    @pytest.mark.parametrize(
        ("spoil", "error"),
        [
            (lambda store: store.files.pop("bucket/m/1/SHA256SUMS"), "SHA256SUMS: there is none"),
            (lambda store: setattr(store, "refuse", 403), "SHA256SUMS: "),
        ],
    )
    def test_what_the_store_will_not_give_is_said(
        self, rig: Rig, spoil: Callable[[FileStore], Any], error: str
    ) -> None:
        spoil(rig.store)
        assert rig.refusal().startswith(f"{rig.directory}: cannot be fetched from s3://bucket/m/1: {error}")

    def test_without_its_library_it_says_what_to_install(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "obstore", None)
        assert rig.refusal() == (
            f"{rig.directory}: cannot be fetched: it needs the library obstore; install warmroute[s3]"
        )
