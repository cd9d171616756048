"""What Triton's statistics extension tells of one model version: how many inferences, and where their time went."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BATCH_SIZES = 256
"""Sizes of batches that are told apart; of others the sums alone are kept."""


@dataclass(slots=True)
class Sum:
    """How often something happened, and how many nanoseconds it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one more, which took ``seconds``."""
        self.count += 1
        self.ns += max(0, int(seconds * 1e9))

    def shown(self) -> dict[str, int]:
        """Return it as the extension writes it."""
        return {"count": self.count, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that one inference spent: waiting for a thread, being read, executed, and written."""

    queue_s: float
    input_s: float
    infer_s: float
    output_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.queue_s + self.input_s + self.infer_s + self.output_s


class Statistics:
    """The sums of one model version since it was loaded. Usable from any thread."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        """``wall_clock``: seconds since 1970, for the moment of the last inference."""
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._last_inference_ms = 0
        self._inferences = self._executions = 0
        self._sums = {name: Sum() for name in ("success", "fail", "queue", *_COMPUTE)}
        self._batches: dict[int, dict[str, Sum]] = {}

    def succeeded(self, times: Times, batch_size: int = 1) -> None:
        """Count an inference that was answered. The execution itself is counted by :meth:`executed`.

        ``batch_size``: how many were executed with it, itself included, for one of them; 0 for the others,
        whose execution is counted by its size already.
        """
        with self._lock:
            self._inferences += 1
            self._sums["success"].add(times.total_s)
            self._sums["queue"].add(times.queue_s)
            compute = dict(zip(_COMPUTE, (times.input_s, times.infer_s, times.output_s), strict=True))
            for name, seconds in compute.items():
                self._sums[name].add(seconds)
            batch = self._batches.get(batch_size)
            if batch is None and batch_size and len(self._batches) < MAX_BATCH_SIZES:
                batch = self._batches[batch_size] = {name: Sum() for name in _COMPUTE}
            if batch is not None:
                for name, seconds in compute.items():
                    batch[name].add(seconds)

    @property
    def inferences(self) -> int:
        """How many were answered."""
        return self._inferences

    def failed(self, seconds: float) -> None:
        """Count an inference that was not answered as it should be, ``seconds`` after it came."""
        with self._lock:
            self._sums["fail"].add(seconds)

    def executed(self) -> None:
        """Count a run of the model that ended well."""
        with self._lock:
            self._executions += 1

    def began(self) -> None:
        """Note that an inference is asked for now."""
        self._last_inference_ms = int(self._wall_clock() * 1000)

    def shown(self, name: str, version: str) -> dict[str, Any]:
        """Return the extension's object for the model version of that name."""
        with self._lock:
            return {
                "name": name,
                "version": version,
                "last_inference": self._last_inference_ms,
                "inference_count": self._inferences,
                "execution_count": self._executions,
                "inference_stats": {name: one.shown() for name, one in self._sums.items()},
                "batch_stats": [
                    {"batch_size": size, **{name: one.shown() for name, one in batch.items()}}
                    for size, batch in sorted(self._batches.items())
                ],
            }


_COMPUTE = ("compute_input", "compute_infer", "compute_output")
