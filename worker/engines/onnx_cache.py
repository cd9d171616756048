"""Keeps optimised graphs: what ONNX Runtime makes of a model before it makes a session is the same at the next start.

An entry holds the graph alone; its weights are the model's own files, as long as the optimiser left them as they were.
"""

from __future__ import annotations

import contextlib
import platform
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import onnxruntime as ort
import xxhash

from worker import json_text
from worker.crew import Crew
from worker.engines import Cancellation, EngineError
from worker.engines.background import lower_priority, turn
from worker.engines.onnx_graph import MAX_INLINE_BYTES, GraphError, external_tensors, refer_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from worker.engines.model_cache import ModelCache
    from worker.engines.onnx_options import OnnxOptions
    from worker.log import EventLog
    from worker.store import ModelFiles

    Save = Callable[[Path, Mapping[str, str], Cancellation], None]
    """Makes a session and has its optimised graph written to the path, with these entries."""

MAX_WEIGHT_BYTES: Final = 4 << 30
"""Of larger models none is kept: to make an entry, ONNX Runtime writes all weights once, which are then thrown away."""
SETTLE_S: Final = 1.0
"""How long after a load the entry for the next one is begun."""
_FORM: Final = 1  # of entries: another number, other entries
_WEIGHTS: Final = "warmroute-optimised-weights"
_SAVED: Final = "model.onnx"


class OptimisedGraphs:
    """The cache as the engine uses it; of models whose only provider is the CPU's."""

    most_bytes = MAX_WEIGHT_BYTES
    """Of a model with more bytes of files nothing is kept."""

    def __init__(self, cache: ModelCache, log: EventLog, settle_s: float = SETTLE_S) -> None:
        self._cache = cache
        self._log = log
        self._settle_s = settle_s
        self._lock = threading.Lock()
        self._making: dict[str, Crew] = {}

    def key(self, files: ModelFiles, options: OnnxOptions) -> str | None:
        """Return what tells apart what would be optimised differently; None where nothing is to be kept."""
        if not files.content_hash or not options.on_cpu or options.graph == "disabled":
            return None
        said = msgspec.to_builtins((options.providers, options.session, options.graph, options.deterministic))
        parts = [
            _FORM,
            files.content_hash,
            ort.__version__,
            ort.get_build_info(),
            said,
            options.custom_ops,
            _processor(),
        ]
        return xxhash.xxh3_128_hexdigest(json_text.encode_sorted(parts))

    def find(self, key: str) -> bytes | None:
        """Return the graph that is kept under ``key``."""
        return self._cache.get(key)

    def entries(self, files: ModelFiles) -> dict[str, str]:
        """Return the session entries by which a model that comes as bytes finds its weights."""
        assert files.model_file is not None  # noqa: S101 - of a model without files nothing is kept
        return {"session.model_external_initializers_file_folder_path": str(files.model_file.parent)}

    def drop(self, key: str, reason: str) -> None:
        """Take away a graph of which no session could be made."""
        self._cache.drop(key, reason)

    def make(self, key: str, files: ModelFiles, save: Save, unchanged: Callable[[], bool]) -> None:
        """Make the entry in the background, for the next start; returns at once.

        Not of a model whose file is so large that it must hold its weights itself.
        """
        if files.model_file is None or files.model_file.stat().st_size > MAX_INLINE_BYTES:
            return
        with self._lock:
            made = self._making.get(key)
            if not self._cache.writable or (made is not None and not made.is_over):
                return
            crew = Crew()
            with contextlib.suppress(MemoryError):  # only its next start is no quicker
                crew.start(partial(self._make, key, files, save, unchanged))
                self._making[key] = crew

    def wait(self, timeout_s: float) -> None:
        """Wait for the entries that are being made, for at most so long each."""
        with self._lock:
            making = list(self._making.values())
        for crew in making:
            crew.wait(timeout_s)

    def _make(self, key: str, files: ModelFiles, save: Save, unchanged: Callable[[], bool]) -> None:
        model_file = files.model_file or Path()
        cancellation = Cancellation()
        try:
            cancellation.wait(self._settle_s)
            with turn(cancellation), self._cache.work() as directory:
                if not unchanged():
                    return
                lower_priority()
                save(directory / _SAVED, saving_entries(), cancellation)
                graph = (directory / _SAVED).read_bytes()
                originals = external_tensors(model_file.read_bytes())
                graph = refer_to(graph, directory / _WEIGHTS, originals, model_file.parent)
            if unchanged() and self._cache.put(key, graph):
                self._log.info("model_cache.stored", model=files.name, version=files.version, bytes=len(graph))
        except (EngineError, GraphError, OSError) as error:
            self._log.warning(
                "model_cache.not_stored", model=files.name, version=files.version, reason=str(error)[:500]
            )
        except Exception as error:  # noqa: BLE001 - the model serves; only its next start is no quicker
            reason = f"{type(error).__name__}: {error}"[:500]
            self._log.error("model_cache.not_stored", model=files.name, version=files.version, reason=reason)
        finally:
            with self._lock:
                self._making.pop(key, None)


def saving_entries() -> dict[str, str]:
    """Return the session entries by which weights are written beside a graph, and prepacked for none."""
    return {
        "session.optimized_model_external_initializers_file_name": _WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
        "session.disable_prepacking": "1",
    }


def _processor() -> str:
    """Return what this processor can do: some optimisations are made for that."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
    return " ".join(told.get(name, "") for name in ("model name", "flags", "CPU part", "Features"))
