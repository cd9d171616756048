"""What a bench came to, as a document, and the figures made of it. Nothing here measures."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec

from worker.bench.contenders import PLAIN
from worker.bench.samples import Sample, Steady
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA: Final = 1
CACHES: Final = ("cold", "warm")
_REST_LEAST_S: Final = 0.0001
REST: Final = "rest"
"""What the stages do not account for: the loop, the listener, the shared state, the bench's own reading."""


class BesideSample(msgspec.Struct, frozen=True):
    """P99 of the load beside one start, by itself and while the start was under way, in seconds."""

    row: str
    quiet_s: float
    during_s: float


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured."""

    cores: int
    processor: str
    memory_bytes: int
    kernel: str
    python: str
    onnxruntime: str


class Results(msgspec.Struct, frozen=True):
    """One run of the bench."""

    schema: int
    machine: Machine
    model: str
    model_bytes: int
    shapes: str
    device: str
    threads: int
    rounds: int
    warm_ups: int
    emptied: str
    """How the page cache was emptied: ``drop_caches`` or ``fadvise``; empty where it never was."""
    samples: list[Sample]
    steady: list[Steady]
    beside: list[BesideSample]
    packed: bool = False
    """Whether files of the model are unpacked as it is loaded."""
    saved_percent: float = 0.0
    """How much smaller its files are than what they hold, as far as they say."""

    def rows(self) -> list[str]:
        """Return the rows in their order."""
        return list(dict.fromkeys(sample.row for sample in self.samples))

    def of(self, row: str, cache: str) -> list[Sample]:
        """Return the samples of one row from one state of the page cache."""
        return [sample for sample in self.samples if sample.row == row and sample.cache == cache]

    def answer_s(self, row: str, cache: str) -> float | None:
        """Return the median time from spawn to first answer; None where it was not measured."""
        return median(sample.answer_s for sample in self.of(row, cache))

    def times_lower(self, row: str, cache: str) -> float | None:
        """Return how many times lower that is than the plain session's."""
        mine, plain = self.answer_s(row, cache), self.answer_s(PLAIN, cache)
        return None if mine is None or plain is None else plain / mine

    def stages(self, row: str, cache: str) -> dict[str, float]:
        """Return the median of each stage, in the order of a start, and of what they leave over as ``rest``.

        Stages of which every sample is 0 are left out.
        """
        samples = self.of(row, cache)
        found = {}
        for stage in Stage:
            seconds = median(sample.stages.get(stage.value, 0.0) for sample in samples)
            if seconds:
                found[stage.value] = seconds
        rest = median(max(0.0, sample.answer_s - sum(sample.stages.values())) for sample in samples)
        return {**found, REST: rest} if rest and rest > _REST_LEAST_S else found

    def steady_rps(self, row: str) -> float | None:
        """Return the median of the throughput after the swap."""
        return median(one.after_rps for one in self.steady if one.row == row)


def median(values: Iterable[float]) -> float | None:
    """Return the median; None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of ``values`` do not exceed (the nearest rank above)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
