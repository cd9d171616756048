"""PyTorch: TorchScript (``model.pt``) and exported programs (``model.pt2``). Needs the extra ``torch``.

Neither format says what a protocol needs to know, so a version's ``model.yaml`` does::

    engine:
      inputs: [{name: x, datatype: FP32, shape: [-1, 8]}]     # in the order of the model's arguments
      outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]    # in the order of what it gives
      device: cpu                                             # cpu (the default), cuda, cuda:1
      weights: weights.pt                                     # of an exported program: a state dict beside it, mapped
      deterministic: false

Executions release the GIL within operators. A run cannot be interrupted; one that nobody waits for is not begun.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import torch

from worker.datatypes import NUMPY, Datatype
from worker.engines import EngineError, GivenUpError, InputError, TensorSpec
from worker.memory import Memory
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from worker.engines import Array, Cancellation, Engine, Parameters
    from worker.engines.registry import EngineSettings
    from worker.stages import Stages
    from worker.store import ModelFiles

    Open = Callable[[Path, "Options", torch.device], Any]

SEED = 0
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_DETERMINISTIC = ":4096:8"
_NO_TENSOR = frozenset({Datatype.BYTES, Datatype.UINT16, Datatype.UINT32, Datatype.UINT64})
"""What PyTorch has no tensors of, or none that its operators take."""


class _Tensor(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    datatype: Datatype
    shape: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...]


Tensors = Annotated[tuple[_Tensor, ...], msgspec.Meta(min_length=1, max_length=64)]


class Options(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The schema; see this module's text."""

    inputs: Tensors
    outputs: Tensors
    device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] = "cpu"
    weights: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    deterministic: bool = False


class TorchModel:
    """One module, ready to be called."""

    def __init__(self, module: Any, platform: str, options: Options, pins: Mapping[str, Any]) -> None:
        self.platform = platform
        self.device = options.device
        self.inputs = tuple(TensorSpec(one.name, one.datatype, one.shape) for one in options.inputs)
        self.outputs = tuple(TensorSpec(one.name, one.datatype, one.shape) for one in options.outputs)
        self._specs = {spec.name: spec for spec in self.outputs}
        self._module = module
        self._pins = pins

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        """Call the module; see :class:`worker.engines.LoadedModel`."""
        if cancellation.cancelled:
            raise GivenUpError("given up before it began")
        # A tensor shares its array's memory, and no module may write into what a caller gave.
        arguments = [torch.from_numpy(np.array(inputs[spec.name])).to(self.device) for spec in self.inputs]
        try:
            with torch.inference_mode():
                given = self._module(*arguments)
                found = dict(zip((spec.name for spec in self.outputs), self._flat(given), strict=True))
                return [self._array(self._specs[name], found[name]) for name in outputs]
        except EngineError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            text = _said(error)
            # An exported program looks at its arguments first; TorchScript's operators say what does not fit.
            if isinstance(error, IndexError) or "shape" in text.lower() or "size" in text.lower():
                raise InputError(text) from error
            raise EngineError(text) from error

    def _flat(self, given: Any) -> list[Any]:
        tensors = list(given.values()) if isinstance(given, dict) else given
        tensors = list(tensors) if isinstance(tensors, tuple | list) else [tensors]
        if len(tensors) != len(self.outputs) or not all(isinstance(one, torch.Tensor) for one in tensors):
            kinds = ", ".join(type(one).__name__ for one in tensors)
            raise EngineError(f"it gave {len(tensors)} values ({kinds}), not {len(self.outputs)} tensors")
        return tensors

    def _array(self, spec: TensorSpec, tensor: Any) -> Array:
        array: Array = tensor.detach().cpu().numpy()
        if array.dtype != NUMPY[spec.datatype]:
            raise EngineError(f"output {spec.name!r}: {array.dtype}; model.yaml says {spec.datatype.value}")
        return array

    def facts(self) -> Mapping[str, Any]:
        """Return the device, and what is pinned."""
        said: dict[str, Any] = {"device": self.device, "torch": str(torch.__version__)}
        if self._pins:
            said["deterministic"] = dict(self._pins)
        return said

    def detach(self) -> None:
        """Nothing: it looks at its files in its load alone; see :class:`worker.engines.Detachable`."""

    def unload(self) -> None:
        """Drop the module, and give the GPU's cached memory back."""
        del self._module
        if self.device != "cpu":
            torch.cuda.empty_cache()


class TorchEngine:
    """See this module's text."""

    def __init__(self, settings: EngineSettings, platform: str, file_name: str, opener: Open) -> None:
        self._settings = settings
        self._platform = platform
        self._file_name = file_name
        self._open = opener
        self._lock = threading.Lock()
        self._device: torch.device | None = None
        torch.set_num_threads(settings.threads)

    def initialize(self, models: Sequence[ModelFiles]) -> None:
        """Bring up the devices that models name; see :class:`worker.engines.Engine`."""
        for files in models:
            try:
                options = _read(files)
            except EngineError:
                continue  # the model's own load says so
            self._bring_up(options)

    def _bring_up(self, options: Options) -> None:
        if options.deterministic:
            self._pin()
        if options.device == "cpu":
            return
        device = torch.device(options.device)
        try:
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise EngineError(f"{options.device}: {_said(error)}") from error
        self._device = device

    def _pin(self) -> None:
        # Read by cuBLAS when its first handle is made. All of this holds for the whole process.
        with self._lock:
            self._settings.environment.setdefault(_CUBLAS_WORKSPACE, _CUBLAS_DETERMINISTIC)
            torch.manual_seed(SEED)
            torch.use_deterministic_algorithms(True)
            torch.set_num_threads(1)
            torch.backends.cudnn.benchmark = False
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False

    def memory(self) -> Memory | None:
        """Return the GPU's, where a model is on one; see :class:`worker.engines.Engine`."""
        if self._device is None:
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return Memory(int(free), int(total))

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> TorchModel:
        """Load the module; see :class:`worker.engines.Engine`."""
        if files.model_file is None:
            raise EngineError(f"model {files.name!r}: PyTorch loads {self._file_name}, and there is no directory")
        options = _read(files)
        with stages.measure(Stage.DEVICE):
            self._bring_up(options)
        try:
            with stages.measure(Stage.CREATE):
                module = self._open(files.model_file, options, torch.device(options.device))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{files.model_file}: {_said(error)}") from error
        if cancellation.cancelled:
            raise GivenUpError("given up while loading")
        return TorchModel(module, self._platform, options, _pins(options))


def _read(files: ModelFiles) -> Options:
    where = f"{files.directory}/model.yaml: engine"
    try:
        options = msgspec.convert(files.options, Options)
    except msgspec.ValidationError as error:
        raise EngineError(f"{where}: {error}") from error
    for kind, tensors in (("inputs", options.inputs), ("outputs", options.outputs)):
        names = [one.name for one in tensors]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise EngineError(f"{where}.{kind}: {twice!r} is there twice; name each once")
        bad = next((one for one in tensors if one.datatype in _NO_TENSOR), None)
        if bad is not None:
            raise EngineError(f"{where}.{kind}: {bad.name!r}: PyTorch computes with no {bad.datatype.value}")
    return options


def _pins(options: Options) -> dict[str, Any]:
    if not options.deterministic:
        return {}
    return {
        "device": options.device,
        "seed": SEED,
        "threads": 1,
        "deterministic_algorithms": True,
        "cudnn_benchmark": False,
        "tf32": False,
        _CUBLAS_WORKSPACE: _CUBLAS_DETERMINISTIC,
    }


def _open_script(path: Path, options: Options, device: torch.device) -> Any:
    if options.weights is not None:
        raise EngineError(f"{path}: engine.weights is for exported programs; TorchScript holds its own")
    return torch.jit.load(str(path), map_location=device).eval()


def _open_export(path: Path, options: Options, device: torch.device) -> Any:
    module = torch.export.load(str(path)).module()
    if options.weights is not None:
        weights = path.parent / options.weights
        if weights.parent != path.parent or not weights.is_file():
            raise EngineError(f"{path.parent}/model.yaml: engine.weights: {options.weights!r}: no such file beside it")
        # Mapped, not read: pages come when they are used, and are shared with whoever maps them too.
        state = torch.load(str(weights), map_location="cpu", mmap=True, weights_only=True)
        module.load_state_dict(state, strict=True, assign=True)
    return module.to(device)


def _said(error: BaseException) -> str:
    """Return the line that says what happened: the last of what TorchScript's interpreter tells, else the first."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if "TorchScript interpreter" in lines[0] else 0][:500]


def make_script(settings: EngineSettings) -> Engine:
    """Build the engine for TorchScript."""
    return TorchEngine(settings, "pytorch_libtorch", "model.pt", _open_script)


def make_export(settings: EngineSettings) -> Engine:
    """Build the engine for exported programs."""
    return TorchEngine(settings, "pytorch_export", "model.pt2", _open_export)
