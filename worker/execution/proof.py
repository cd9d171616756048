"""Whether a model that asks for batching can have it, found out before it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.engines import EngineError
from worker.execution.joining import NotRowsError, check_signature, join, split
from worker.warmup import class_inputs, shape_classes

if TYPE_CHECKING:
    from worker.engines import Cancellation, LoadedModel
    from worker.store import ModelFiles


def check_batching(model: LoadedModel, files: ModelFiles, cancellation: Cancellation) -> None:
    """Do nothing where joined requests to ``model`` come apart again. Blocks.

    Each shape class is run twice joined, after its warm-up run.

    Raises:
        EngineError: they do not; says what to do.
        GivenUpError: ``cancellation`` said so.
    """
    where = f"{files.directory}/model.yaml: batching"
    check_signature(model, where)
    names = [spec.name for spec in model.outputs]
    for shape_class in shape_classes(files):
        inputs = class_inputs(model, shape_class)
        rows = next(iter(inputs.values())).shape[0]
        if any(array.shape[0] != rows for array in inputs.values()):
            continue  # such requests run alone
        arrays = model.run(join([inputs, inputs]), names, {}, cancellation)
        try:
            split(arrays, [rows, rows])
        except NotRowsError as error:
            raise EngineError(
                f"{where}: two requests of shape class {shape_class.name!r}, joined, gave {error}; only models that"
                " give one row for each they take can be batched; take batching away"
            ) from error
