"""Whether a model that asks for batching can have it, found out before it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from worker.datatypes import NUMPY, Datatype
from worker.engines import EngineError
from worker.execution.joining import NotRowsError, check_signature, join, split
from worker.expectation import ATOL, RTOL
from worker.warmup import class_inputs, shape_classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.engines import Array, Cancellation, LoadedModel
    from worker.store import ModelFiles, ShapeClass

RTOL_16: Final = 1e-2
"""What numbers of 16 bits may differ by: they have three digits, and sums of them fewer."""


def check_batching(
    model: LoadedModel, files: ModelFiles, cancellation: Cancellation, classes: Sequence[ShapeClass] = ()
) -> None:
    """Do nothing where joined requests to ``model`` come apart again, each with what it gets alone. Blocks.

    ``classes``: those that its warm-up has proven; none: what ``files`` declare. Each is run once more, once with
    other values, and once with both joined.

    Raises:
        EngineError: they do not; says what to do.
        GivenUpError: ``cancellation`` said so.
    """
    where = f"{files.directory}/model.yaml: batching"
    check_signature(model, where)
    names = [spec.name for spec in model.outputs]

    def run(inputs: dict[str, Array]) -> list[Array]:
        return model.run(inputs, names, {}, cancellation)

    for shape_class in classes or shape_classes(files):
        inputs = class_inputs(model, shape_class)
        rows = next(iter(inputs.values())).shape[0]
        if any(array.shape[0] != rows for array in inputs.values()):
            continue  # such requests run alone
        requests = [inputs, _others(model, inputs)]
        alone = [run(inputs)]
        try:
            alone.append(run(requests[1]))
        except EngineError:
            if cancellation.cancelled:
                raise
            requests[1] = inputs  # it takes not just any values
            alone.append(alone[0])
        try:
            parts = split(run(join(requests)), [rows, rows])
        except NotRowsError as error:
            raise EngineError(
                f"{where}: two requests of shape class {shape_class.name!r}, joined, gave {error}; only models that"
                " give one row for each they take can be batched; take batching away"
            ) from error
        found = _first_difference(model, alone, parts)
        if found is not None and _first_difference(model, alone[:1], [run(inputs)]) is None:
            raise EngineError(
                f"{where}: two requests of shape class {shape_class.name!r}, joined, gave {found}; only models of which"
                " each row of an answer depends on its own row of the inputs can be batched; take batching away"
            )


def _others(model: LoadedModel, inputs: dict[str, Array]) -> dict[str, Array]:
    """Return inputs of the same shapes, each of whose values is another one, where the datatype has any to be sure of.

    Whole numbers become 0 or 1, which most models take that are asked for a row, a token or a mask.
    """
    others: dict[str, Array] = {}
    rng = np.random.default_rng(1)
    for spec in model.inputs:
        array = inputs[spec.name]
        shape: tuple[int, ...] = array.shape
        kind = NUMPY[spec.datatype]
        if spec.datatype is Datatype.BYTES:
            others[spec.name] = array
        elif spec.datatype is Datatype.BF16:  # bit patterns: 0x3F00 to 0x3F7F are 0.5 to 1
            others[spec.name] = rng.integers(0x3F00, 0x3F80, shape, kind)
        elif spec.datatype.floating:
            others[spec.name] = rng.uniform(0.5, 1.0, shape).astype(kind)
        else:
            others[spec.name] = (array == 0).astype(kind)
    return others


def _first_difference(model: LoadedModel, alone: Sequence[list[Array]], parts: Sequence[list[Array]]) -> str | None:
    """Return in words the first value that a request got alone and not joined; None: there is none."""
    for single, joined in zip(alone, parts, strict=True):
        for spec, expected, got in zip(model.outputs, single, joined, strict=True):
            if expected.shape != got.shape:
                return f"output {spec.name!r} of shape {list(got.shape)} where it is {list(expected.shape)} alone"
            same = _same(spec.datatype, expected, got)
            if not same.all():
                place = tuple(int(at) for at in np.argwhere(~same)[0])
                return f"output {spec.name!r}{list(place)} {got[place]} where it is {expected[place]} alone"
    return None


def _same(datatype: Datatype, expected: Array, got: Array) -> Array:
    """Return which values are the same but for the order in which sums were made, which changes with the rows."""
    if datatype is Datatype.BF16:
        expected, got = (_widened(array) for array in (expected, got))
    elif not datatype.floating:
        return np.asarray(expected == got)
    finite = np.abs(expected[np.isfinite(expected)])
    largest = float(finite.max()) if finite.size else 0.0
    share = RTOL_16 if NUMPY[datatype].itemsize == 2 else RTOL
    return np.asarray(np.isclose(got, expected, rtol=0.0, atol=ATOL + share * largest, equal_nan=True))


def _widened(array: Array) -> Array:
    """Return bit patterns of BF16 as the numbers that they are."""
    return (array.astype(np.uint32) << 16).view(np.float32)
