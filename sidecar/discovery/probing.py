"""One endpoint followed by one probe: what to ask it next, and what its answers come to. Pure, but for its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from router.model import State
from router.stats import RecentMean
from sidecar.settings import ProbeKind
from sidecar.upstreams.adapters import ANYTHING, HttpReadiness, Load, Reading, Signal, reason_of
from sidecar.upstreams.kinds import adapter_for, kind_of, kind_questions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sidecar.discovery.planned import Loaded
    from sidecar.settings import Probe
    from sidecar.upstreams.adapters import Answer, Held, Question, SignalAdapter

ABSENT: Final = frozenset({404, 405, 501})
ABSENT_S: Final = 60.0
"""What a server does not know is asked again after this, where it is no model's readiness."""
QUEUED_S: Final = 60.0
"""The queue time is the mean of this long: as long as the P95 of which it is a part."""
RETURNING_RATIO: Final = 0.02
"""One that is loading or away is asked again after this share of the time that it has been so: so it is found back that
much too late at most, and asked some 50 times for each time that its outage is e times as long."""
HOLD_S: Final = 5.0
"""So long the last load stands while the server does not answer in time: under load, metrics pages are slow."""
NOT_KNOWN: Final = "not recognised yet: it answers as no kind of server that is known; set probe.kind"


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of questions came to. ``kind`` is that of the server, None while it is not known.

    No ``signals``: all that is known now is what to ask, and that may be done at once.
    """

    kind: ProbeKind | None
    signals: Mapping[Held, Signal]
    load: Load
    refused: Mapping[str, int]


class Probing:
    """What is remembered of an endpoint between two rounds of one probe's questions.

    ``grpc``: it is asked by grpc.health.v1, which knows readiness alone. Models are named here as the configuration
    does; what they are called at the server stands in the probe.
    """

    def __init__(self, probe: Probe, *, grpc: bool = False) -> None:
        self._probe = probe
        self._adapter: SignalAdapter | None = HttpReadiness() if grpc else None
        self._fixed = grpc or probe.kind is not ProbeKind.AUTO
        self.kind: ProbeKind | None = None
        if self._fixed:
            self.kind = ProbeKind.HTTP if grpc else probe.kind
            self._adapter = self._adapter or adapter_for(probe.kind, probe)
        self._known: dict[Question, tuple[Answer, float]] = {}
        self._load = Load()
        self._load_at = 0.0
        self._queued = RecentMean(QUEUED_S)
        self._loading: frozenset[Held] = frozenset()
        self._loading_from = 0.0

    def questions(self, held: Sequence[Held], now: float) -> tuple[Question, ...]:
        """Return what to ask now; what need not be asked again yet is left out."""
        if self._adapter is None:
            return kind_questions(self._probe)
        wanted = self._adapter.questions(self._there(held))
        for question in self._known.keys() - set(wanted):
            del self._known[question]
        return tuple(
            question for position, question in enumerate(wanted) if self._is_due(question, now, first=position == 0)
        )

    def _is_due(self, question: Question, now: float, *, first: bool) -> bool:
        known = self._known.get(question)
        if known is None or first:
            return True
        answer, at = known
        if answer.status in ABSENT and not question.path.endswith("/ready"):
            return now >= at + ABSENT_S
        every_s = question.every_s
        if self._loading:  # what is asked seldom may be what it is waited for: a name that is not listed yet
            every_s = min(every_s, self._probe.interval_s)
        return now >= at + every_s

    def next_s(self, now: float, *, hurry: bool) -> float:
        """Return how long after this round the next one is due.

        That is soon while anything is on its way back, where there is room to ``hurry``. What is cold is left so by
        somebody, and what has been loading for long may be for longer.
        """
        probe = self._probe
        if not (hurry and self._loading):
            return probe.interval_s
        return min(probe.interval_s, max(probe.returning_s, RETURNING_RATIO * (now - self._loading_from)))

    def take(self, held: Sequence[Held], answers: Mapping[Question, Answer], now: float) -> Round:
        """Take a round's answers; return what they and those that are remembered come to."""
        found = self._read(held, answers, now)
        if found.signals:
            loading = frozenset(one for one, signal in found.signals.items() if signal.state is State.LOADING)
            if not loading <= self._loading:
                self._loading_from = now
            self._loading = loading
        return found

    def _read(self, held: Sequence[Held], answers: Mapping[Question, Answer], now: float) -> Round:
        for question, answer in answers.items():
            self._known[question] = (answer, now)
        if answers and all(answer.status is None for answer in answers.values()):  # it is gone: another may return
            self._known = {question: self._known[question] for question in answers}
            if not self._fixed:
                self._adapter, self.kind = None, None
        if self._adapter is None:
            self.kind = kind_of(self._probe, answers)
            if self.kind is None:
                return self._unknown(held, answers)
            self._adapter = adapter_for(self.kind, self._probe)
            self._known.clear()
            return Round(self.kind, {}, Load(), {})  # what it is asked from here on says more
        there = self._there(held)
        reading = self._adapter.read(there, {question: answer for question, (answer, _) in self._known.items()})
        return Round(
            self.kind,
            {one: _tidy(reading.signals[name]) for one, name in zip(held, there, strict=True)},
            self._loaded(reading, now),
            reading.refused,
        )

    def _unknown(self, held: Sequence[Held], answers: Mapping[Question, Answer]) -> Round:
        silent = next((answer.error for answer in answers.values() if answer.status is None), "")
        answered = any(answer.status is not None for answer in answers.values())
        reason = NOT_KNOWN if answered else f"no answer: {silent}"
        return Round(None, dict.fromkeys(held, _tidy(Signal(State.LOADING, reason))), Load(), {})

    def _loaded(self, reading: Reading, now: float) -> Load:
        if reading.load is not None:
            self._load, self._load_at = reading.load, now
            if reading.queued is not None:
                mean_s = self._queued.take(*reading.queued, now)
                self._load = replace(self._load, queue_time_ms=None if mean_s is None else mean_s * 1000)
        elif now - self._load_at > HOLD_S:
            self._load = Load()
        return self._load

    def _there(self, held: Iterable[Held]) -> list[Held]:
        """Return what is held, by the names that the server knows."""
        name = self._probe.served_as
        return [(name or model, "" if name == ANYTHING else version) for model, version in held]


def _tidy(signal: Signal) -> Signal:
    return replace(signal, reason=reason_of(signal.reason)) if signal.reason else signal


def merged(loads: Iterable[Load]) -> Load:
    """Return what several probes of one endpoint say of its load: of each figure, the first that is known."""
    every = tuple(loads)
    with_memory = next((load for load in every if load.total_memory_bytes is not None), Load())
    return Load(
        next((load.queue_depth for load in every if load.queue_depth is not None), None),
        with_memory.free_memory_bytes,
        with_memory.total_memory_bytes,
        next((load.free_memory_ratio for load in every if load.free_memory_ratio is not None), None),
        next((load.queue_time_ms for load in every if load.queue_time_ms is not None), None),
    )


QUEUED_STEP: Final = 10.0
"""Of queue times a tenth is such a share."""
STEP_RATIO: Final = 0.01
"""Memory that changed by less than this share of all is not told: nothing would be decided by it."""


def worth_telling(before: Loaded, after: Loaded) -> bool:
    """Return whether ``after`` differs from what was told before by more than a hair."""
    if (before.queue_depth, before.total_memory_bytes) != (after.queue_depth, after.total_memory_bytes):
        return True
    waits = before.queue_time_ms, after.queue_time_ms
    if _moved(*waits, QUEUED_STEP * max(*(wait or 0.0 for wait in waits))):
        return True
    return _moved(before.free_memory_bytes, after.free_memory_bytes, after.total_memory_bytes or 1) or _moved(
        before.free_memory_ratio, after.free_memory_ratio, 1
    )


def _moved(before: float | None, after: float | None, whole: float) -> bool:
    if before is None or after is None or before == after:
        return before is not after and before != after
    return abs(after - before) >= STEP_RATIO * whole or (after == 0) is not (before == 0)
