"""A version that is only a description, and a store over HTTP that has its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.file_store import FileStore
from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading import Loaded, LoadError
from worker.loading.digests import BLOCK_BYTES
from worker.loading.fetching import Fetcher
from worker.loading.hash_cache import HashCache
from worker.loading.model_loader import ModelLoader
from worker.stages import Stages
from worker.store import ModelFiles, scan

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
