"""The baseline as a file, and what is known of a start before it begins."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from router.baseline_load import PRIOR, Baseline, Term
from worker.baseline import BaselineError, encode_baseline, features, raw_bytes, read_baseline
from worker.memory import Memory
from worker.store import ModelFiles

FITTED = Baseline(0.3, Term(0.1, 0.5, 1.5), Term(30, 95, 0), Term(2, 24, -0.1), 0.2, -0.25, (-0.1, 0.2), 40)


class Room:
    def read(self) -> Memory | None:
        return Memory(3_000_000_000, 4_000_000_000)


def test_a_baseline_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(encode_baseline(FITTED))
    assert read_baseline(path) == FITTED
    assert read_baseline(None) == PRIOR


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "truncated"),
        ("{}", "missing required field `schema`"),
        ('{"schema": 2, "baseline": BASELINE}', "schema 2, this is 1"),
        ('{"schema": 1, "baseline": BASELINE, "more": 1}', "unknown field `more`"),
        ('{"schema": 1, "baseline": {"intercept_s": 1}}', "missing required field `parameters`"),
        ('{"schema": 1, "baseline": FLAT}', r"term \[0.5, 0.5\]"),
        (" " * (1 << 16) + "{}", "over 65536 bytes"),
    ],
)
def test_what_is_no_baseline_is_refused(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    given = encode_baseline(FITTED).decode()
    whole = given[given.index('"baseline":') + len('"baseline":') : given.rindex("}")]
    flat = whole.replace('"low": 0.1', '"low": 0.5')
    path.write_text(text.replace("BASELINE", whole).replace("FLAT", flat))
    with pytest.raises(BaselineError, match=rf"--baseline {path}: .*{error}"):
        read_baseline(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"nowhere\.json: No such file or directory"):
        read_baseline(tmp_path / "nowhere.json")


def test_features_of_plain_files(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x" * 1000)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "more").write_bytes(b"x" * 3000)
    known = features(ModelFiles("m", "1", tmp_path), Room(), cached_ratio=0.5)
    assert (known.parameters_billions, known.saved_percent) == (1000 / 1e9, 0.0)
    assert (known.free_memory_gb, known.accelerator, known.cached_ratio) == (3.0, False, 0.5)


def test_features_of_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "model.onnx.gz").write_bytes(gzip.compress(b"x" * 100_000))
    stored = (tmp_path / "model.onnx.gz").stat().st_size
    known = features(ModelFiles("m", "1", tmp_path), None)
    assert known.parameters_billions == pytest.approx(100_000 / 4e9)
    assert known.saved_percent == pytest.approx(100 * (1 - stored / 100_000))
    assert known.free_memory_gb == 0.0


MAGIC = b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize(
    ("header", "held"),
    [
        (MAGIC + bytes([0x20, 200]) + b"rest", 200),  # one segment, size in one byte
        (MAGIC + bytes([0x60]) + (1000 - 256).to_bytes(2, "little") + b"rest", 1000),
        (MAGIC + bytes([0xA0]) + (70_000).to_bytes(4, "little") + b"rest", 70_000),
        (MAGIC + bytes([0x80, 0x58]) + (1 << 21).to_bytes(4, "little") + b"rest", 1 << 21),  # with a window
        (MAGIC + bytes([0xE1, 7]) + (1 << 33).to_bytes(8, "little") + b"rest", 1 << 33),  # with a dictionary's id
        (MAGIC + bytes([0x00, 0x58]) + b"rest", 0),  # no size
        (b"something else", 0),
        (b"", 0),
    ],
)
def test_what_a_zstandard_frame_says_it_holds(header: bytes, held: int, tmp_path: Path) -> None:
    path = tmp_path / "model.zst"
    path.write_bytes(header)
    assert raw_bytes(path) == held


def test_what_a_gzip_file_says_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "model.gz"
    path.write_bytes(zlib.compress(b"x" * 4242, wbits=31))
    assert raw_bytes(path) == 4242
    path.write_bytes(b"\x1f")
    assert raw_bytes(path) >= 0
