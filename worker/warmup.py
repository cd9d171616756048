"""The warm-up: one real run for each shape class. Only when all have succeeded is a replica warm.

What a description declares must fit the model. What was recorded of callers is passed over where it does not fit by
now, because nobody has said that it must; where none of it does, inputs are made as if nothing had been recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from worker.datatypes import NUMPY, Datatype, zeros
from worker.engines import EngineError, InputError, contained
from worker.store import ShapeClass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from worker.engines import Array, Cancellation, LoadedModel, TensorSpec
    from worker.store import ModelFiles

DEFAULT_CLASS = ShapeClass("batch-1")
"""Where a model declares none: its inputs' own shapes, with 1 for every dimension that varies."""


class WarmupError(Exception):
    """A warm-up run failed; the text names the shape class and the reason."""


class UnfitError(WarmupError):
    """The inputs of a shape class are none that the model takes."""


def shape_classes(files: ModelFiles) -> tuple[ShapeClass, ...]:
    """Return what must be proven before ``files`` counts as warm, if all that was recorded fits the model."""
    return files.warmup or (DEFAULT_CLASS,)


def warm_up(
    model: LoadedModel,
    classes: tuple[ShapeClass, ...],
    cancellation: Cancellation,
    proven: Callable[[ShapeClass], None] = lambda _: None,
    passed_over: Callable[[ShapeClass, str], None] = lambda *_: None,
) -> tuple[ShapeClass, ...]:
    """Run the model once per shape class, on its stored or made inputs; calls ``proven`` after each. Blocks.

    Of recorded ones that the model does not take, ``passed_over`` is told instead, with the reason.

    Returns:
        What was proven: ``classes`` without those, or the default one where none is left.

    Raises:
        WarmupError: a run failed, gave another number of outputs than it should, or a class does not fit the model.
        GivenUpError: ``cancellation`` said so.
    """
    done = []
    for shape_class in classes:
        try:
            _prove(model, shape_class, cancellation)
        except UnfitError as error:
            if not shape_class.recorded:
                raise
            passed_over(shape_class, str(error))
        else:
            proven(shape_class)
            done.append(shape_class)
    if done:
        return tuple(done)
    _prove(model, DEFAULT_CLASS, cancellation)
    proven(DEFAULT_CLASS)
    return (DEFAULT_CLASS,)


def _prove(model: LoadedModel, shape_class: ShapeClass, cancellation: Cancellation) -> None:
    names = [spec.name for spec in model.outputs]
    inputs = class_inputs(model, shape_class)
    try:
        outputs = contained(model.run, inputs, names, {}, cancellation)
    except EngineError as error:
        if cancellation.cancelled:
            raise
        kind = UnfitError if isinstance(error, InputError) else WarmupError
        raise kind(f"warm-up run {shape_class.name!r} failed: {error}") from error
    except MemoryError as error:
        raise WarmupError(f"warm-up run {shape_class.name!r} failed: out of memory: {error}") from error
    if len(outputs) != len(names):
        raise WarmupError(f"warm-up run {shape_class.name!r} gave {len(outputs)} outputs, not {len(names)}")


def runs(model: LoadedModel, classes: tuple[ShapeClass, ...]) -> int:
    """Return how many runs :func:`warm_up` will make, as far as the model's signature says. Reads what was recorded."""

    def fits(shape_class: ShapeClass) -> bool:
        try:
            class_inputs(model, shape_class)
        except UnfitError:
            return False
        return True

    return sum(not one.recorded or fits(one) for one in classes) or 1


def class_inputs(model: LoadedModel, shape_class: ShapeClass) -> dict[str, Array]:
    """Return the inputs that a run of ``shape_class`` takes.

    Raises:
        UnfitError: the class does not fit the model, or its file cannot be read.
    """
    known = {spec.name for spec in model.inputs}
    stored = None if shape_class.file is None else _stored(shape_class, shape_class.file)
    unknown = sorted(set(shape_class.shapes if stored is None else stored) - known)
    if unknown:
        raise UnfitError(
            f"warm-up {shape_class.name!r}: input {unknown[0]!r} is not the model's; it has {', '.join(sorted(known))}"
        )
    if stored is None:
        return {spec.name: _made(spec, _shape(spec, shape_class), shape_class) for spec in model.inputs}
    for spec in model.inputs:
        if spec.name not in stored:
            raise UnfitError(f"warm-up {shape_class.name!r}: {shape_class.file}: input {spec.name!r} is missing")
        array = stored[spec.name]
        _check_shape(spec, array.shape, shape_class)
        if array.dtype != NUMPY[spec.datatype]:
            raise UnfitError(
                f"warm-up {shape_class.name!r}: {shape_class.file}: input {spec.name!r}: "
                f"expected {NUMPY[spec.datatype]}, given {array.dtype}"
            )
    return stored


def _stored(shape_class: ShapeClass, path: Path) -> dict[str, Array]:
    from worker.stored import read_inputs

    try:
        return read_inputs(path)
    except (OSError, ValueError) as error:
        raise UnfitError(f"warm-up {shape_class.name!r}: {path}: {error}") from error


def _made(spec: TensorSpec, shape: tuple[int, ...], shape_class: ShapeClass) -> Array:
    """Make an input.

    Raises:
        UnfitError: it is larger than memory.
    """
    try:
        return _filled(spec, shape, shape_class)
    except (MemoryError, ValueError, OverflowError) as error:
        raise UnfitError(
            f"warm-up {shape_class.name!r}: input {spec.name!r}: shape {list(shape)} is too big: {error}; name a "
            f"smaller one, of a size that callers send"
        ) from error


def _filled(spec: TensorSpec, shape: tuple[int, ...], shape_class: ShapeClass) -> Array:
    """Make an input. Random ones are the same at each start: small whole numbers, or fractions below 1."""
    if shape_class.fill == "zeros" or spec.datatype is Datatype.BYTES:
        return zeros(spec.datatype, shape)
    kind = NUMPY[spec.datatype]
    if spec.datatype is Datatype.BF16:  # bit patterns: 0x3F80 is 1.0, and 0x3C00 to 0x3F7F lie below it
        if shape_class.fill == "ones":
            return np.full(shape, 0x3F80, kind)
        return _generator(spec, shape_class).integers(0x3C00, 0x3F80, shape, kind)
    if shape_class.fill == "ones":
        return np.ones(shape, kind)
    rng = _generator(spec, shape_class)
    return rng.random(shape).astype(kind) if spec.datatype.floating else rng.integers(0, 2, shape).astype(kind)


def _generator(spec: TensorSpec, shape_class: ShapeClass) -> np.random.Generator:
    return np.random.default_rng(list(f"{shape_class.name}\0{spec.name}".encode()))


def _shape(spec: TensorSpec, shape_class: ShapeClass) -> tuple[int, ...]:
    shape = shape_class.shapes.get(spec.name)
    if shape is None:
        return tuple(1 if dim == -1 else dim for dim in spec.shape)
    _check_shape(spec, shape, shape_class)
    return shape


def _check_shape(spec: TensorSpec, shape: tuple[int, ...], shape_class: ShapeClass) -> None:
    if len(shape) != len(spec.shape) or any(
        want not in (-1, given) for want, given in zip(spec.shape, shape, strict=True)
    ):
        raise UnfitError(
            f"warm-up {shape_class.name!r}: input {spec.name!r}: expected shape {list(spec.shape)}, given {list(shape)}"
        )
