"""The baseline of the cold-start bench: a fresh process, ``InferenceSession(path)``, one run. Nothing of warmroute.

``python plain.py MODEL.onnx SHAPES UNPACKS [PROVIDER ...]``: ``SHAPES`` is a JSON object of input shapes by name,
``UNPACKS`` one of packed files and where to they are unpacked before the session is made; providers are left to ONNX
Runtime where none is named. One JSON line on standard output says how long each step took; then each line on standard
input is a number of seconds to run on for, answered with a JSON list of what each run took, in seconds.
"""

from __future__ import annotations

import time

_began = time.perf_counter()

import json  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

_CHUNK_BYTES = 1 << 20
_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}


def shape_of(value: Any, shapes: dict[str, list[int]]) -> list[int]:
    """Return the shape that an input is given: what was asked for, or the model's own with 1 for what varies."""
    own = [dim if isinstance(dim, int) and dim >= 0 else 1 for dim in value.shape]
    return shapes.get(value.name, own)


def unpack(packed: str, place: str) -> None:
    """Write what a ``.gz`` or ``.zst`` holds to a file that is not there yet."""
    opened: Any
    with open(packed, "rb") as stored, open(place, "xb") as file:
        if packed.endswith(".gz"):
            import gzip

            opened = gzip.GzipFile(fileobj=stored)
        else:
            import zstandard

            opened = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(stored, read_across_frames=True)
        with opened:
            shutil.copyfileobj(opened, file, _CHUNK_BYTES)


def main() -> None:
    """Load, run once, tell; then run on as asked."""
    imported = time.perf_counter()
    unpacks = json.loads(sys.argv[3])
    for packed, place in unpacks.items():
        unpack(packed, place)
    unpacked = time.perf_counter()
    session = ort.InferenceSession(sys.argv[1], providers=sys.argv[4:] or None)
    created = time.perf_counter()
    shapes = json.loads(sys.argv[2])
    inputs = {value.name: np.zeros(shape_of(value, shapes), _TYPES[value.type]) for value in session.get_inputs()}
    session.run(None, inputs)
    answered = time.perf_counter()
    said = {"imports": imported - _began, "create": created - unpacked, "first_answer": answered - created}
    if unpacks:
        said["decompress"] = unpacked - imported
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        until = time.perf_counter() + float(line)
        took = []
        while (now := time.perf_counter()) < until:
            session.run(None, inputs)
            took.append(time.perf_counter() - now)
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
