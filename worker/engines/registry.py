"""The engines by name: those that are built in, and those that other packages bring.

A built-in engine is one module and one entry here. Another package's is an entry point of the group
``warmroute.engines`` whose object is an :class:`EngineKind`. An engine's module is imported only when it is chosen.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worker.engines import EngineError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from worker.engines import Engine
    from worker.engines.model_cache import ModelCache
    from worker.log import EventLog

GROUP = "warmroute.engines"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a worker's options say to whichever engine it runs, and where the engine may tell of what happens later."""

    log: EventLog
    threads: int = 1  # within one execution
    load_s: float = 0.0  # deterministic engine: how long a load takes
    service_s: float = 0.0  # deterministic engine: how long an execution takes
    cores: int = 1  # that this process may use
    libraries: Path | None = None  # where native libraries that models name may lie
    cache: ModelCache | None = None  # of models as the engine has optimised them
    environment: MutableMapping[str, str] = field(default_factory=dict)  # of this process: libraries read it


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What must be known of an engine before it is imported.

    ``module`` has a function ``make_engine(settings) -> Engine``, or one called ``factory``. ``file_name`` is what it
    loads from a version's directory, None where it needs no file. ``concurrency`` executions at once are a good default
    on ``cores`` cores: ``concurrency_per_core * cores``, where 0 means ``concurrency_fixed``. ``extra`` is what to
    install where the module cannot be imported.
    """

    module: str
    file_name: str | None
    concurrency_per_core: int = 0
    concurrency_fixed: int = 1
    factory: str = "make_engine"
    extra: str = ""
    later: tuple[str, ...] = ()
    """Modules that it imports where an option asks for them; a zygote imports them before that."""

    def concurrency(self, cores: int) -> int:
        """Return how many executions at once this engine does well with on ``cores`` cores."""
        return self.concurrency_per_core * cores or self.concurrency_fixed


ENGINES: dict[str, EngineKind] = {
    "onnxruntime": EngineKind(
        "worker.engines.onnx_runtime",
        "model.onnx",
        concurrency_per_core=1,
        extra="warmroute[cpu] or warmroute[gpu]",
        later=("worker.engines.onnx_cache", "worker.engines.model_cache"),
    ),
    "deterministic": EngineKind("worker.engines.deterministic", None, concurrency_fixed=64),
    "torchscript": EngineKind(
        "worker.engines.pytorch", "model.pt", concurrency_per_core=1, factory="make_script", extra="warmroute[torch]"
    ),
    "torchexport": EngineKind(
        "worker.engines.pytorch", "model.pt2", concurrency_per_core=1, factory="make_export", extra="warmroute[torch]"
    ),
}
"""Those that are built in."""


def find_kind(name: str) -> EngineKind:
    """Return what is known of the engine called ``name``; a built-in one goes before another package's.

    Raises:
        EngineError: there is none, or the package that brings it is broken.
    """
    kind = ENGINES.get(name)
    if kind is not None:
        return kind
    from importlib.metadata import entry_points  # takes a while, and built-in engines do not need it

    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise EngineError(
            f"engine {name!r}: there is none; known: {', '.join(dict.fromkeys([*ENGINES, *sorted(found)]))}"
        )
    try:
        brought = found[name].load()
    except (Exception, SystemExit) as error:
        raise EngineError(f"engine {name!r}: {found[name].value}: {type(error).__name__}: {error}") from error
    if not isinstance(brought, EngineKind):
        raise EngineError(f"engine {name!r}: {found[name].value} is no worker.engines.registry.EngineKind")
    return brought


def make_engine(name: str, settings: EngineSettings) -> Engine:
    """Import and build the engine called ``name``.

    Raises:
        EngineError: there is no such engine, what it needs is not installed, or it cannot be made.
    """
    kind = find_kind(name)
    try:
        module = importlib.import_module(kind.module)
    except ImportError as error:
        remedy = f"; install {kind.extra}" if kind.extra else ""
        raise EngineError(f"engine {name!r}: {error}{remedy}") from error
    except SystemExit as error:
        raise EngineError(f"engine {name!r}: {kind.module}: SystemExit: {error}") from error
    try:
        engine: Engine = getattr(module, kind.factory)(settings)
    except EngineError:
        raise
    except (Exception, SystemExit) as error:
        raise EngineError(f"engine {name!r}: {kind.module}.{kind.factory}: {type(error).__name__}: {error}") from error
    return engine
