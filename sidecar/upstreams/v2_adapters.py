"""Servers that speak the Open Inference Protocol (V2): Triton, KServe, MLServer. Ready is said model by model. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidecar.settings import PROBE_PATH
from sidecar.upstreams.adapters import (
    ANYTHING,
    NOT_ASKED,
    Load,
    Question,
    Reading,
    Signal,
    clipped,
    metrics_question,
    page_of,
    proof,
    queued,
    quoted,
    readiness,
)
from sidecar.upstreams.metrics_page import total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.settings import Probe
    from sidecar.upstreams.adapters import Answer, Held
    from sidecar.upstreams.metrics_page import MetricsPage, Series


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of these servers spells what the others do, too.

    ``runs``: counters of good runs, the first that is there counts; ``queue``: gauges of requests that wait, likewise.
    ``queued``: counters of the microseconds that requests waited, and of requests.
    ``versions``: it knows paths with a version. ``model_labels``: what the labels of a model's name are called.
    """

    name: str
    metrics_path: str
    metrics_port: int = 0
    runs: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    queued: tuple[str, str] = ("", "")
    used_memory: str = ""
    total_memory: str = ""
    versions: bool = True
    model_labels: tuple[str, ...] = ("model",)
    version_label: str = "version"


TRITON: Final = Dialect(
    "triton",
    "/metrics",
    8002,
    runs=("nv_inference_exec_count", "nv_inference_request_success"),
    queue=("nv_inference_pending_request_count",),
    queued=("nv_inference_queue_duration_us", "nv_inference_request_success"),
    used_memory="nv_gpu_memory_used_bytes",
    total_memory="nv_gpu_memory_total_bytes",
)
MLSERVER: Final = Dialect(
    "mlserver", "/metrics", 8082, runs=("model_infer_request_success_total", "model_infer_request_success")
)
KSERVE: Final = Dialect(
    "kserve",
    "/metrics",
    runs=("request_predict_seconds_count",),
    versions=False,  # a path with a version is 501 there
    model_labels=("model_name", "model"),
)


class V2Readiness:
    """Asks each model whether it is ready, and the metrics page for load and good runs."""

    def __init__(self, dialect: Dialect, probe: Probe) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._path = probe.path
        self._metrics = None
        if probe.load:
            self._metrics = metrics_question(
                probe.metrics_path or dialect.metrics_path, probe.metrics_port or dialect.metrics_port
            )
        memory = (dialect.used_memory, dialect.total_memory)
        self._names = frozenset(filter(None, (*dialect.runs, *dialect.queue, *dialect.queued, *memory)))

    def questions(self, held: Sequence[Held]) -> tuple[Question, ...]:
        """Ask for each model, then for the load."""
        asked = tuple(dict.fromkeys(map(self._ready, held)))
        return asked if self._metrics is None else (*asked, self._metrics)

    def _ready(self, held: Held) -> Question:
        model, version = held
        if self._path is not None:
            return Question(self._path)
        if model == ANYTHING:
            return Question(PROBE_PATH)
        within = f"/versions/{quoted(version)}" if version and self._dialect.versions else ""
        return Question(f"/v2/models/{quoted(model)}{within}/ready")

    def read(self, held: Sequence[Held], answers: Mapping[Question, Answer]) -> Reading:
        """Return each model's state; its warmth is whether it counts a good run."""
        page, told = page_of(self._metrics, self._names, answers)
        signals = {one: self._signal(one, answers, page) for one in held}
        waited = queued(page, *self._dialect.queued, unit_s=1e-6)
        return Reading(signals, self._load(page) if told else None, page.refused, waited)

    def _signal(self, held: Held, answers: Mapping[Question, Answer], page: MetricsPage) -> Signal:
        model = held[0]
        what = "this path; check probe.path" if self._path or model == ANYTHING else f"a model named {model[:64]}"
        found = readiness(answers.get(self._ready(held), NOT_ASKED), what)
        counted = total(one for one in page.of(self._dialect.runs) if self._is_of(held, one))
        return Signal(found.state, found.reason, proof(counted))

    def _is_of(self, held: Held, series: Series) -> bool:
        model, version = held
        if version and self._dialect.versions and series.label(self._dialect.version_label) not in (version, ""):
            return False
        return model == ANYTHING or any(series.label(label) == model for label in self._dialect.model_labels)

    def _load(self, page: MetricsPage) -> Load:
        dialect = self._dialect
        waiting = total(page.whole(dialect.queue))
        used = {one.labels: one.value for one in page.of((dialect.used_memory,))}
        both = [(one.value, used[one.labels]) for one in page.of((dialect.total_memory,)) if one.labels in used]
        memory = sum(whole for whole, _ in both)
        return Load(
            queue_depth=None if waiting is None else clipped(waiting),
            free_memory_bytes=clipped(sum(max(0.0, whole - taken) for whole, taken in both)) if memory else None,
            total_memory_bytes=clipped(memory) if memory else None,
        )
