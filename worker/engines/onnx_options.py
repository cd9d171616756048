"""What ``model.yaml`` may say to ONNX Runtime, and the session options that come of it.

::

    engine:
      providers: [{name: CUDAExecutionProvider, options: {device_id: 0}}, CPUExecutionProvider]
      plugins: [{name: MyProvider, library: libmyprovider.so}]
      custom_ops: [libmyops.so]
      session: {session.set_denormal_as_zero: "1"}
      graph: all
      two_phase: auto
      deterministic: false

Native libraries are code: they are taken from the directory that the worker's ``--libraries`` names, and from nowhere
else, so that whoever may write a model may not thereby run a program.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import onnxruntime as ort

from worker.engines import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from worker.store import ModelFiles

CPU = "CPUExecutionProvider"
CUDA_LIKE = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"})
"""Providers on NVIDIA's driver."""
PREPACKING_OFF = "session.disable_prepacking"
LOADER_THREADS = "session.external_data_loader.threads"
"""How many threads bring external data to the device; a provider without such a loader, as the CPU's, ignores it."""
MAX_LOADER_THREADS = 8
QUIET = 4
"""ONNX Runtime's severity "fatal": what fails comes back as an exception, and needs no line of its own."""
SEED = 0
_LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_DETERMINISTIC_GRAPH = "extended"
"""The highest level whose result does not depend on which processor it is made on."""
_DETERMINISTIC_CUDA = {"use_tf32": "0", "cudnn_conv_algo_search": "DEFAULT", "cudnn_conv_use_max_workspace": "1"}

Short = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Provider(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One execution provider; ``options`` are its own."""

    name: Short
    options: dict[str, str | bool | int | float] = msgspec.field(default_factory=dict)


class Plugin(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A library with execution providers: ``name`` is what to register it under."""

    name: Short
    library: Short


class OnnxOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The schema; see this module's text."""

    providers: Annotated[tuple[Short | Provider, ...], msgspec.Meta(min_length=1, max_length=8)] = (CPU,)
    plugins: Annotated[tuple[Plugin, ...], msgspec.Meta(max_length=8)] = ()
    custom_ops: Annotated[tuple[Short, ...], msgspec.Meta(max_length=16)] = ()
    session: dict[str, str] = msgspec.field(default_factory=dict)
    graph: Literal["disabled", "basic", "extended", "all"] | None = None
    two_phase: Literal["auto", "on", "off"] | bool = "auto"
    """YAML reads an unquoted ``on`` or ``off`` as a truth value; :func:`read_options` gives the word back."""
    deterministic: bool = False

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The providers that must take part, first choice first."""
        return tuple(one if isinstance(one, str) else one.name for one in self.providers)

    @property
    def on_cpu(self) -> bool:
        """True where nothing but the CPU's own provider is asked for."""
        return self.provider_names == (CPU,)

    def pins(self) -> dict[str, Any]:
        """Return what deterministic execution holds fast, for ``/stats``; empty where it is not asked for."""
        if not self.deterministic:
            return {}
        pinned: dict[str, Any] = {
            "providers": list(self.provider_names),
            "seed": SEED,
            "threads": 1,
            "graph": self.graph or _DETERMINISTIC_GRAPH,
            "deterministic_compute": True,
            "two_phase": "off",
        }
        if CUDA_LIKE & set(self.provider_names):
            pinned |= _DETERMINISTIC_CUDA
        return pinned


def read_options(files: ModelFiles) -> OnnxOptions:
    """Read a model's options.

    Raises:
        EngineError: they are not as they should be; names file, field, value and remedy.
    """
    where = f"{files.directory}/model.yaml: engine"
    try:
        options = msgspec.convert(files.options, OnnxOptions)
    except msgspec.ValidationError as error:
        raise EngineError(f"{where}: {error}") from error
    if isinstance(options.two_phase, bool):
        options = msgspec.structs.replace(options, two_phase="on" if options.two_phase else "off")
    names = options.provider_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EngineError(f"{where}.providers: {twice!r} is there twice; name each once")
    prepacking = options.session.get(PREPACKING_OFF)
    if options.two_phase == "on" and prepacking is not None:
        raise EngineError(
            f"{where}: two_phase: 'on' and session: {PREPACKING_OFF}: {prepacking!r} exclude each other; take one away"
        )
    if options.two_phase == "on" and options.deterministic:
        raise EngineError(
            f"{where}: two_phase: 'on' and deterministic: true exclude each other: the two sessions round differently"
        )
    return options


class Libraries:
    """Native libraries that models may name. A provider library is registered once for the process."""

    def __init__(self, directory: Path | None) -> None:
        """``directory``: where they lie; None: there are none."""
        self._directory = directory
        self._registered: dict[str, Path] = {}
        self._lock = threading.Lock()

    def find(self, files: ModelFiles, field: str, name: str) -> Path:
        """Return the path of the library called ``name``.

        Raises:
            EngineError: there is none.
        """
        where = f"{files.directory}/model.yaml: engine.{field}: {name!r}"
        if self._directory is None:
            raise EngineError(f"{where}: native libraries are refused; start the worker with --libraries DIR")
        path = self._directory / name
        if path.parent != self._directory or not path.is_file():
            raise EngineError(f"{where}: no such file in {self._directory} (--libraries)")
        return path

    def register(self, files: ModelFiles, plugins: Sequence[Plugin]) -> None:
        """Make the providers in ``plugins`` known to ONNX Runtime.

        Raises:
            EngineError: a library cannot be loaded, in its loader's words, or this ONNX Runtime takes none.
        """
        for plugin in plugins:
            path = self.find(files, "plugins", plugin.library)
            register = getattr(ort, "register_execution_provider_library", None)
            if register is None:
                raise EngineError(f"{path}: ONNX Runtime {ort.__version__} takes no provider libraries; 1.23 does")
            with self._lock:
                known = self._registered.get(plugin.name)
                if known is not None and known != path:
                    raise EngineError(f"{path}: provider library {plugin.name!r} is {known} already")
                if known is None:
                    try:
                        register(plugin.name, str(path))
                    except Exception as error:
                        raise EngineError(f"{path}: {first_line(error)}") from error
                    self._registered[plugin.name] = path


def session_options(
    files: ModelFiles,
    options: OnnxOptions,
    libraries: Libraries,
    threads: int,
    cores: int,
    entries: Mapping[str, str],
    *,
    optimised: bool = False,
) -> ort.SessionOptions:
    """Return ONNX Runtime's options for a session; ``entries`` win over those of the model.

    ``optimised``: the graph is, and must not be again.

    Raises:
        EngineError: a custom operator library cannot be loaded.
    """
    made = ort.SessionOptions()
    made.log_severity_level = QUIET
    made.intra_op_num_threads = 1 if options.deterministic else threads
    made.inter_op_num_threads = 1
    graph = options.graph or (_DETERMINISTIC_GRAPH if options.deterministic else "all")
    if optimised:
        graph = "disabled"
    made.graph_optimization_level = _LEVELS[graph]
    if options.deterministic:
        made.use_deterministic_compute = True
    # Threads that spin between executions would take the cores that the other processes of this host need.
    said = {"session.intra_op.allow_spinning": "0"}
    if CUDA_LIKE & set(options.provider_names):
        said[LOADER_THREADS] = str(min(cores, MAX_LOADER_THREADS))
    for name, value in {**said, **options.session, **entries}.items():
        made.add_session_config_entry(name, value)
    for name in options.custom_ops:
        path = libraries.find(files, "custom_ops", name)
        try:
            made.register_custom_ops_library(str(path))
        except Exception as error:
            raise EngineError(f"{path}: {first_line(error)}") from error
    return made


_DAMAGED = frozenset({"InvalidProtobuf", "UnicodeDecodeError"})  # the latter: it quotes what is no text
_EMPTY = "No graph was found in the protobuf."


def add_providers(
    files: ModelFiles, options: OnnxOptions, session: ort.SessionOptions
) -> list[tuple[str, dict[str, str]]] | None:
    """Return the providers for the session; None where they had to be put into its options, by device.

    Raises:
        EngineError: a provider is in no library and not in this build of ONNX Runtime.
    """
    wanted = [(one, {}) if isinstance(one, str) else (one.name, one.options) for one in options.providers]
    asked = [(name, {key: _text_of(value) for key, value in more.items()}) for name, more in wanted]
    if options.deterministic:
        asked = [(name, {**more, **_DETERMINISTIC_CUDA} if name in CUDA_LIKE else more) for name, more in asked]
    built_in = set(ort.get_available_providers())
    if all(name in built_in for name, _ in asked):
        return asked
    by_name: dict[str, list[Any]] = {}
    for device in ort.get_ep_devices() if hasattr(ort, "get_ep_devices") else ():
        by_name.setdefault(device.ep_name, []).append(device)
    for name, more in asked:
        if name not in by_name:
            known = ", ".join(sorted(built_in | set(by_name)))
            raise EngineError(
                f"{files.directory}/model.yaml: engine.providers: {name!r} is not in this ONNX Runtime; it has {known}"
            )
        session.add_provider_for_devices(by_name[name], more)
    return None


def _text_of(value: str | bool | float) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def refusal(error: BaseException) -> str:
    """Return what ONNX Runtime says of a file that it does not take, and what to do where the file is damaged."""
    text = first_line(error)
    if type(error).__name__ in _DAMAGED or text.endswith(_EMPTY):
        remedy = "put it there again, and a SHA256SUMS beside it, which finds that"
        return f"{text.rstrip('.')}; it is damaged, or no ONNX model: {remedy}"
    return text


def first_line(error: BaseException) -> str:
    """Return what an error of ONNX Runtime says, without what follows its first line.

    It quotes what it has found, whatever that is; Python then has no text of it, but the bytes.
    """
    raw = error.object if isinstance(error, UnicodeDecodeError) else None
    text = (str(error) if raw is None else raw.decode("utf-8", "backslashreplace")).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__
