"""LLM engines behind OpenAI's surface: vLLM, SGLang, NIM. They say which models they serve, and whether they sleep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from router.model import State
from sidecar.upstreams.adapters import (
    ANYTHING,
    NOT_ASKED,
    Load,
    Question,
    Reading,
    Signal,
    clipped,
    is_not_served,
    metrics_question,
    page_of,
    proof,
    queued,
    readiness,
    served,
)
from sidecar.upstreams.metrics_page import mean, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.settings import Probe
    from sidecar.upstreams.adapters import Answer, Held
    from sidecar.upstreams.metrics_page import MetricsPage

MODELS: Final = Question("/v1/models", body_bytes=2 << 20, every_s=10.0)
"""A list of thousands of adapters is some hundred KiB long."""
TOO_LONG: Final = (
    f"its {MODELS.path} is over {MODELS.body_bytes >> 20} MiB, so what it serves is not known; "
    'probe.served_as: "*" asks for the server alone'
)
_SLEEPS: Final = Question("/is_sleeping", body_bytes=1024)
_AWAKE: Final = "awake"


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine spells things. Of several names of a metric the first that is there counts.

    ``waiting``: requests in its queue; ``usage``: the share of its KV cache in use; ``runs``: requests or tokens that
    it has answered with. ``queued``: the histogram of how long requests waited, seconds. ``sleep_state``: a gauge by
    label ``sleep_state``, 1 for the one it is in.
    """

    name: str
    ready_path: str
    metrics_path: str
    waiting: tuple[str, ...]
    usage: tuple[str, ...]
    runs: tuple[str, ...]
    queued: str
    sleep_state: str = ""
    may_sleep: bool = True


VLLM: Final = Engine(
    "vllm",
    "/health",
    "/metrics",
    waiting=("vllm:num_requests_waiting",),
    usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    runs=("vllm:generation_tokens_total", "vllm:request_success_total"),
    queued="vllm:request_queue_time_seconds",
    sleep_state="vllm:engine_sleep_state",
)
SGLANG: Final = Engine(
    "sglang",
    "/health",
    "/metrics",
    waiting=("sglang:num_queue_reqs",),
    usage=("sglang:token_usage",),
    runs=("sglang:generation_tokens_total", "sglang:num_requests_total"),
    queued="sglang:queue_time_seconds",
)
NIM: Final = Engine(
    "nim",
    "/v1/health/ready",
    "/v1/metrics",
    waiting=("num_requests_waiting", "vllm:num_requests_waiting"),
    usage=("gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    runs=("generation_tokens_total", "request_success_total", "vllm:generation_tokens_total"),
    queued="vllm:request_queue_time_seconds",
    may_sleep=False,
)


class EngineReadiness:
    """Asks for health, sleep and load each time, and now and then for the names of what is served."""

    def __init__(self, engine: Engine, probe: Probe) -> None:
        self.name = engine.name
        self._engine = engine
        self._ready = Question(probe.path or engine.ready_path)
        self._metrics = None
        if probe.load:
            self._metrics = metrics_question(probe.metrics_path or engine.metrics_path, probe.metrics_port)
        self._queued = (f"{engine.queued}_sum", f"{engine.queued}_count")
        self._listed: tuple[Answer, tuple[str, ...] | None] = (NOT_ASKED, None)
        self._names = frozenset(
            filter(None, (*engine.waiting, *engine.usage, *engine.runs, engine.sleep_state, *self._queued))
        )

    def questions(self, held: Sequence[Held]) -> tuple[Question, ...]:
        """Ask for the engine's health first."""
        asked = [self._ready]
        if self._engine.may_sleep:
            asked.append(_SLEEPS)
        asked.append(MODELS)
        if self._metrics is not None:
            asked.append(self._metrics)
        return tuple(asked)

    def read(self, held: Sequence[Held], answers: Mapping[Question, Answer]) -> Reading:
        """Return each model's state; its warmth is whether the engine has answered anything yet."""
        engine = self._engine
        page, told = page_of(self._metrics, self._names, answers)
        found = readiness(answers.get(self._ready, NOT_ASKED))
        if found.state is State.WARM and self._sleeps(answers, page):
            found = Signal(State.COLD, "it sleeps; POST /wake_up wakes it")
        warmth = proof(total(page.whole(engine.runs)))
        signals = {}
        for one in held:
            why = "" if found.state is not State.WARM else self._is_missing(one[0], answers.get(MODELS, NOT_ASKED))
            signals[one] = Signal(State.LOADING if why else found.state, why or found.reason, warmth)
        return Reading(signals, self._load(page) if told else None, page.refused, queued(page, *self._queued))

    def _is_missing(self, name: str, answer: Answer) -> str:
        """Return why it is not ready for ``name`` by the list that it answered with; empty where that says nothing."""
        if answer.cut and answer.good:
            return "" if name == ANYTHING else TOO_LONG
        if answer is not self._listed[0]:  # one answer is read in many rounds
            self._listed = (answer, served(answer))
        names = self._listed[1]
        return "" if names is None else is_not_served(name, names)

    def _sleeps(self, answers: Mapping[Question, Answer], page: MetricsPage) -> bool:
        """Return whether it says so, on its own path (development mode only, in vLLM) or on its metrics page."""
        said = answers.get(_SLEEPS, NOT_ASKED).document()
        if isinstance(said, dict) and isinstance(said.get("is_sleeping"), bool):
            return bool(said["is_sleeping"])
        states = page.of((self._engine.sleep_state,))
        return any(one.label("sleep_state") == _AWAKE and one.value == 0 for one in states)

    def _load(self, page: MetricsPage) -> Load:
        engine = self._engine
        waiting, usage = total(page.whole(engine.waiting)), mean(page.whole(engine.usage))
        return Load(
            queue_depth=None if waiting is None else clipped(waiting),
            free_memory_ratio=None if usage is None else 1.0 - min(1.0, usage),
        )
