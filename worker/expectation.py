"""A stored answer: what a model must give for what it is asked, compared after its warm-up.

Beside ``model.yaml`` stands ``expect.json``, tensors as the protocol has them in JSON::

    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}],
     "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1, 2], "data": [2, 4]}],
     "rtol": 0.001, "atol": 0.00001}

or ``expect.npz`` with an array ``input:NAME`` or ``output:NAME`` for each. The answer is that of one run. Where the
engine is told to be deterministic, it must be equal to the bit unless the tolerances say otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from worker import json_text
from worker.engines import EngineError
from worker.paths import has_file
from worker.stored import MAX_BYTES, UNREADABLE, StoredTensor

if TYPE_CHECKING:
    from pathlib import Path

    from worker.engines import Array, Cancellation, LoadedModel
    from worker.store import ModelFiles

JSON_FILE = "expect.json"
NPZ_FILE = "expect.npz"
RTOL, ATOL = 1e-3, 1e-5
"""What numbers may differ by where nothing is pinned: kernels sum in different orders."""
Tolerance = Annotated[float, msgspec.Meta(ge=0)]


class ExpectationError(EngineError):
    """The model does not give what it should, or what it should give cannot be read; the text has both values."""


class _Json(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    outputs: Annotated[tuple[StoredTensor, ...], msgspec.Meta(min_length=1)]
    inputs: tuple[StoredTensor, ...] = ()
    rtol: Tolerance | None = None
    atol: Tolerance | None = None


class _Expected(msgspec.Struct, frozen=True):
    path: Path
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    rtol: float | None = None
    atol: float | None = None


def check_expected(model: LoadedModel, files: ModelFiles, cancellation: Cancellation) -> None:
    """Run the model once on the stored input and compare; nothing happens where none is stored. Blocks.

    Raises:
        ExpectationError: it gave something else, or the file is not as it should be.
        EngineError: the run failed.
        GivenUpError: ``cancellation`` said so.
    """
    expected = _read(files)
    if expected is None:
        return
    _check_names(expected, model)
    names = list(expected.outputs)
    exact = "deterministic" in model.facts()
    rtol = expected.rtol if expected.rtol is not None else 0.0 if exact else RTOL
    atol = expected.atol if expected.atol is not None else 0.0 if exact else ATOL
    for name, got in zip(names, model.run(expected.inputs, names, {}, cancellation), strict=True):
        _compare(f"{expected.path}: output {name!r}", expected.outputs[name], got, rtol, atol)


def _read(files: ModelFiles) -> _Expected | None:
    if files.directory is None:
        return None
    path = next((path for name in (JSON_FILE, NPZ_FILE) if has_file(path := files.directory / name)), None)
    if path is None:
        return None
    if path.stat().st_size > MAX_BYTES:
        raise ExpectationError(f"{path}: over {MAX_BYTES} bytes; store a smaller answer")
    try:
        return _read_json(path) if path.name == JSON_FILE else _read_npz(path)
    except UNREADABLE as error:
        raise ExpectationError(f"{path}: {error}") from error


def _read_json(path: Path) -> _Expected:
    said = json_text.decode(path.read_bytes(), _Json)
    arrays = [{tensor.name: tensor.array() for tensor in tensors} for tensors in (said.inputs, said.outputs)]
    return _Expected(path, arrays[0], arrays[1], said.rtol, said.atol)


def _read_npz(path: Path) -> _Expected:
    inputs: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    with np.load(path, allow_pickle=False) as stored:
        for key in stored.files:
            kind, _, name = key.partition(":")
            if kind not in ("input", "output") or not name:
                raise ValueError(f"array {key!r}: name arrays input:NAME and output:NAME")
            (inputs if kind == "input" else outputs)[name] = stored[key]
    if not outputs:
        raise ValueError("no array output:NAME")
    return _Expected(path, inputs, outputs)


def _check_names(expected: _Expected, model: LoadedModel) -> None:
    for kind, given, known in (
        ("input", expected.inputs, [spec.name for spec in model.inputs]),
        ("output", expected.outputs, [spec.name for spec in model.outputs]),
    ):
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ExpectationError(
                f"{expected.path}: {kind} {unknown[0]!r} is not the model's; it has {', '.join(known)}"
            )
    missing = sorted({spec.name for spec in model.inputs} - set(expected.inputs))
    if missing:
        raise ExpectationError(f"{expected.path}: input {missing[0]!r} is missing")


def _compare(where: str, expected: Array, got: Array, rtol: float, atol: float) -> None:
    if expected.shape != got.shape or expected.dtype != got.dtype:
        raise ExpectationError(
            f"{where}: expected {expected.dtype} {list(expected.shape)}, got {got.dtype} {list(got.shape)}"
        )
    if expected.dtype.kind == "f":
        same = np.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    else:
        same = np.asarray(got == expected)
    if same.all():
        return
    first = tuple(int(place) for place in np.argwhere(~same)[0]) if same.ndim else ()
    allowed = f" by more than {atol:g} + {rtol:g} of the expected" if expected.dtype.kind == "f" and rtol + atol else ""
    raise ExpectationError(
        f"{where}{list(first)}: expected {expected[first]}, got {got[first]};"
        f" {int((~same).sum())} of {same.size} values differ{allowed}"
    )
