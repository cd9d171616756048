"""The load beside a start: a small model in a worker of its own, asked all the time, and how its answers slow down."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from worker.bench.model import NAME
from worker.bench.synthetic import write_model
from worker.bench.worker_start import StartError, WorkerStart

MODEL_BYTES: Final = 4_000_000
PAUSE_S: Final = 0.002
QUIET_S: Final = 2.0
"""How long it is measured by itself first."""


class Beside:
    """A context manager: the neighbour is there, and is asked from one thread."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._took: list[float] = []
        self._error: Exception | None = None
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Beside:
        with contextlib.ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-beside-")))
            models, shared = root / "models", root / "shared"
            write_model(models / NAME / "1", MODEL_BYTES)
            shared.mkdir(mode=0o700)
            flags = ("--models", str(models), "--shm-dir", str(shared))
            self._worker = stack.enter_context(WorkerStart(flags, {}))
            self._worker.first_answer()
            thread = threading.Thread(target=self._ask, name="beside", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._stop.set)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _ask(self) -> None:
        try:
            while not self._stop.wait(PAUSE_S):
                took = self._worker.run(0)[0]
                with self._lock:
                    self._took.append(took)
        except StartError as error:
            self._error = error

    def quiet(self) -> float:
        """Measure it by itself; returns its P99 in seconds."""
        time.sleep(QUIET_S / 10)  # what the start before it has left behind
        with self._lock:
            self._took = []
        time.sleep(QUIET_S)
        return self.take()

    def take(self) -> float:
        """Return the P99 since the last call, in seconds, and begin anew.

        Raises:
            StartError: it failed, or answered nothing.
        """
        with self._lock:
            took, self._took = sorted(self._took), []
        if self._error is not None or not took:
            raise StartError(f"the load beside: {self._error or 'no answer'}")
        return took[min(len(took) - 1, int(0.99 * len(took)))]
