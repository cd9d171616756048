"""What a worker says of itself and of its models, as the protocol and its extensions write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.datatypes import Datatype

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines import LoadedModel, TensorSpec
    from worker.models import Models
    from worker.replica import HeldReplica

EXTENSIONS = (
    "classification",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "model_configuration",
    "model_repository",
)
"""By the names that Triton gives them."""
_BACKENDS = {"onnxruntime_onnx": "onnxruntime"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers."""

    id: str
    epoch: str
    read_version: Callable[[], str]

    @property
    def version(self) -> str:
        """The program's version; read when somebody asks, because that takes a while."""
        return self.read_version()

    def metadata(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return {"name": "warmroute-worker", "version": self.version, "extensions": list(EXTENSIONS)}


def metadata(models: Models, replica: HeldReplica, model: LoadedModel) -> dict[str, Any]:
    """Return a model's metadata."""
    return {
        "name": replica.name,
        "versions": _versions(models, replica),
        "platform": model.platform,
        "inputs": [_tensor(spec) for spec in model.inputs],
        "outputs": [_tensor(spec) for spec in model.outputs],
    }


def configuration(models: Models, replica: HeldReplica, model: LoadedModel) -> dict[str, Any]:
    """Return a model's configuration in Triton's form. Shapes are whole: batches are no dimension beside them."""
    said: dict[str, Any] = {
        "name": replica.name,
        "platform": model.platform,
        "backend": _BACKENDS.get(model.platform, model.platform),
        "version_policy": {"specific": {"versions": [int(version) for version in _versions(models, replica)]}},
        "max_batch_size": 0,
        "input": [_configured(spec) for spec in model.inputs],
        "output": [_configured(spec) for spec in model.outputs],
    }
    if replica.files.model_file is not None:
        said["default_model_filename"] = replica.files.model_file.name
    return said


def statistics(replicas: list[HeldReplica]) -> dict[str, Any]:
    """Return the statistics of model versions."""
    return {"model_stats": [replica.statistics.shown(replica.name, replica.version) for replica in replicas]}


def _versions(models: Models, replica: HeldReplica) -> list[str]:
    return [held.version for held in reversed(models.of(replica.name))]


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def _configured(spec: TensorSpec) -> dict[str, Any]:
    name = "STRING" if spec.datatype is Datatype.BYTES else spec.datatype.value
    return {"name": spec.name, "data_type": f"TYPE_{name}", "dims": list(spec.shape)}
