"""The figures of a run: medians with their spread, ratios round by round, and what lies over its bound."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.bench.choice import Choice
    from tools.bench.load import Sample

BOUNDS: dict[str, dict[str, float]] = {
    "warmroute": {"nginx": 1.8},
    "warmroute-compiled": {"nginx": 1.3, "envoy": 0.45},
}
"""Most CPU per request that each build of ours may take, as a ratio to others."""

COMPARED = {"warmroute": ("nginx", "envoy"), "warmroute-compiled": ("nginx", "envoy", "warmroute")}
"""What each build of ours is compared with, where both are in the run."""

CHOICE_BOUND_US = 5.0
"""Most time for one choice of an endpoint, at any size of the fleet."""


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

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}..{self.most:.2f})"


@dataclass(frozen=True)
class Row:
    """One contender's figures."""

    name: str
    version: str
    cpu_us: Spread
    requests_per_s: float
    cpu_ratio: float
    p99_ms: float
    pss_mb: float


@dataclass(frozen=True)
class Report:
    """A whole run.

    ``ratios`` maps a build of ours and another proxy to the first one's CPU per request over the other's; ``over``
    names each bound that is broken.
    """

    rows: tuple[Row, ...]
    ratios: dict[str, dict[str, Spread]]
    choices: tuple[Choice, ...]
    over: tuple[str, ...]

    @classmethod
    def of(cls, samples: dict[str, list[Sample]], versions: dict[str, str], choices: Sequence[Choice]) -> Report:
        """Sum up the samples of a run, which are in the order of their rounds."""
        rows = tuple(_row(name, versions[name], rounds) for name, rounds in samples.items())
        ratios = {
            ours: {name: _ratio(samples[ours], samples[name]) for name in others if name in samples}
            for ours, others in COMPARED.items()
            if ours in samples
        }
        over = [
            f"{ours}: CPU per request {spread.median:.2f} x {name}, at most {bound}"
            for ours, spreads in ratios.items()
            for name, spread in spreads.items()
            if (bound := BOUNDS[ours].get(name)) and spread.median > bound
        ]
        over += [
            f"one choice of {choice.endpoints} endpoints {choice.choose_us:.2f} µs, at most {CHOICE_BOUND_US}"
            for choice in choices
            if choice.choose_us > CHOICE_BOUND_US
        ]
        return cls(rows, ratios, tuple(choices), tuple(over))


def _ratio(ours: Sequence[Sample], others: Sequence[Sample]) -> Spread:
    pairs = zip(ours, others, strict=True)
    return Spread.of([a.cpu_us_per_request / b.cpu_us_per_request for a, b in pairs])


def _row(name: str, version: str, rounds: Sequence[Sample]) -> Row:
    def middle(figure: Callable[[Sample], float]) -> float:
        return median(figure(sample) for sample in rounds)

    return Row(
        name=name,
        version=version,
        cpu_us=Spread.of([sample.cpu_us_per_request for sample in rounds]),
        requests_per_s=middle(lambda sample: sample.requests / sample.seconds),
        cpu_ratio=middle(lambda sample: sample.cpu_ratio),
        p99_ms=middle(lambda sample: sample.p99_ms),
        pss_mb=middle(lambda sample: sample.pss_bytes / 1e6),
    )


def print_report(report: Report) -> None:
    """Print the run as one table on standard output."""
    table = Table(title="CPU per proxied request: one worker, 32 connections, POST 1 KB, every head different")
    table.add_column("proxy", no_wrap=True)
    compared = [f"{ours} is" for ours in report.ratios]
    for title in ("CPU µs/request", *compared, "requests/s", "core busy", "p99 ms", "PSS MB"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(
            f"{row.name} {row.version}".strip(),
            str(row.cpu_us),
            *(_against(ours, row.name, spreads) for ours, spreads in report.ratios.items()),
            f"{row.requests_per_s:,.0f}",
            f"{row.cpu_ratio:.0%}",
            f"{row.p99_ms:.2f}",
            f"{row.pss_mb:.1f}",
        )
    if report.choices:
        table.add_section()
    for choice in report.choices:
        table.add_row(
            f"one choice of {choice.endpoints:,} endpoints",
            f"{choice.choose_us:.2f} <= {CHOICE_BOUND_US}",
            f"with its end {choice.both_us:.2f}",
        )
    console = Console()
    console.width = max(console.width, 160)  # the table is narrower: this only keeps it from being squeezed
    console.print(table)


def _against(ours: str, name: str, spreads: dict[str, Spread]) -> str:
    """Return one cell: the ratio to ``name``, and its bound where it has one."""
    if name not in spreads:
        return ""
    bound = BOUNDS[ours].get(name)
    return f"{spreads[name]} x{f' <= {bound}' if bound else ''}"
