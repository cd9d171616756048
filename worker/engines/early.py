"""An engine whose devices come up in a thread of their own, while the models' files are still being read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from worker.engines import EngineError, GivenUpError, told
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.engines import Cancellation, Engine, LoadedModel
    from worker.log import EventLog
    from worker.memory import Memory, MemoryProbe
    from worker.stages import Stages
    from worker.store import ModelFiles

_LOOK_S = 0.05
"""How long a load that waits for the device takes to see that it was given up."""


class EarlyEngine:
    """Passes everything on to ``engine``, whose :meth:`initialize` runs meanwhile; loads wait for its end.

    What failed there fails again in the load of the model that needs it, and is that model's failure, no other's.
    """

    def __init__(self, engine: Engine, host: MemoryProbe, log: EventLog) -> None:
        """``host`` is where models are that are on no device."""
        self._engine = engine
        self._host = host
        self._log = log
        self._done = threading.Event()
        self._done.set()
        self._no_memory_told = False

    def initialize(self, models: Sequence[ModelFiles]) -> None:
        """Begin to bring up devices, and return at once."""
        self._done.clear()
        threading.Thread(target=self._initialize, args=(models,), name="device", daemon=True).start()

    def _initialize(self, models: Sequence[ModelFiles]) -> None:
        try:
            self._engine.initialize(models)
        except EngineError as error:
            self._log.warning("engine.device_failed", error=told(error))
        except BaseException as error:  # noqa: BLE001 - loads wait for this thread, whatever broke
            self._log.error("engine.device_failed", error=f"{type(error).__name__}: {told(error)}")
        finally:
            self._done.set()

    def load(self, files: ModelFiles, cancellation: Cancellation, stages: Stages) -> LoadedModel:
        """Wait for the devices and load; see :class:`worker.engines.Engine`."""
        if not self._done.is_set():
            with stages.measure(Stage.DEVICE):
                while not self._done.wait(_LOOK_S):
                    if cancellation.cancelled:
                        raise GivenUpError("given up while the device came up")
        return self._engine.load(files, cancellation, stages)

    def memory(self) -> Memory | None:
        """Return the memory of the devices; see :class:`worker.engines.Engine`. None where the engine fails to say."""
        try:
            return self._engine.memory()
        except BaseException as error:  # noqa: BLE001 - reports go on without it; Ctrl-C has a handler of its own
            if not self._no_memory_told:
                self._no_memory_told = True
                self._log.error("engine.memory_unknown", error=f"{type(error).__name__}: {told(error)}")
            return None

    def read(self) -> Memory | None:
        """Return the memory that models live in, wherever that is; see :class:`worker.memory.MemoryProbe`."""
        return self.memory() or self._host.read()
