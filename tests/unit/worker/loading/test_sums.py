from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.models import NO_FILE, put_no_file
from tests.support.worker_parts import ReadableLog
from worker.engines import Cancellation
from worker.loading import HashedFrom, Loaded, LoadError, StrategyName, Verify
from worker.loading.hash_cache import HashCache
from worker.loading.model_loader import STRATEGIES, ModelLoader
from worker.loading.settings import LoadDescription
from worker.stages import Stages
from worker.store import ModelFiles

ABC = hashlib.sha256(b"abc").hexdigest()
PART = hashlib.sha256(b"part").hexdigest()
EMPTY = hashlib.sha256(b"").hexdigest()
REMEDY = "bring the file again, or correct what is said of it"
BOTH = f"{ABC}  model.onnx\n{PART} *./weights/part\n\n"


class Summed:
    """A version of two files whose directory has a SHA256SUMS of the given text."""

    def __init__(self, tmp_path: Path, text: str | bytes = BOTH, described: dict[str, str] | None = None) -> None:
        self.described = described or {}
        self.directory = tmp_path / "v"
        (self.directory / "weights").mkdir(parents=True)
        (self.directory / "model.onnx").write_bytes(b"abc")
        (self.directory / "weights" / "part").write_bytes(b"part")
        (self.directory / "SHA256SUMS").write_bytes(text if isinstance(text, bytes) else text.encode())
        (tmp_path / "shm").mkdir()
        self.hashes = HashCache(tmp_path / "shm", ReadableLog(), wall_ns=lambda: 1 << 62)

    def load(self, verify: Verify = Verify.CACHED, strategy: StrategyName = StrategyName.FULL) -> Loaded:
        files = ModelFiles("m", "1", self.directory, sha256=self.described, load=LoadDescription(strategy, verify))
        return ModelLoader(cache=self.hashes).load(files, lambda *_: None, Cancellation(), Stages())

    def refusal(self, verify: Verify = Verify.CACHED, strategy: StrategyName = StrategyName.FULL) -> str:
        with pytest.raises(LoadError) as caught:
            self.load(verify, strategy)
        return str(caught.value)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_files_are_compared_with_their_sums_and_once(tmp_path: Path, strategy: StrategyName) -> None:
    summed = Summed(tmp_path)
    first = summed.load(strategy=strategy)
    again = summed.load(strategy=strategy)
    assert (first.hashed_from, again.hashed_from) == (HashedFrom.BYTES, HashedFrom.CACHE)
    assert first.content_hash == again.content_hash
    assert summed.load(Verify.ALWAYS, strategy).content_hash == first.content_hash


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_damaged_file_is_refused_each_time(tmp_path: Path, strategy: StrategyName) -> None:
    summed = Summed(tmp_path)
    (summed.directory / "weights" / "part").write_bytes(b"pert")
    found = hashlib.sha256(b"pert").hexdigest()
    said = (
        f"{summed.directory}/weights/part: its SHA-256 is {found}, and {summed.directory}/SHA256SUMS says {PART}; "
        f"bring the file again, or correct what is said of it"
    )
    assert summed.refusal(strategy=strategy) == said
    assert summed.refusal(strategy=strategy) == said


def test_what_was_hashed_before_there_were_sums_is_read_for_them(tmp_path: Path) -> None:
    summed = Summed(tmp_path, "")
    first = summed.load()
    (summed.directory / "SHA256SUMS").write_text(f"{PART}  model.onnx\n")
    assert summed.refusal().startswith(f"{summed.directory}/model.onnx: its SHA-256 is {ABC}, and ")
    (summed.directory / "SHA256SUMS").write_text(f"{ABC}  model.onnx\n")
    assert summed.load().content_hash == first.content_hash
    (summed.directory / "SHA256SUMS").write_text(f"{PART}  model.onnx\n")
    assert "its SHA-256 is" in summed.refusal(), "the sum that is remembered does not fit"


def test_a_manifest_that_is_believed_saves_the_reading_and_is_equal_everywhere(tmp_path: Path) -> None:
    summed = Summed(tmp_path)
    (summed.directory / "weights" / "part").write_bytes(b"nobody looks")
    loaded = summed.load(Verify.MANIFEST, StrategyName.MMAP)
    assert (loaded.hashed_from, loaded.bytes_read) == (HashedFrom.MANIFEST, 0)
    (summed.directory / "SHA256SUMS").write_text(f"{PART}  weights/part\n{ABC.upper()}  model.onnx\n")
    assert summed.load(Verify.MANIFEST).content_hash == loaded.content_hash
    (summed.directory / "SHA256SUMS").write_text(f"{ABC}  weights/part\n{ABC}  model.onnx\n")
    assert summed.load(Verify.MANIFEST).content_hash != loaded.content_hash


@pytest.mark.parametrize(
    ("text", "described", "error"),
    [
        ("abc  model.onnx", {}, "{d}/SHA256SUMS: line 1: 'abc  model.onnx': expected SHA-256, two spaces, name"),
        (f"{ABC}  a\n{PART}  a", {}, "{d}/SHA256SUMS: line 2: 'a' is there twice, with different sums"),
        (
            f"\n{ABC}  ../x",
            {},
            "{d}/SHA256SUMS: line 2: '../x': name a file of this version, relative to its directory",
        ),
        (f"{ABC}  /x", {}, "{d}/SHA256SUMS: line 1: '/x': name a file of this version, relative to its directory"),
        (f"{ABC}  gone", {}, "{d}/gone: No such file or directory; {d}/SHA256SUMS has a SHA-256 for it"),
        ("", {"gone": ABC}, "{d}/gone: No such file or directory; {d}/model.yaml has a SHA-256 for it"),
        (
            f"{ABC}  model.yaml",
            {},
            f"{{d}}/model.yaml: its SHA-256 is {EMPTY}, and {{d}}/SHA256SUMS says {ABC}; {REMEDY}",
        ),
        (
            "",
            {"weights/part": ABC},
            f"{{d}}/weights/part: its SHA-256 is {PART}, and {{d}}/model.yaml says {ABC}; {REMEDY}",
        ),
        (
            f"{ABC}  model.onnx",
            {"model.onnx": PART},
            f"{{d}}/model.onnx: {{d}}/model.yaml says SHA-256 {PART}, and {{d}}/SHA256SUMS says {ABC}",
        ),
    ],
)
def test_what_is_wrong_is_named_with_who_says_so(
    tmp_path: Path, text: str, described: dict[str, str], error: str
) -> None:
    summed = Summed(tmp_path, text, described)
    (summed.directory / "model.yaml").touch()
    assert summed.refusal() == error.format(d=summed.directory)


def test_sums_that_are_no_text_are_refused(tmp_path: Path) -> None:
    assert "SHA256SUMS: not UTF-8: " in Summed(tmp_path, b"\xff\xfe").refusal()


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_sums_that_are_no_file_are_not_passed_over(tmp_path: Path, what: str) -> None:
    summed = Summed(tmp_path, "")
    path = summed.directory / "SHA256SUMS"
    path.unlink()
    put_no_file(path, what)
    assert summed.refusal() == f"{path}: {NO_FILE}"


def test_what_model_yaml_says_is_as_good(tmp_path: Path) -> None:
    summed = Summed(tmp_path, "# of yesterday\n", {"model.onnx": ABC, "weights/part": PART})
    assert summed.load().hashed_from is HashedFrom.BYTES
    assert summed.load(Verify.MANIFEST).hashed_from is HashedFrom.MANIFEST


def test_a_manifest_to_believe_must_be_whole(tmp_path: Path) -> None:
    summed = Summed(tmp_path, f"{ABC}  model.onnx")
    assert summed.refusal(Verify.MANIFEST) == (
        f"{summed.directory}/weights/part: load.verify is manifest, and neither SHA256SUMS nor files in model.yaml has "
        f"a SHA-256 for it; add it (sha256sum writes it), or set load.verify to cached"
    )
