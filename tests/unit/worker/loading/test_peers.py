"""A version that comes from a worker that has it: over real sockets, with peers that go, change and are busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sidecars import until
from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation, GivenUpError
from worker.loading import HashedFrom, Loaded, LoadError, StrategyName
from worker.loading.digests import BLOCK_BYTES
from worker.loading.fetch_lock import fetching_alone
from worker.loading.fetching import Fetcher
from worker.loading.model_loader import ModelLoader
from worker.loading.peer_server import PeerServer
from worker.loading.settings import LoadDescription, PeerListenError
from worker.stages import Stages
from worker.store import ModelFiles

WEIGHTS = os.urandom(1 << 20) * 17 + b"end"
CONTENT = {"model.onnx": b"graph", "weights/a": WEIGHTS, "empty": b""}


class Peer:
    """One worker that has the version m@1, as far as its peers see it."""

    def __init__(self, directory: Path, streams: int = 4) -> None:
        for name, data in CONTENT.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(data)
        self.directory = directory
        files = ModelFiles("m", "1", directory)
        self.loaded = ModelLoader().load(files, lambda *_: None, Cancellation(), Stages())
        self.on_find: Callable[[int], None] = lambda _: None
        self.asked = 0
        self._lock = threading.Lock()
        self.server = PeerServer("127.0.0.1:0", self._find, streams)
        self.address = self.server.address

    def _find(self, name: str, version: str) -> Loaded | None:
        with self._lock:
            self.asked += 1
            asked = self.asked
        self.on_find(asked)
        return self.loaded if (name, version) == ("m", "1") else None

    def close(self) -> None:
        self.server.close()
        self.loaded.release()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[list[Peer]]:
    made = [Peer(tmp_path / "peer-a"), Peer(tmp_path / "peer-b")]
    yield made
    for peer in made:
        peer.close()


def fetch(
    tmp_path: Path,
    *addresses: str,
    version: str = "1",
    progress: Callable[[int, int], None] = lambda *_: None,
    log: ReadableLog | None = None,
    cancellation: Cancellation | None = None,
) -> Loaded:
    directory = tmp_path / "here" / version
    directory.mkdir(parents=True, exist_ok=True)
    files = ModelFiles("m", version, directory, directory / "model.onnx", load=LoadDescription(source="peers"))
    loader = ModelLoader(threads=2, fetcher=Fetcher(addresses, log or ReadableLog(), pause_s=0.01))
    loaded = loader.load(files, progress, cancellation or Cancellation(), Stages())
    loaded.release()
    return loaded


def refusal(
    tmp_path: Path, *addresses: str, version: str = "1", progress: Callable[[int, int], None] = lambda *_: None
) -> str:
    with pytest.raises(LoadError) as caught:
        fetch(tmp_path, *addresses, version=version, progress=progress)
    return str(caught.value)


def here(tmp_path: Path) -> dict[str, bytes]:
    return {name: (tmp_path / "here" / "1" / name).read_bytes() for name in CONTENT}


def test_a_version_comes_from_a_peer_and_is_the_same(tmp_path: Path, peers: list[Peer]) -> None:
    loaded = fetch(tmp_path, peers[0].address)
    assert here(tmp_path) == CONTENT
    assert (loaded.strategy, loaded.content_hash) == (StrategyName.STREAM, peers[0].loaded.content_hash)


def test_a_peer_that_dies_on_the_way_is_replaced_by_another(tmp_path: Path, peers: list[Peer]) -> None:
    dying = threading.Thread(target=peers[0].server.close)
    replaced = threading.Event()

    def die(asked: int) -> None:
        if asked == 2:  # the first block is asked for
            dying.start()
        if asked >= 2:  # however long its end takes to begin, it gives none of them
            assert replaced.wait(10)

    peers[0].on_find = die
    peers[1].on_find = lambda _: replaced.set()
    loaded = fetch(tmp_path, peers[0].address, peers[1].address)
    dying.join(10)
    assert here(tmp_path) == CONTENT
    assert loaded.content_hash == peers[1].loaded.content_hash


def test_a_peer_that_is_gone_is_passed_over(tmp_path: Path, peers: list[Peer]) -> None:
    peers[0].server.close()
    fetch(tmp_path, peers[0].address, peers[1].address)
    assert here(tmp_path) == CONTENT


def test_where_the_only_peer_dies_the_load_fails_and_the_next_goes_on(tmp_path: Path, peers: list[Peer]) -> None:
    only = peers[0]
    gone = threading.Event()

    def refuse(asked: int) -> None:
        if asked > 2 or gone.is_set():
            gone.set()
            raise RuntimeError("the process is gone")

    only.on_find = refuse
    text = refusal(tmp_path, only.address)
    assert text.startswith(f"{tmp_path}/here/1: cannot be fetched from m@1 of {only.address}: {only.address}: ")
    assert not (tmp_path / "here" / "1" / "model.onnx").exists()
    only.on_find = lambda _: None
    fetch(tmp_path, only.address)
    assert here(tmp_path) == CONTENT


def test_what_was_damaged_on_the_way_is_asked_for_again_and_then_refused(tmp_path: Path, peers: list[Peer]) -> None:
    damaged = peers[0].directory / "weights" / "a"
    content = bytearray(WEIGHTS)
    content[BLOCK_BYTES + 5] ^= 1
    status = damaged.stat()
    damaged.write_bytes(content)
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert refusal(tmp_path, peers[0].address).endswith(f"weights/a: the block at {BLOCK_BYTES} was damaged on the way")
    assert not (tmp_path / "here" / "1" / "model.onnx").exists()


def test_two_that_fetch_one_version_into_one_place_take_turns(tmp_path: Path, peers: list[Peer]) -> None:
    begun, go_on, log = threading.Event(), threading.Event(), ReadableLog()

    def hold(done: int, _: int) -> None:
        if done:
            begun.set()
            assert go_on.wait(10)

    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(fetch, tmp_path, peers[0].address, progress=hold)
            assert begun.wait(10)
            second = pool.submit(fetch, tmp_path, peers[0].address, log=log)
            until(lambda: log.events("model.fetch_waits"), "the second to wait")
            assert not second.done()
            assert not (tmp_path / "here" / "1" / "model.onnx").exists()
        finally:
            go_on.set()
        one, other = first.result(10), second.result(10)
    assert here(tmp_path) == CONTENT
    assert (one.strategy, one.bytes_fetched) == (StrategyName.STREAM, sum(map(len, CONTENT.values())))
    assert (other.bytes_fetched, other.hashed_from) == (0, HashedFrom.BYTES), "it has read what the first put there"
    assert other.strategy is not StrategyName.STREAM
    assert one.content_hash == other.content_hash == peers[0].loaded.content_hash
    assert sorted(path.name for path in (tmp_path / "here" / "1").iterdir()) == ["empty", "model.onnx", "weights"]


def test_whoever_waits_for_anothers_fetch_can_be_given_up(tmp_path: Path, peers: list[Peer]) -> None:
    directory = tmp_path / "here" / "1"
    directory.mkdir(parents=True)
    cancellation = Cancellation()
    with (
        fetching_alone(directory, Cancellation(), lambda: None),
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(fetch, tmp_path, peers[0].address, cancellation=cancellation)
        cancellation.cancel()
        with pytest.raises(GivenUpError):
            waiting.result(10)
    fetch(tmp_path, peers[0].address)
    assert here(tmp_path) == CONTENT


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(BLOCK_BYTES + 1)
        file.write(b"other")


def replace_it(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(b"x" * len(WEIGHTS))
    beside.rename(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (overwrite, "what lies in .incoming is not what came from m@1 of "),
        (replace_it, "another process has put it there meanwhile; "),
    ],
)
def test_what_somebody_else_wrote_is_not_taken_for_what_came(
    tmp_path: Path, peers: list[Peer], spoil: Callable[[Path], None], why: str
) -> None:
    def all_is_there(done: int, total: int) -> None:
        if done == total:
            spoil(tmp_path / "here" / "1" / ".incoming" / "weights" / "a")

    assert why in refusal(tmp_path, peers[0].address, progress=all_is_there)
    assert not (tmp_path / "here" / "1" / "model.onnx").exists()
    assert fetch(tmp_path, peers[0].address).content_hash == peers[0].loaded.content_hash
    assert here(tmp_path) == CONTENT


def test_a_peer_whose_content_is_another_by_now_gives_none_of_it(tmp_path: Path, peers: list[Peer]) -> None:
    peer = peers[0]

    def change(asked: int) -> None:
        if asked == 2:
            peer.loaded = replace(peer.loaded, content_hash="0" * 32)

    peer.on_find = change
    assert refusal(tmp_path, peer.address).endswith("FAILED_PRECONDITION: m@1 is another one by now")


def test_a_file_that_changed_under_a_peer_is_not_handed_out(tmp_path: Path, peers: list[Peer]) -> None:
    (peers[0].directory / "weights" / "a").write_bytes(b"short")
    assert "changed from" in refusal(tmp_path, peers[0].address)


def test_what_no_peer_has_is_said(tmp_path: Path, peers: list[Peer]) -> None:
    peers[1].loaded = Loaded("a shard's", 10)  # of which there are no whole files
    assert "NOT_FOUND: m@1 is not loaded here" in refusal(tmp_path, peers[1].address)
    text = refusal(tmp_path, peers[0].address, peers[1].address, version="2")
    assert f"{peers[0].address}: NOT_FOUND: m@2 is not loaded here, or not hashed; " in text


def test_peers_must_be_named(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path}/here/1: cannot be fetched: load.source is peers, and the worker knows none; name some with --peers"
    )


def test_a_busy_peer_refuses_and_is_asked_again(tmp_path: Path) -> None:
    busy = Peer(tmp_path / "busy", streams=1)
    try:
        fetch(tmp_path, busy.address)
        assert here(tmp_path) == CONTENT
    finally:
        busy.close()


def test_an_address_that_is_taken_is_refused(peers: list[Peer]) -> None:
    with pytest.raises(PeerListenError, match=f"^--peer-listen {peers[0].address}: "):
        PeerServer(peers[0].address, lambda *_: None, 1)
