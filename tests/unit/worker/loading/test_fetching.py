from __future__ import annotations

import contextlib
import hashlib
import os
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
from tests.support.file_store import FileStore
from tests.support.worker_parts import ReadableLog
from worker.conditions import size_bytes
from worker.engines import Cancellation, GivenUpError
from worker.loading import HashedFrom, Loaded, LoadError, StrategyName
from worker.loading.digests import BLOCK_BYTES
from worker.loading.fetching import Fetcher
from worker.loading.hash_cache import HashCache
from worker.loading.model_loader import ModelLoader
from worker.loading.sources import RemoteFile, SourceError
from worker.loading.sources.http import HttpSource
from worker.stages import Stage, Stages
from worker.store import ModelFiles, StoreError, scan

WEIGHTS = os.urandom(1 << 20) * 17 + b"end"  # a block and a bit
CONTENT = {"model.onnx": b"graph", "weights/a b": b"weights", "empty": b""}
BIG = {"model.onnx": b"graph", "weights/a b": WEIGHTS, "empty": b""}
HALVES = [f"bytes=0-{BLOCK_BYTES - 1}", f"bytes={BLOCK_BYTES}-{len(WEIGHTS) - 1}"]


def sums(content: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in content.items()).encode()


class Rig:
    """A version that is only a description, and a store that has its files below ``base``."""

    def __init__(self, tmp_path: Path, store: FileStore, base: str = "m/1") -> None:
        self.store = store
        self.base = base
        self.put(CONTENT)
        self.directory = tmp_path / "models" / "m" / "1"
        self.directory.mkdir(parents=True)
        self.log = ReadableLog()
        self.cancellation = Cancellation()
        self.stages = Stages()
        self.seen: list[tuple[int, int]] = []
        (tmp_path / "shm").mkdir()
        self.hashes = HashCache(tmp_path / "shm", self.log)
        self.describe(f"{store.url}/{base}")

    def put(self, content: dict[str, bytes], said: dict[str, bytes] | None = None) -> None:
        self.store.files.clear()
        self.store.files.update({f"{self.base}/{name}": data for name, data in content.items()})
        self.store.files[f"{self.base}/SHA256SUMS"] = sums(content if said is None else said)

    def describe(self, source: str) -> None:
        (self.directory / "model.yaml").write_text(f"load: {{source: '{source}'}}\n")

    def load(
        self,
        progress: Callable[[int, int], None] | None = None,
        on_fetched: Callable[[ModelFiles, Cancellation], None] | None = None,
    ) -> Loaded:
        (files,) = scan(self.directory.parents[1], ("m",), "model.onnx")
        fetcher = Fetcher((), self.log, pause_s=0.01)
        loader = ModelLoader(threads=2, cache=self.hashes, fetcher=fetcher, on_fetched=on_fetched)
        note = progress or (lambda *step: self.seen.append(step))
        loaded = loader.load(files, note, self.cancellation, self.stages)
        loaded.release()
        return loaded

    def refusal(self) -> str:
        with pytest.raises(LoadError) as caught:
            self.load()
        return str(caught.value)

    def here(self) -> dict[str, bytes]:
        return {name: (self.directory / name).read_bytes() for name in CONTENT}

    @property
    def where(self) -> str:
        return f"{self.directory}: cannot be fetched from {self.store.url}/{self.base}: "


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with FileStore({}) as store:
        yield Rig(tmp_path, store)


def test_what_has_come_is_told_of_before_it_is_brought_in(rig: Rig) -> None:
    rig.put(CONTENT)
    told: list[int] = []

    def no_memory(files: ModelFiles, cancellation: Cancellation) -> None:
        assert cancellation is rig.cancellation
        told.append(size_bytes(files))
        raise LoadError("there was no memory for it")

    with pytest.raises(LoadError, match="there was no memory for it"):
        rig.load(on_fetched=no_memory)
    assert told[0] >= sum(map(len, CONTENT.values()))
    assert rig.here() == CONTENT
    rig.load(on_fetched=no_memory)
    assert len(told) == 1, "it was here"


def test_a_version_is_fetched_hashed_and_loaded_and_then_it_is_here(rig: Rig, tmp_path: Path) -> None:
    rig.put(BIG)
    loaded = rig.load()
    assert rig.here() == BIG
    total = sum(map(len, BIG.values()))
    assert (loaded.strategy, loaded.bytes_fetched) == (StrategyName.STREAM, total)
    assert rig.seen[:2] == [(0, total), (5, total)]
    assert (total, total) in rig.seen
    assert rig.stages.seconds()[Stage.FETCH] > 0
    assert sorted(rig.store.bodies("m/1/weights/a b")) == sorted(HALVES)
    assert rig.log.events("model.fetched")[0]["source"] == f"{rig.store.url}/m/1"
    assert not (rig.directory / ".incoming").exists()
    plain = tmp_path / "plain"
    for name, data in BIG.items():
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_bytes(data)
    by_hand = ModelLoader().load(ModelFiles("m", "1", plain), lambda *_: None, Cancellation(), Stages())
    assert by_hand.content_hash == loaded.content_hash
    asked = len(rig.store.seen)
    again = rig.load()
    assert (again.bytes_fetched, again.content_hash, len(rig.store.seen)) == (0, loaded.content_hash, asked)


def test_a_connection_that_breaks_is_tried_again(rig: Rig) -> None:
    rig.put(BIG)
    rig.store.cut_after, rig.store.cuts = 100_000, 3
    assert rig.load().hashed_from is HashedFrom.CACHE, "what was hashed as it came is not read again"
    assert rig.here() == BIG


def test_a_fetch_that_failed_goes_on_from_there(rig: Rig) -> None:
    rig.put(BIG)
    rig.store.cut_after = 5 << 20  # so that whole blocks never come, but the last and the small files do
    text = rig.refusal()
    assert text.startswith(f"{rig.where}weights/a b: ")
    assert f"{5 << 20} of {BLOCK_BYTES} bytes from " in text
    assert not (rig.directory / "model.onnx").exists()
    assert (rig.directory / ".incoming").is_dir()
    rig.store.cut_after = None
    rig.store.seen.clear()
    loaded = rig.load()
    assert sorted(rig.store.bodies("m/1/weights/a b")) in (sorted(HALVES[:1]), sorted(HALVES))
    assert rig.here() == BIG
    assert loaded.bytes_fetched < sum(map(len, BIG.values()))


def test_what_became_another_meanwhile_is_fetched_anew(rig: Rig) -> None:
    rig.put(BIG)
    rig.store.cut_after = 5 << 20
    rig.refusal()
    rig.store.cut_after = None
    other = {**BIG, "weights/a b": bytes(len(WEIGHTS))}
    rig.put(other)
    rig.load()
    assert {name: (rig.directory / name).read_bytes() for name in other} == other


def test_what_becomes_another_on_the_way_is_refused(rig: Rig) -> None:
    def progress(done: int, _: int) -> None:
        if done:
            rig.put({**BIG, "weights/a b": bytes(len(WEIGHTS))})

    rig.put(BIG)
    rig.store.cut_after, rig.store.cuts = 5 << 20, 2
    with pytest.raises(LoadError) as caught:
        rig.load(progress)
    text = str(caught.value)
    assert "weights/a b: is another one by now" in text or "its SHA-256 is" in text


def test_what_does_not_fit_its_sums_is_refused(rig: Rig) -> None:
    rig.put({**CONTENT, "model.onnx": b"another"}, said=CONTENT)
    assert rig.refusal() == (
        f"{rig.directory}/model.onnx: its SHA-256 is {hashlib.sha256(b'another').hexdigest()}, as it came from "
        f"{rig.store.url}/m/1, and {rig.store.url}/m/1/SHA256SUMS says {hashlib.sha256(b'graph').hexdigest()}; it was "
        f"thrown away, and the next load fetches it again"
    )
    assert sorted(path.name for path in rig.directory.iterdir()) == [".incoming", "model.yaml"]


def test_what_was_damaged_there_is_fetched_again_once_it_is_repaired(rig: Rig) -> None:
    rig.put({**BIG, "model.onnx": b"grapx"}, said=BIG)
    rig.refusal()
    rig.put(BIG)
    rig.store.seen.clear()
    rig.load()
    assert rig.here() == BIG
    assert rig.store.bodies("m/1/weights/a b") == [], "what was whole is not fetched again"


def test_sums_that_were_wrong_there_are_asked_for_again(rig: Rig) -> None:
    rig.put(CONTENT, said={**CONTENT, "model.onnx": b"another"})
    rig.refusal()
    rig.put(CONTENT)
    assert rig.load().bytes_fetched > 0
    assert rig.here() == CONTENT


@pytest.mark.parametrize("name", ["model.onnx", "weights/a b"])
def test_what_was_fetched_and_is_damaged_since_is_fetched_again(rig: Rig, name: str) -> None:
    rig.load()
    (rig.directory / name).write_bytes(b"damaged")
    assert rig.refusal().endswith("; it was removed, and the next load fetches it again")
    rig.load()
    assert rig.here() == CONTENT


def test_what_is_damaged_and_comes_from_nowhere_else_stays(rig: Rig) -> None:
    rig.load()
    (rig.directory / "model.yaml").write_text("{}")
    (rig.directory / "weights/a b").write_bytes(b"damaged")
    assert rig.refusal().endswith("; bring the file again, or correct what is said of it")
    assert (rig.directory / "weights/a b").read_bytes() == b"damaged"


def test_sums_that_are_written_down_here_come_first(rig: Rig) -> None:
    (rig.directory / "SHA256SUMS").write_bytes(sums({"model.onnx": b"graph"}))
    assert rig.load().bytes_fetched == 5
    assert not (rig.directory / "weights").exists()
    assert ("GET", "m/1/SHA256SUMS", "") not in rig.store.seen


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
            list(HttpSource(server.url, stall_s=0.2).read(RemoteFile("f", 1_000_000, ""), 0, 1_000_000))
        assert caught.value.again
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


@pytest.mark.parametrize("source", ["http://user:s3cret@127.0.0.1/m", "https://s3cret@h:1/m", "s3://k:s3cret@bucket/m"])
def test_a_password_in_the_address_is_refused_and_not_told(rig: Rig, source: str) -> None:
    rig.describe(source)
    with pytest.raises(StoreError) as caught:
        rig.load()
    assert str(caught.value) == (
        f"{rig.directory}/model.yaml: load: source has a name or password before its host, which logs and status would "
        f"show; take it out (a signature in the query stays secret; S3's credentials come from the environment)"
    )


@pytest.mark.parametrize(
    "source", ["http://user:s3c/ret@127.0.0.1/m", "http://h:s3c/m", "http://h:0/m", "http://[s3c/m"]
)
def test_an_address_that_is_none_is_refused_and_not_told(rig: Rig, source: str) -> None:
    rig.describe(source)
    with pytest.raises(StoreError) as caught:
        rig.load()
    assert str(caught.value) == (
        f"{rig.directory}/model.yaml: load: source is no URL: its host or port is wrong (a port is a number from 1 to "
        f"65535)"
    )


def test_redirects_are_followed(rig: Rig) -> None:
    with FileStore(rig.store.files) as other:
        rig.store.redirect = other.url
        rig.load()
    assert rig.here() == CONTENT


def test_a_full_disk_is_said_before_anything_is_fetched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put(BIG)

    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full())
    total = sum(map(len, BIG.values()))
    assert rig.refusal() == (
        f"{rig.directory}: cannot be fetched: it has {total} bytes, and the file system has 4096 left"
    )
    assert rig.store.bodies("m/1/model.onnx") == []


def test_it_can_be_given_up(rig: Rig) -> None:
    with pytest.raises(GivenUpError):
        rig.load(lambda *_: rig.cancellation.cancel())


def test_the_models_file_comes_last_and_tells_that_all_is_there(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put({**CONTENT, "model.onnx.data": b"weights"})
    rename, moved = Path.rename, []

    def note(self: Path, target: Path) -> Path:
        moved.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", note)
    rig.load()
    assert moved[-1] == "model.onnx"
    asked = len(rig.store.seen)
    (rig.directory / ".incoming").mkdir()
    rig.load()
    assert len(rig.store.seen) == asked, "what a crash left between the last move and the end is no reason to ask"


def test_a_packed_model_is_fetched_and_unpacked(rig: Rig) -> None:
    import gzip

    rig.put({"model.onnx.gz": gzip.compress(b"graph")})
    loaded = rig.load()
    assert loaded.bytes_total == 5
    asked = len(rig.store.seen)
    rig.load()
    assert len(rig.store.seen) == asked


def test_what_the_worker_brings_itself_is_no_change_of_the_repository(rig: Rig) -> None:
    def signature() -> str:
        (files,) = scan(rig.directory.parents[1], ("m",), "model.onnx")
        return files.signature

    before = signature()
    rig.load()
    assert signature() == before
    rig.describe(f"{rig.store.url}/m/2")
    assert signature() != before


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
