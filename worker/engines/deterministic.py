"""An engine for tests and drills: loading and executing take as long as they are told to, and outputs echo the inputs.

It needs no file. Where a version's ``model.yaml`` says nothing else it takes one tensor ``INPUT0``, FP32 of shape
[-1, -1], and gives it back as ``OUTPUT0``. Its ``engine`` options::

    engine: {inputs: [{name: INPUT0, datatype: INT32, shape: [-1, 4]}]}

Output k echoes input k, under the name ``OUTPUTk``. A request's parameter ``service_ms`` overrides the service time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from worker.datatypes import Datatype
from worker.engines import EngineError, InputError, TensorSpec
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, Cancellation, Engine, Parameters
    from worker.engines.registry import EngineSettings
    from worker.stages import Stages
    from worker.store import ModelFiles

MAX_SERVICE_MS = 600_000


class _Tensor(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...]


class _Options(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    inputs: Annotated[tuple[_Tensor, ...], msgspec.Meta(min_length=1, max_length=64)] = (
        _Tensor("INPUT0", Datatype.FP32, (-1, -1)),
    )


class DeterministicModel:
    """A model that echoes. ``executions`` counts runs begun, warm-up runs included."""

    platform = "warmroute_deterministic"
    device = "none"

    def __init__(self, inputs: tuple[TensorSpec, ...], service_s: float) -> None:
        self.inputs = inputs
        self.outputs = tuple(TensorSpec(f"OUTPUT{k}", spec.datatype, spec.shape) for k, spec in enumerate(inputs))
        self._service_s = service_s
        self._lock = threading.Lock()
        self._executions = 0
        self._source = {out.name: spec.name for out, spec in zip(self.outputs, inputs, strict=True)}

    @property
    def executions(self) -> int:
        """Runs begun so far."""
        return self._executions

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        """Wait the service time and give the inputs back; see :class:`worker.engines.LoadedModel`."""
        with self._lock:
            self._executions += 1
        service_s = self._service_s
        if "service_ms" in parameters:
            value = parameters["service_ms"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SERVICE_MS:
                raise InputError(f"parameter 'service_ms': {value!r}: expected a number from 0 to {MAX_SERVICE_MS}")
            service_s = value / 1000
        cancellation.wait(service_s)
        return [inputs[self._source[name]] for name in outputs]

    def facts(self) -> Mapping[str, Any]:
        """Nothing to add."""
        return {}

    def unload(self) -> None:
        """Nothing to give back."""


class DeterministicEngine:
    """See this module's text."""

    def __init__(self, load_s: float, service_s: float) -> None:
        self._load_s = load_s
        self._service_s = service_s

    def initialize(self, models: Sequence[ModelFiles]) -> None:
        """No device to bring up."""

    def memory(self) -> None:
        """The host's."""

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> DeterministicModel:
        """Wait the load time; see :class:`worker.engines.Engine`."""
        try:
            options = msgspec.convert(files.options, _Options)
        except msgspec.ValidationError as error:
            raise EngineError(f"{files.directory}/model.yaml: engine: {error}") from error
        with stages.measure(Stage.CREATE):
            cancellation.wait(self._load_s)
        return DeterministicModel(
            tuple(TensorSpec(tensor.name, tensor.datatype, tensor.shape) for tensor in options.inputs),
            self._service_s,
        )


def make_engine(settings: EngineSettings) -> Engine:
    """Build the engine from a worker's options."""
    return DeterministicEngine(settings.load_s, settings.service_s)
