"""How busy a worker is, as it tells callers that ask: the source of load reports (ORCA) on every surface."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.execution import Executor
    from worker.memory import MemoryProbe

HOLDS_S = 0.2
"""For so long a load that was read stands: reports come with every answer, and reading takes system calls."""
RATES_S = 1.0
"""Rates are those of at least so long."""
TEXT = "text"
FORMAT_HEADER = "endpoint-load-metrics-format"
"""Header of a request that asks for a report: ``text``, ``json`` or ``bin``, in either case."""
REPORT_HEADER = "endpoint-load-metrics"
BINARY_REPORT_HEADER = "endpoint-load-metrics-bin"


@dataclass(frozen=True, slots=True)
class Load:
    """A worker's load. Utilizations are in [0, 1], rates per second; what is not known is None and is not told."""

    cpu_utilization: float | None
    mem_utilization: float | None
    rps_fractional: float | None
    eps: float | None
    queue_depth: int
    queue_time_ms: float | None

    def values(self) -> dict[str, float]:
        """Return what is known of the report's own fields."""
        fields = {
            "cpu_utilization": self.cpu_utilization,
            "mem_utilization": self.mem_utilization,
            "rps_fractional": self.rps_fractional,
            "eps": self.eps,
        }
        return {name: round(value, 4) for name, value in fields.items() if value is not None}

    def named(self) -> dict[str, float]:
        """Return the metrics that the report has no fields for, by name."""
        named: dict[str, float] = {"queue_depth": self.queue_depth}
        if self.queue_time_ms is not None:
            named["queue_time_ms"] = round(self.queue_time_ms, 3)
        return named


def report_header(load: Load, form: str) -> tuple[str, str] | None:
    """Return the header with a report in the form that a caller asked for; None where it has no such form."""
    match form.strip().lower():
        case "text":
            entries = {**load.values(), **{f"named_metrics.{name}": value for name, value in load.named().items()}}
            return REPORT_HEADER, "TEXT " + ", ".join(f"{name}={value:g}" for name, value in entries.items())
        case "json":
            said = {**load.values(), "named_metrics": load.named()}
            return REPORT_HEADER, "JSON " + json_text.encode(said).decode()
        case "bin":
            return BINARY_REPORT_HEADER, base64.b64encode(report_message(load)).decode()
    return None


def report_message(load: Load) -> bytes:
    """Return an ``OrcaLoadReport`` in bytes."""
    from warmroute_pb.v1 import beside_pb2 as beside  # protobuf is not loaded where nobody asks for it

    report = beside.OrcaLoadReport(named_metrics=load.named())
    for name, value in load.values().items():
        setattr(report, name, value)
    return report.SerializeToString()


class LoadProbe:
    """Reads the load. Used on the event loop only."""

    def __init__(
        self,
        executor: Executor,
        memory: MemoryProbe,
        cpu_load: Callable[[], float | None],
        served: Callable[[], tuple[int, int]],
        clock: Callable[[], float],
    ) -> None:
        """``served``: how many requests were answered and how many failed, since the start. ``clock``: monotonic s."""
        self._executor = executor
        self._memory = memory
        self._cpu_load = cpu_load
        self._served = served
        self._clock = clock
        self._load: Load | None = None
        self._read_at = self._rated_at = clock()
        self._before = served()
        self._rates: tuple[float, float] | None = None

    def read(self) -> Load:
        """Return the load now; one that is younger than :data:`HOLDS_S` stands."""
        now = self._clock()
        if self._load is None or now - self._read_at >= HOLDS_S:
            self._read_at = now
            self._rate(now)
            memory = self._memory.read()
            rps, eps = self._rates or (None, None)
            self._load = Load(
                self._cpu_load(),
                None if memory is None else 1 - memory.free_bytes / max(1, memory.total_bytes),
                rps,
                eps,
                self._executor.queue_depth,
                self._executor.queue_time_ms(),
            )
        return self._load

    def _rate(self, now: float) -> None:
        elapsed_s = now - self._rated_at
        if elapsed_s < RATES_S:
            return
        answered, failed = self._served()
        before_answered, before_failed = self._before
        self._rates = (
            (answered + failed - before_answered - before_failed) / elapsed_s,
            (failed - before_failed) / elapsed_s,
        )
        self._rated_at, self._before = now, (answered, failed)
