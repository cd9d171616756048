"""ONNX Runtime. Session creation and execution release the GIL, so they run beside the event loop in threads.

A version's ``engine`` options::

    engine: {providers: [CPUExecutionProvider], session: {session.set_denormal_as_zero: "1"}, two_phase: auto}

``providers`` must all take part: ``get_available_providers()`` also names what cannot work on this machine, so the
session itself is asked afterwards. ``session`` are ONNX Runtime's own session configuration entries. ``two_phase``:
serve at once from a session that is made without prepacking, and make the prepacked one meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import onnxruntime as ort

from worker.datatypes import Datatype
from worker.engines import EngineError, GivenUpError, InputError, TensorSpec
from worker.engines.two_phase import TwoPhaseModel
from worker.stages import Stage, Stages
from worker.warmup import shape_classes, warm_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.engines import Array, Cancellation, Engine, LoadedModel, Parameters
    from worker.engines.registry import EngineSettings
    from worker.log import EventLog
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
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(string)": Datatype.BYTES,
}
TWO_PHASE_FROM_BYTES = 16 << 20
"""From this many bytes of files on, ``two_phase: auto`` is on: below, prepacking takes a few milliseconds."""
_PREPACKING_OFF = "session.disable_prepacking"
_CPU = "CPUExecutionProvider"
_QUIET = 4  # ONNX Runtime's severity "fatal": what fails comes back as an exception, and needs no line of its own


class _Options(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    providers: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=8)] = (_CPU,)
    session: dict[str, str] = msgspec.field(default_factory=dict)
    two_phase: Literal["auto", "on", "off"] = "auto"


class OnnxModel:
    """One inference session."""

    platform = "onnxruntime_onnx"

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self.device = str(session.get_providers()[0])
        self.inputs = tuple(_spec("input", value) for value in session.get_inputs())
        self.outputs = tuple(_spec("output", value) for value in session.get_outputs())

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        parameters: Parameters,
        cancellation: Cancellation,
    ) -> list[Array]:
        """Execute the session; see :class:`worker.engines.LoadedModel`."""
        options = ort.RunOptions()
        options.log_severity_level = _QUIET
        cancellation.on_cancel(lambda: setattr(options, "terminate", True))
        try:
            return [np.asarray(value) for value in self._session.run(list(outputs), dict(inputs), options)]
        except Exception as error:
            if cancellation.cancelled:
                raise GivenUpError("given up while executing") from error
            text = _text(error)
            if isinstance(error, UnicodeEncodeError):
                raise InputError("BYTES must be UTF-8 for ONNX Runtime") from error
            # What the graph makes of the values (an index out of range, shapes that do not fit each other).
            if type(error).__name__ == "InvalidArgument":
                raise InputError(text) from error
            raise EngineError(text) from error

    def facts(self) -> Mapping[str, Any]:
        """Return the providers that take part, as the session itself says."""
        return {"providers": list(self._session.get_providers())}

    def close(self) -> None:
        """Drop the session, which frees its memory."""
        del self._session


class OnnxRuntimeEngine:
    """See this module's text."""

    def __init__(self, threads: int, log: EventLog) -> None:
        self._threads = threads
        self._log = log

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> LoadedModel:
        """Create the session, or the first of two; see :class:`worker.engines.Engine`."""
        if files.model_file is None:
            raise EngineError(f"model {files.name!r}: ONNX Runtime loads model.onnx, and there is no directory")
        where = f"{files.directory}/model.yaml: engine"
        try:
            settings = msgspec.convert(files.options, _Options)
        except msgspec.ValidationError as error:
            raise EngineError(f"{where}: {error}") from error
        if not _in_two_phases(files, settings, where):
            return self._session(files, settings, {}, cancellation, stages)

        def build(cancellation: Cancellation) -> LoadedModel:
            return self._session(files, settings, {}, cancellation, Stages())

        def prove(second: LoadedModel, cancellation: Cancellation) -> None:
            warm_up(second, classes, cancellation, lambda _: None)

        classes = shape_classes(files)
        return TwoPhaseModel(
            self._session(files, settings, {_PREPACKING_OFF: "1"}, cancellation, stages),
            build,
            prove,
            len(classes),
            name=files.name,
            log=self._log,
            lower_priority=self._threads == 1,
        )

    def _session(
        self,
        files: ModelFiles,
        settings: _Options,
        entries: Mapping[str, str],
        cancellation: Cancellation,
        stages: Stages,
    ) -> OnnxModel:
        with stages.measure(Stage.CONFIGURE):
            options = ort.SessionOptions()
            options.log_severity_level = _QUIET
            options.intra_op_num_threads = self._threads
            options.inter_op_num_threads = 1
            # Threads that spin between executions would take the cores that the other processes of this host need.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            for name, value in {**settings.session, **entries}.items():
                options.add_session_config_entry(name, value)
        cancellation.on_cancel(lambda: options.set_load_cancellation_flag(True))
        try:
            with stages.measure(Stage.CREATE):
                session = ort.InferenceSession(
                    str(files.model_file), sess_options=options, providers=list(settings.providers)
                )
        except Exception as error:
            if cancellation.cancelled:
                raise GivenUpError("given up while loading") from error
            raise EngineError(f"{files.model_file}: {_text(error)}") from error
        missing = set(settings.providers) - set(session.get_providers())
        if missing:
            raise EngineError(
                f"{files.directory}/model.yaml: engine.providers: {sorted(missing)} not usable here;"
                f" got {session.get_providers()}"
            )
        return OnnxModel(session)


def _in_two_phases(files: ModelFiles, settings: _Options, where: str) -> bool:
    """Say whether prepacking is left out at first: it is the CPU's, and a session entry of the user's own decides."""
    if settings.two_phase == "off":
        return False
    own = settings.session.get(_PREPACKING_OFF)
    if settings.two_phase == "on":
        if own is not None:
            raise EngineError(
                f"{where}: two_phase: 'on' and session: {_PREPACKING_OFF}: {own!r} exclude each other; take one away"
            )
        return True
    if own is not None or settings.providers != (_CPU,) or files.directory is None:
        return False
    return sum(path.stat().st_size for path in files.directory.rglob("*") if path.is_file()) >= TWO_PHASE_FROM_BYTES


def _spec(kind: str, value: Any) -> TensorSpec:
    datatype = _TYPES.get(value.type)
    if datatype is None:
        raise EngineError(f"{kind} {value.name!r}: type {value.type} has no datatype in the protocol")
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in value.shape)
    return TensorSpec(value.name, datatype, shape)


def _text(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__


def make_engine(settings: EngineSettings) -> Engine:
    """Build the engine from a worker's options."""
    return OnnxRuntimeEngine(settings.threads, settings.log)
