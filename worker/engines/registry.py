"""The engines by name. A new engine is one module and one entry here; its module is imported only when it is chosen."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.engines import EngineError

if TYPE_CHECKING:
    from worker.engines import Engine
    from worker.log import EventLog


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a worker's options say to whichever engine it runs, and where the engine may tell of what happens later."""

    log: EventLog
    threads: int = 1  # within one execution
    load_s: float = 0.0  # deterministic engine: how long a load takes
    service_s: float = 0.0  # deterministic engine: how long an execution takes


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What must be known of an engine before it is imported.

    ``module`` has a function ``make_engine(settings) -> Engine``. ``file_name`` is what it loads from a version's
    directory, None where it needs no file. ``concurrency`` executions at once are a good default on ``cores`` cores:
    ``concurrency_per_core * cores``, where 0 means ``concurrency_fixed``.
    """

    module: str
    file_name: str | None
    concurrency_per_core: int = 0
    concurrency_fixed: int = 1

    def concurrency(self, cores: int) -> int:
        """Return how many executions at once this engine does well with on ``cores`` cores."""
        return self.concurrency_per_core * cores or self.concurrency_fixed


ENGINES: dict[str, EngineKind] = {
    "onnxruntime": EngineKind("worker.engines.onnx_runtime", "model.onnx", concurrency_per_core=1),
    "deterministic": EngineKind("worker.engines.deterministic", None, concurrency_fixed=64),
}


def make_engine(name: str, settings: EngineSettings) -> Engine:
    """Import and build the engine called ``name``.

    Raises:
        EngineError: there is no such engine, or what it needs is not installed.
    """
    kind = ENGINES.get(name)
    if kind is None:
        raise EngineError(f"engine {name!r}: there is none; known: {', '.join(ENGINES)}")
    try:
        module = importlib.import_module(kind.module)
    except ImportError as error:
        raise EngineError(f"engine {name!r}: {error}; install warmroute[cpu] or warmroute[gpu]") from error
    engine: Engine = module.make_engine(settings)
    return engine
