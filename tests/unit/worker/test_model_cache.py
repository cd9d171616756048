from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.worker_parts import ReadableLog, shipped_model
from worker.bench.synthetic import write_model
from worker.engines import Cancellation
from worker.engines.background import turn
from worker.engines.model_cache import STALE_S, ModelCache
from worker.engines.onnx_cache import OptimisedGraphs
from worker.engines.onnx_graph import External, GraphError, external_tensors, refer_to
from worker.engines.onnx_options import read_options
from worker.engines.onnx_runtime import OnnxRuntimeEngine
from worker.engines.registry import EngineSettings
from worker.stages import Stages
from worker.store import ModelFiles

LIMIT = 1000


def cache_in(directory: Path, limit_bytes: int = LIMIT) -> tuple[ModelCache, ReadableLog]:
    log = ReadableLog()
    return ModelCache(directory, limit_bytes, log), log


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- the store ----------------------------------------------------------------------------------------------------


def test_what_was_put_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "for it"
    cache, log = cache_in(directory)
    assert cache.get("a") is None
    assert cache.put("a", b"body")
    assert cache.get("a") == b"body"
    assert cache_in(directory)[0].get("a") == b"body", "by the next worker too"
    assert oct(directory.stat().st_mode & 0o777) == "0o700"
    assert log.events() == []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: data[:10], "no head"),
        (lambda data: b"xxxx" + data[4:], "no head"),
        (lambda data: data[:-1], "3 bytes, not 4"),
        (lambda data: data[:-1] + b"z", "its hash is not that of its bytes"),
    ],
)
def test_a_broken_entry_is_dropped(tmp_path: Path, spoil: Any, reason: str) -> None:
    cache, log = cache_in(tmp_path)
    cache.put("a", b"body")
    path = tmp_path / "a.model"
    path.write_bytes(spoil(path.read_bytes()))
    assert cache.get("a") is None
    assert not path.exists()
    assert [(event["entry"], event["reason"]) for event in log.events("model_cache.dropped")] == [(str(path), reason)]


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    cache, _ = cache_in(tmp_path)
    for moment, key in enumerate("abc"):
        cache.put(key, b"x" * 300)
        os.utime(tmp_path / f"{key}.model", ns=(0, moment))
    assert names(tmp_path) == ["a.model", "b.model", "c.model"]
    cache.get("a")
    cache.put("d", b"x" * 300)
    assert names(tmp_path) == ["a.model", "c.model", "d.model"]
    assert not cache.put("e", b"x" * LIMIT), "larger than all together may be"


def test_work_of_a_worker_that_died_is_taken_away(tmp_path: Path) -> None:
    cache, _ = cache_in(tmp_path)
    for name, age_s in ((".making-old", STALE_S + 60), (".making-new", 0.0)):
        work = tmp_path / name
        work.mkdir()
        (work / "weights").touch()
        moment = work.stat().st_mtime - age_s
        os.utime(work, (moment, moment))
    cache.put("a", b"body")
    assert names(tmp_path) == [".making-new", "a.model"]


def test_a_directory_that_cannot_be_made_or_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache, log = cache_in(tmp_path / "file" / "cache")
    assert not cache.writable
    assert cache.get("a") is None
    assert not cache.put("a", b"body")
    assert len(log.events("model_cache.not_writable")) == 1


# --- graphs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\xff" * 11, b"\x0b", b"\x09abc"])
def test_what_is_no_model(data: bytes) -> None:
    with pytest.raises(GraphError):
        external_tensors(data)


def test_where_weights_are(tmp_path: Path) -> None:
    write_model(tmp_path, 300_000)
    found = external_tensors((tmp_path / "model.onnx").read_bytes())
    assert {place.location for place in found.values()} == {"model.onnx.data"}
    size = (tmp_path / "model.onnx.data").stat().st_size
    assert max(place.offset + place.length for place in found.values()) <= size
    assert sum(place.length for place in found.values()) > 250_000


def tensor(name: str, location: str, length: int) -> bytes:
    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    pairs = [("location", location), ("length", str(length))]
    entries = b"".join(field(13, field(1, key.encode()) + field(2, value.encode())) for key, value in pairs)
    inner = field(8, name.encode()) + entries + b"\x70\x01"
    return field(7, field(5, inner))


def test_weights_are_referred_to_where_they_are_the_same_and_taken_in_where_not(tmp_path: Path) -> None:
    (tmp_path / "saved").write_bytes(b"same")
    (tmp_path / "data").write_bytes(b"....same")
    model = tensor("w", "saved", 4)
    made = refer_to(model, tmp_path / "saved", {"w": External("data", 4, 4)}, tmp_path)
    assert external_tensors(made) == {"w": External("data", 4, 4)}
    changed = refer_to(model, tmp_path / "saved", {"w": External("data", 0, 4)}, tmp_path)
    assert external_tensors(changed) == {}
    assert b"same" in changed


def test_weights_of_inner_graphs_are_too_much(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"^an inner graph has weights of its own$"):
        refer_to(b"\x0a\x0bsaved as is", tmp_path / "saved", {}, tmp_path)


# --- the engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("synthetic")
    write_model(directory, 300_000)
    return directory


class Bench:
    def __init__(self, cache: Path, directory: Path, content_hash: str = "h", **options: Any) -> None:
        self.log = ReadableLog()
        self.cache = ModelCache(cache, 1 << 20, self.log)
        self.graphs = OptimisedGraphs(self.cache, self.log, settle_s=0.0)
        self.engine = OnnxRuntimeEngine(EngineSettings(self.log), graphs=self.graphs)
        self.files = ModelFiles(
            "m", "1", directory, directory / "model.onnx", options=options, content_hash=content_hash
        )

    def load(self) -> Any:
        model = self.engine.load(self.files, Cancellation(), Stages())
        self.graphs.wait(30)
        return model

    @property
    def key(self) -> str | None:
        return self.graphs.key(self.files, read_options(self.files))


def answer(model: Any) -> Any:
    return model.run({"tokens": np.arange(8, dtype=np.int64).reshape(1, 8)}, ["pooled"], {}, Cancellation())[0]


def test_the_next_start_finds_what_this_one_optimised(tmp_path: Path, model_directory: Path) -> None:
    first = Bench(tmp_path, model_directory)
    made = first.load()
    assert made.facts()["optimised"] == "made"
    (stored,) = first.log.events("model_cache.stored")
    assert stored["bytes"] < 150_000, "the graph, without the weights"
    assert names(tmp_path) == [f"{first.key}.model"]
    second = Bench(tmp_path, model_directory)
    kept = second.load()
    assert kept.facts()["optimised"] == "kept"
    assert np.array_equal(answer(made), answer(kept))
    assert second.log.events() == []


def test_an_entry_that_no_session_can_be_made_of_is_dropped_and_made_again(
    tmp_path: Path, model_directory: Path
) -> None:
    bench = Bench(tmp_path, model_directory)
    assert bench.key is not None
    bench.cache.put(bench.key, b"no model")
    model = bench.load()
    assert model.facts()["optimised"] == "made"
    assert len(bench.log.events("model_cache.dropped")) == len(bench.log.events("model_cache.stored")) == 1
    assert bench.load().facts()["optimised"] == "kept"


def test_what_is_optimised_differently_has_another_key(tmp_path: Path, model_directory: Path) -> None:
    benches = [
        Bench(tmp_path, model_directory),
        Bench(tmp_path, model_directory, "other"),
        Bench(tmp_path, model_directory, graph="basic"),
        Bench(tmp_path, model_directory, session={"session.set_denormal_as_zero": "1"}),
        Bench(tmp_path, model_directory, deterministic=True),
    ]
    keys = {bench.key for bench in benches}
    assert len(keys) == len(benches)
    assert None not in keys
    off = [Bench(tmp_path, model_directory, ""), Bench(tmp_path, model_directory, graph="disabled")]
    assert [bench.key for bench in off] == [None, None]
    assert Bench(tmp_path, model_directory, providers=["CUDAExecutionProvider"]).key is None


def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path, model_directory: Path) -> None:
    (tmp_path / "file").touch()
    bench = Bench(tmp_path / "file" / "x", model_directory)
    assert answer(bench.load()).shape[0] == 1
    assert [event["event"] for event in bench.log.events()] == ["model_cache.not_writable"]


def test_a_model_with_its_weights_inside_is_kept_whole(tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    cache = tmp_path / "cache"
    Bench(cache, directory).load()
    model = Bench(cache, directory).load()
    assert model.facts()["optimised"] == "kept"
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert model.run({"X": x}, ["Y"], {}, Cancellation())[0].tolist() == [[0.0, 2.0], [6.0, 12.0], [20.0, 30.0]]


def test_files_that_change_meanwhile_are_not_kept(tmp_path: Path) -> None:
    directory = shipped_model("mul_1", tmp_path)
    bench = Bench(tmp_path / "cache", directory)
    model_file = directory / "model.onnx"
    with turn(Cancellation()):  # nobody else works in the background
        bench.engine.load(bench.files, Cancellation(), Stages())
        os.utime(model_file, ns=(0, 0))
    bench.graphs.wait(30)
    assert bench.log.events("model_cache.stored") == []
