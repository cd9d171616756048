"""A whole run: what was measured, as it is kept in results.json, and the medians and ratios that it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from tools.bench.choice import Choice
from tools.bench.explain import Explanation
from tools.bench.load import Sample
from tools.bench.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Spread:
    """Median, least and most of a figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of ``values``, of which there is at least one."""
        return cls(median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Return the median, and least and most where they differ."""
        middle = f"{self.median:,.{digits}f}"
        if self.least == self.most:
            return middle
        return f"{middle} ({self.least:,.{digits}f}–{self.most:,.{digits}f})"


@dataclass
class Run:
    """Everything one run measured.

    ``samples`` maps a profile to each contender's rounds, in order; ``skipped`` says why a contender is not there;
    ``explained`` maps a profile to what holds each build of ours under it.
    """

    machine: dict[str, str]
    rounds: int
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    explained: dict[str, dict[str, Explanation]] = field(default_factory=dict)

    def spread(self, profile: str, name: str, figure: Callable[[Sample], float]) -> Spread | None:
        """Return ``figure`` over the rounds of one contender; None where it was not measured."""
        rounds = self.samples.get(profile, {}).get(name)
        return Spread.of([figure(sample) for sample in rounds]) if rounds else None

    def compared(self, profile: str, ours: str, other: str, figure: Callable[[Sample, Sample], float]) -> Spread | None:
        """Return ``figure`` of both contenders' samples, round by round: only those of one round share a mood."""
        of_profile = self.samples.get(profile, {})
        if not of_profile.get(ours) or not of_profile.get(other):
            return None
        return Spread.of([figure(a, b) for a, b in zip(of_profile[ours], of_profile[other], strict=True)])

    def ratio(self, profile: str, ours: str, other: str) -> Spread | None:
        """Return the CPU per unit of ``ours`` over that of ``other``."""
        return self.compared(profile, ours, other, lambda a, b: a.cpu_us / b.cpu_us)

    def to_json(self) -> bytes:
        """Return the run as it is kept."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Run:
        """Read a run that was kept.

        Raises:
            msgspec.ValidationError: it is of another version of the benchmark.
        """
        return msgspec.json.decode(data, type=cls)
