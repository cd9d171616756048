"""The warm-up: one real run for each declared shape class. Only when all have succeeded is a replica warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.datatypes import zeros
from worker.engines import EngineError
from worker.store import ShapeClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines import Array, Cancellation, LoadedModel, TensorSpec
    from worker.store import ModelFiles

DEFAULT_CLASS = ShapeClass("batch-1")
"""Where a model declares none: its inputs' own shapes, with 1 for every dimension that varies."""


class WarmupError(Exception):
    """A warm-up run failed; the text names the shape class and the reason."""


def shape_classes(files: ModelFiles) -> tuple[ShapeClass, ...]:
    """Return what must be proven before ``files`` counts as warm."""
    return files.warmup or (DEFAULT_CLASS,)


def warm_up(
    model: LoadedModel,
    classes: tuple[ShapeClass, ...],
    cancellation: Cancellation,
    proven: Callable[[ShapeClass], None],
) -> None:
    """Run the model once per shape class, on zeros; calls ``proven`` after each. Blocks.

    Raises:
        WarmupError: a run failed, gave another number of outputs than it should, or a class does not fit the model.
        GivenUpError: ``cancellation`` said so.
    """
    names = [spec.name for spec in model.outputs]
    for shape_class in classes:
        inputs = _inputs(model, shape_class)
        try:
            outputs = model.run(inputs, names, {}, cancellation)
        except EngineError as error:
            if cancellation.cancelled:
                raise
            raise WarmupError(f"warm-up run {shape_class.name!r} failed: {error}") from error
        if len(outputs) != len(names):
            raise WarmupError(f"warm-up run {shape_class.name!r} gave {len(outputs)} outputs, not {len(names)}")
        proven(shape_class)


def _inputs(model: LoadedModel, shape_class: ShapeClass) -> dict[str, Array]:
    known = {spec.name for spec in model.inputs}
    unknown = sorted(set(shape_class.shapes) - known)
    if unknown:
        raise WarmupError(
            f"warm-up {shape_class.name!r}: input {unknown[0]!r} is not the model's; it has {', '.join(sorted(known))}"
        )
    return {spec.name: zeros(spec.datatype, _shape(spec, shape_class)) for spec in model.inputs}


def _shape(spec: TensorSpec, shape_class: ShapeClass) -> tuple[int, ...]:
    shape = shape_class.shapes.get(spec.name)
    if shape is None:
        return tuple(1 if dim == -1 else dim for dim in spec.shape)
    if len(shape) != len(spec.shape) or any(
        want not in (-1, given) for want, given in zip(spec.shape, shape, strict=True)
    ):
        raise WarmupError(
            f"warm-up {shape_class.name!r}: input {spec.name!r}: expected shape {list(spec.shape)}, given {list(shape)}"
        )
    return shape
