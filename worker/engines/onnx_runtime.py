"""ONNX Runtime. Session creation and execution release the GIL, so they run beside the event loop in threads.

What ``model.yaml`` may say: :mod:`worker.engines.onnx_options`. Every provider that is asked for must take part:
``get_available_providers()`` also names what cannot work on this machine, so the session itself is asked afterwards.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from worker.datatypes import Datatype
from worker.engines import EngineError, GivenUpError, InputError, TensorSpec
from worker.engines.bfloat16 import any_bfloat16, run_values
from worker.engines.nvidia import DeviceMemory, check_driver
from worker.engines.onnx_options import (
    CUDA_LIKE,
    PREPACKING_OFF,
    QUIET,
    SEED,
    Libraries,
    OnnxOptions,
    Provider,
    add_providers,
    first_line,
    read_options,
    refusal,
    session_options,
)
from worker.engines.onnx_weights import NONE, Weights, aligned_weights, shard_weights
from worker.engines.two_phase import TwoPhaseModel
from worker.expectation import check_expected
from worker.stages import Stage, Stages
from worker.warmup import runs, shape_classes, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from worker.engines import Array, Cancellation, Engine, LoadedModel, Parameters
    from worker.engines.onnx_cache import OptimisedGraphs
    from worker.engines.registry import EngineSettings
    from worker.memory import Memory
    from worker.store import ModelFiles

_TYPES: dict[str, Datatype] = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(string)": Datatype.BYTES,
}
TWO_PHASE_FROM_BYTES = 16 << 20
"""From this many bytes of files on, ``two_phase: auto`` is on: below, prepacking takes a few milliseconds."""
MAX_NAME_CHARS = 128
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_DETERMINISTIC = ":4096:8"
TINY_MODEL = (
    b"\x08\x08"  # ir_version: 8
    b"B\x02\x10\x11"  # opset_import: version 17
    b":7"  # graph, of 55 bytes
    b'\n\x10\n\x01x\x12\x01y"\x08Identity'  # node: Identity, x to y
    b"\x12\x01g"  # name: g
    b"Z\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01"  # input x: FP32, [1]
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01"  # output y: FP32, [1]
)
"""An ONNX model of one operator, whose session brings up a provider's libraries and its device's context."""


class OnnxModel:
    """One inference session."""

    platform = "onnxruntime_onnx"

    def __init__(
        self,
        session: ort.InferenceSession,
        pins: Mapping[str, Any],
        kept: bool | None,
        weights: Weights,
        detached: threading.Event,
    ) -> None:
        """``pins``: what deterministic execution holds fast; empty where it is not asked for.

        ``kept``: whether its optimised graph came from the cache; None where it could not have. ``weights``: what the
        session uses and does not own. ``detached``: set once the files may change, for all sessions of one load.
        """
        self._session = session
        self._weights = weights
        self._pins = pins
        self._kept = kept
        self.device = str(session.get_providers()[0])
        self.inputs = tuple(_spec("input", value) for value in session.get_inputs())
        self.outputs = tuple(_spec("output", value) for value in session.get_outputs())
        self._by_values = any_bfloat16(self.inputs + self.outputs)
        self._detached = detached

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        """Execute the session; see :class:`worker.engines.LoadedModel`."""
        with self._running(cancellation) as options:
            if self._by_values:
                return run_values(self._session, self.inputs, outputs, inputs, options)
            return [np.asarray(value) for value in self._session.run(list(outputs), dict(inputs), options)]

    def run_into(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], cancellation: Cancellation) -> None:
        """Execute the session with its outputs bound; see :class:`worker.engines.WritesInto`."""
        if self._by_values:
            raise EngineError("BF16 is not bound")
        with self._running(cancellation) as options:
            binding = self._session.io_binding()
            for name, array in inputs.items():
                binding.bind_cpu_input(name, array)
            for name, array in outputs.items():
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            self._session.run_with_iobinding(binding, options)

    @contextmanager
    def _running(self, cancellation: Cancellation) -> Iterator[ort.RunOptions]:
        options = ort.RunOptions()
        options.log_severity_level = QUIET
        cancellation.on_cancel(lambda: setattr(options, "terminate", True))
        try:
            yield options
        except UnicodeEncodeError as error:
            raise InputError("BYTES must be UTF-8 for ONNX Runtime") from error
        except Exception as error:
            if cancellation.cancelled:
                raise GivenUpError("given up while executing") from error
            text = first_line(error)
            # What the graph makes of the values (an index out of range, shapes that do not fit each other).
            if type(error).__name__ == "InvalidArgument":
                raise InputError(text) from error
            raise EngineError(text) from error

    def facts(self) -> Mapping[str, Any]:
        """Return the providers that take part, as the session itself says, and what is pinned."""
        said: dict[str, Any] = {"providers": list(self._session.get_providers())}
        if self._kept is not None:
            said["optimised"] = "kept" if self._kept else "made"
        if self._pins:
            said["deterministic"] = dict(self._pins)
        return said

    def detach(self) -> None:
        """Have no graph kept that is not made yet; see :class:`worker.engines.Detachable`."""
        self._detached.set()

    def unload(self) -> None:
        """Drop the session, which frees its memory, and then the weights it used."""
        del self._session
        self._weights.close()


class OnnxRuntimeEngine:
    """See this module's text."""

    def __init__(
        self,
        settings: EngineSettings,
        driver: Callable[[], None] = check_driver,
        graphs: OptimisedGraphs | None = None,
    ) -> None:
        """``driver`` checks NVIDIA's, where a model wants it; ``graphs`` keeps what was optimised."""
        self._settings = settings
        self._driver = driver
        self._libraries = Libraries(settings.libraries)
        self._graphs = graphs if graphs is not None else _graphs(settings)
        self._device_memory: DeviceMemory | None = None

    def initialize(self, models: Sequence[ModelFiles]) -> None:
        """Make a session of one operator on each provider that is not the CPU's; see :class:`worker.engines.Engine`."""
        for files in models:
            try:
                options = read_options(files)
            except EngineError:
                continue  # the model's own load says so
            if options.deterministic:
                self._pin()
            if options.on_cpu:
                continue
            self._check_devices(options)
            # Where it is the model's custom operators or its plug-ins that fail, the model's own load says so.
            self._session(files, options, {}, TINY_MODEL)

    def _pin(self) -> None:
        # Read by cuBLAS when its first handle is made.
        self._settings.environment.setdefault(_CUBLAS_WORKSPACE, _CUBLAS_DETERMINISTIC)
        ort.set_seed(SEED)

    def _check_devices(self, options: OnnxOptions) -> None:
        if not CUDA_LIKE & set(options.provider_names) & set(ort.get_available_providers()):
            return
        self._driver()
        if self._device_memory is None:
            self._device_memory = DeviceMemory(_device_number(options))

    def memory(self) -> Memory | None:
        """Return the GPU's, where a model is on one; see :class:`worker.engines.Engine`."""
        return None if self._device_memory is None else self._device_memory.read()

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> LoadedModel:
        """Create the session, or the first of two; see :class:`worker.engines.Engine`."""
        if files.model_file is None:
            raise EngineError(f"model {files.name!r}: ONNX Runtime loads model.onnx, and there is no directory")
        options = read_options(files)
        if options.deterministic:
            self._pin()
        self._check_devices(options)
        detached = threading.Event()
        if _as_it_lies(files, options):
            return self._load(files, options, {PREPACKING_OFF: "1"}, cancellation, stages, detached)
        marks = _marks(files)
        if not _in_two_phases(options, marks):
            return self._load(files, options, {}, cancellation, stages, detached)

        def build(cancellation: Cancellation) -> LoadedModel:
            second = self._load(files, options, {}, cancellation, Stages(), detached)
            if _marks(files) != marks:
                second.unload()
                raise EngineError(f"{files.directory}: its files have changed since the first session was made of them")
            return second

        def prove(second: LoadedModel, cancellation: Cancellation) -> None:
            warm_up(second, classes, cancellation)
            check_expected(second, files, cancellation)

        classes = shape_classes(files)
        first = self._load(files, options, {PREPACKING_OFF: "1"}, cancellation, stages, detached)
        return TwoPhaseModel(
            first,
            build,
            prove,
            runs(first, classes),
            name=files.name,
            log=self._settings.log,
            behind=self._settings.threads == 1,
        )

    def _load(
        self,
        files: ModelFiles,
        options: OnnxOptions,
        entries: Mapping[str, str],
        cancellation: Cancellation,
        stages: Stages,
        detached: threading.Event,
    ) -> OnnxModel:
        weights = shard_weights(files)
        graphs = self._graphs if not weights.values else None  # a kept graph has its own weights
        key = graphs.key(files, options) if graphs is not None else None
        session = None
        try:
            if graphs is not None and key is not None:
                session, weights = self._kept(graphs, files, options, entries, key, cancellation, stages)
            kept = session is not None
            if session is None:
                session = self._session(
                    files,
                    options,
                    entries,
                    str(files.model_file),
                    cancellation,
                    stages,
                    optimised=bool(weights.values),  # or it would fold what the files have, not the slices
                    weights=weights.values,
                )
        except EngineError as error:
            if cancellation.cancelled:
                raise GivenUpError("given up while loading") from error
            raise
        if graphs is not None and key is not None and not kept:
            self._keep(graphs, files, options, key, detached)
        try:
            return OnnxModel(session, options.pins(), None if key is None else kept, weights, detached)
        except UnicodeDecodeError as error:
            name = error.object.decode("utf-8", "backslashreplace")[:MAX_NAME_CHARS]
            raise EngineError(
                f"{files.model_file}: an input or output is named '{name}', which is no UTF-8; name it anew"
            ) from error

    def _kept(
        self,
        graphs: OptimisedGraphs,
        files: ModelFiles,
        options: OnnxOptions,
        entries: Mapping[str, str],
        key: str,
        cancellation: Cancellation,
        stages: Stages,
    ) -> tuple[ort.InferenceSession | None, Weights]:
        """Make the session of the graph that an earlier start has optimised, where it was kept and is of use.

        Returns:
            It, and what it was given to use.
        """
        weights = NONE
        with stages.measure(Stage.OPEN):
            graph = graphs.find(key)
            # Prepacked they would stand in memory twice: what was given cannot be given back.
            if graph is not None and files.in_shared_memory and files.model_file and entries.get(PREPACKING_OFF) == "1":
                weights = aligned_weights(graph, files.model_file.parent)
        if graph is None:
            return None, NONE
        entries = {**entries, **graphs.entries(files)}
        try:
            session = self._session(
                files, options, entries, graph, cancellation, stages, optimised=True, weights=weights.values
            )
        except EngineError as error:
            weights.close()
            if cancellation.cancelled:
                raise
            graphs.drop(key, str(error))
            return None, NONE
        return session, weights

    def _keep(
        self, graphs: OptimisedGraphs, files: ModelFiles, options: OnnxOptions, key: str, detached: threading.Event
    ) -> None:
        marks = _marks(files)

        def save(path: Path, entries: Mapping[str, str], cancellation: Cancellation) -> None:
            self._session(files, options, entries, str(files.model_file), cancellation, Stages(), save_to=path)

        if sum(size for _, _, size, _ in marks) <= graphs.most_bytes:
            graphs.make(key, files, save, lambda: not detached.is_set() and _marks(files) == marks)

    def _session(
        self,
        files: ModelFiles,
        options: OnnxOptions,
        entries: Mapping[str, str],
        source: str | bytes,
        cancellation: Cancellation | None = None,
        stages: Stages | None = None,
        *,
        optimised: bool = False,
        save_to: Path | None = None,
        weights: Mapping[str, ort.OrtValue] | None = None,
    ) -> ort.InferenceSession:
        stages = stages or Stages()
        with stages.measure(Stage.CONFIGURE):
            self._libraries.register(files, options.plugins)
            made = session_options(
                files,
                options,
                self._libraries,
                self._settings.threads,
                self._settings.cores,
                entries,
                optimised=optimised,
            )
            if save_to is not None:
                made.optimized_model_filepath = str(save_to)
            for name, value in (weights or {}).items():
                made.add_initializer(name, value)
            providers = add_providers(files, options, made)
        if cancellation is not None:
            cancellation.on_cancel(lambda: made.set_load_cancellation_flag(True))
        try:
            with stages.measure(Stage.CREATE):
                session = ort.InferenceSession(source, sess_options=made, providers=providers, enable_fallback=0)
        except Exception as error:
            where = files.model_file or files.directory if isinstance(source, bytes) else source
            raise EngineError(f"{where}: {refusal(error)}") from error
        missing = set(options.provider_names) - set(session.get_providers())
        if missing:
            raise EngineError(
                f"{files.directory}/model.yaml: engine.providers: {sorted(missing)} not usable here;"
                f" got {session.get_providers()}"
            )
        return session


def _graphs(settings: EngineSettings) -> OptimisedGraphs | None:
    if settings.cache is None:
        return None
    from worker.engines.onnx_cache import OptimisedGraphs  # what is off is not imported

    return OptimisedGraphs(settings.cache, settings.log)


def _marks(files: ModelFiles) -> tuple[tuple[str, int, int, int], ...]:
    """Return what differs where a version's files do: of each its path, inode, size in bytes and time of change."""
    if files.model_file is None:
        return ()
    found = sorted(path for path in files.model_file.parent.rglob("*") if path.is_file())
    stats = [(str(path), path.stat()) for path in found]
    return tuple((path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _as_it_lies(files: ModelFiles, options: OnnxOptions) -> bool:
    """Say whether a shard's slices are used as they were read, unless ``two_phase`` or a session entry says otherwise.

    Prepacked, each would stand in memory twice: ONNX Runtime cannot give back what somebody else has given it.
    """
    shard = files.shard is not None and files.shard.weights is not None
    return shard and options.two_phase == "auto" and PREPACKING_OFF not in options.session


def _in_two_phases(options: OnnxOptions, marks: tuple[tuple[str, int, int, int], ...]) -> bool:
    """Say whether prepacking is left out at first: it is the CPU's, and a session entry of the user's own decides."""
    if options.two_phase != "auto":
        return options.two_phase == "on"
    if options.deterministic or not options.on_cpu or PREPACKING_OFF in options.session:
        return False
    return sum(size for _, _, size, _ in marks) >= TWO_PHASE_FROM_BYTES


def _device_number(options: OnnxOptions) -> int:
    for one in options.providers:
        if isinstance(one, Provider) and one.name in CUDA_LIKE and str(one.options.get("device_id", "")).isdecimal():
            return int(one.options["device_id"])
    return 0


def _spec(kind: str, value: Any) -> TensorSpec:
    datatype = _TYPES.get(value.type)
    if datatype is None:
        raise EngineError(f"{kind} {value.name!r}: type {value.type} has no datatype in the protocol")
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in value.shape)
    return TensorSpec(value.name, datatype, shape)


def make_engine(settings: EngineSettings) -> Engine:
    """Build the engine from a worker's options."""
    return OnnxRuntimeEngine(settings)
