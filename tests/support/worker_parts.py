"""Parts that the worker's tests put together: a log to read back, and a double of an engine's model."""

from __future__ import annotations

import io
import json
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from worker.datatypes import Datatype
from worker.engines import Cancellation, TensorSpec
from worker.loading import Loaded
from worker.log import EventLog
from worker.stages import Stages
from worker.store import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, Parameters
    from worker.loading import Progress

X = TensorSpec("x", Datatype.FP32, (-1, 2))
Y = TensorSpec("y", Datatype.FP32, (-1, 2))


class ReadableLog(EventLog):
    """A log whose events can be read back."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        super().__init__(self._out)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the events written so far, of one name where it is given."""
        rows = [json.loads(line) for line in self._out.getvalue().splitlines()]
        return [row for row in rows if name in ("", row["event"])]


class DoublingModel:
    """A model that gives twice its first input. ``error`` is raised by every run; ``hold`` blocks runs until set.

    ``keeps`` is raised by :meth:`unload`.
    """

    platform = "test"
    device = "test"

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...] = (X,),
        outputs: tuple[TensorSpec, ...] = (Y,),
        error: BaseException | None = None,
        hold: threading.Event | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.error = error
        self.hold = hold
        self.ran: list[dict[str, Array]] = []
        self.parameters: list[Parameters] = []
        self.cancelled = 0
        self.closed = False
        self.keeps: BaseException | None = None

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        self.ran.append(dict(inputs))
        self.parameters.append(parameters)
        if self.error is not None:
            raise self.error
        while self.hold is not None and not self.hold.wait(0.01):
            if cancellation.cancelled:
                self.cancelled += 1
                cancellation.wait(0)
        return [self.compute(inputs[self.inputs[0].name]) for _ in outputs]

    def compute(self, values: Array) -> Array:
        return np.asarray(values * 2)

    def facts(self) -> Mapping[str, Any]:
        return {}

    def unload(self) -> None:
        self.closed = True
        if self.keeps is not None:
            raise self.keeps


class EchoingModel(DoublingModel):
    """Gives its first input back, whatever its datatype."""

    def compute(self, values: Array) -> Array:
        return values


class FixedEngine:
    """An engine whose every load gives ``model``, or raises ``error``; blocks while ``hold`` is not set."""

    def __init__(
        self, model: DoublingModel, error: BaseException | None = None, hold: threading.Event | None = None
    ) -> None:
        self.model = model
        self.error = error
        self.hold = hold

    def initialize(self, models: Sequence[ModelFiles]) -> None:
        pass

    def memory(self) -> None:
        return None

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> DoublingModel:
        while self.hold is not None and not self.hold.is_set():
            cancellation.wait(0.005)
        if self.error is not None:
            raise self.error
        return self.model


class EmptyLoader:
    """A loader with nothing to read, or that raises ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def load(self, files: ModelFiles, progress: Progress, cancellation: Cancellation, stages: Stages) -> Loaded:
        progress(0, 10)
        if self.error is not None:
            raise self.error
        progress(10, 10)
        return Loaded("abc", 10)


def shipped_model(name: str, directory: Path) -> Path:
    """Copy one of the small models that ONNX Runtime ships into ``directory/NAME/1/``; returns that directory.

    ``mul_1`` multiplies X, FP32 [3, 2], by 1 to 6; ``sigmoid`` takes x, FP32 [3, 4, 5]; ``logreg_iris`` has an output
    that no datatype of the protocol can carry.
    """
    target = directory / name / "1"
    target.mkdir(parents=True)
    source = Path(onnxruntime.__file__).parent / "datasets" / f"{name}.onnx"
    shutil.copyfile(source, target / "model.onnx")
    return target
