from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from worker import json_text
from worker.datatypes import Datatype
from worker.serving.tensors import PIECE_ELEMENTS, encode

ROOT = Path(__file__).parents[3]
ENCODES = re.compile(r"msgspec\.json\.(encode|Encoder)\b")
STARVED = """
import resource
from worker import json_text
value = [float(number) for number in range(1 << 18)]
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 65536, resource.RLIM_INFINITY))
try:
    json_text.encode(value)
except MemoryError:
    print("MemoryError")
"""


def test_it_is_json() -> None:
    value = {"b": [1, 2.5, None], "a": "ü"}
    assert json_text.encode(value) == msgspec.json.encode(value)
    assert json_text.encode_sorted(value) == msgspec.json.encode(value, order="sorted")


@pytest.mark.parametrize(
    "elements", [1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 2 * PIECE_ELEMENTS, 3 * PIECE_ELEMENTS - 1]
)
def test_a_tensor_that_is_written_in_pieces_is_written_whole(elements: int) -> None:
    array = np.arange(elements, dtype=np.float32)
    text = json_text.encode(encode("y", Datatype.FP32, array))
    assert msgspec.json.decode(text)["data"] == array.tolist()


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
def test_without_memory_it_is_an_error() -> None:
    found = subprocess.run(
        [sys.executable, "-c", STARVED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout) == (0, "MemoryError\n"), found


def test_a_worker_writes_no_json_by_itself() -> None:
    """It would end where there is no memory for it."""
    others = {"worker/json_text.py", "worker/baseline.py"}  # the second is a tool's, not the worker's
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "worker").rglob("*.py")
        if "bench" not in path.parts and ENCODES.search(path.read_text(encoding="utf-8"))
    }
    assert found - others == set()
