"""Which law is played in which scenario with which knowledge, and the bounds that the router has to keep."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tests.sim import scenarios
from tests.sim.laws import LAWS, SLOW_START, WARM
from tests.sim.measures import Result
from tests.sim.play import play
from tests.sim.signals import Knows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.sim.laws import MakeLaw
    from tests.sim.scenarios import Scenario

OTHERS = tuple(name for name in LAWS if name != WARM)
BOUND_P999, BOUND_P99, BOUND_STEADY, BOUND_HERD, BOUND_SLOW_START = 12.3, 40.0, 1.05, 1.3, 1.25
QUANTILES = ("p50_ms", "p99_ms", "p999_ms")


@dataclass(frozen=True, slots=True)
class Row:
    """One law and what its proxy knows."""

    law: str
    knows: Knows


@dataclass(frozen=True, slots=True)
class Setting:
    """One scenario and who is played in it."""

    title: str
    scenario: Scenario
    rows: tuple[Row, ...]


RESTART_ROWS = (
    *(Row(WARM, knows) for knows in (Knows.REPORTS, Knows.PROOF, Knows.CHECKS, Knows.NOTHING)),
    *(Row(law, knows) for law in OTHERS for knows in (Knows.NOTHING, Knows.CHECKS)),
)
LYING_ROWS = tuple(row for row in RESTART_ROWS if row.knows is not Knows.REPORTS and row.knows is not Knows.NOTHING)
ROWS = (Row(WARM, Knows.REPORTS), *(Row(law, Knows.NOTHING) for law in OTHERS))
"""Where nobody's readiness changes: a check would change nothing either."""

ROLLING, LYING, STALE_RESTART = "rolling restart", "rolling restart, readiness lies", "rolling restart, stale reports"
STEADY = ("8 alike, 80%", "12 of three speeds, 70%", "48 of three speeds, 80%")
HERD, HERD_STALE, HERD_TEN = "4 equal, fresh reports", "4 equal, stale reports", "10 equal, stale reports"
HERDS = (HERD, HERD_STALE, HERD_TEN)


def settings(scale: float = 1.0) -> tuple[Setting, ...]:
    """Return all of them; ``scale`` makes them longer or shorter."""

    def made(title: str, scenario: Scenario, rows: tuple[Row, ...] = ROWS) -> Setting:
        return Setting(title, scenario, rows)

    return (
        made(ROLLING, scenarios.rolling_restart(124.0 * scale), RESTART_ROWS),
        made(LYING, scenarios.rolling_restart(124.0 * scale, lies=True), LYING_ROWS),
        made(
            STALE_RESTART,
            scenarios.rolling_restart(124.0 * scale, telemetry=scenarios.STALE),
            (Row(WARM, Knows.REPORTS),),
        ),
        made(STEADY[0], scenarios.equal(60.0 * scale)),
        made(STEADY[1], scenarios.mixed_speeds(60.0 * scale)),
        made(STEADY[2], scenarios.mixed_speeds(20.0 * scale, count=48, load=0.8)),
        made("16, a quarter 4 × slower, 70%", scenarios.slow_quarter(40.0 * scale)),
        made("8, in turn 5 × slower, 60%", scenarios.turning_slow(60.0 * scale)),
        made("8 alike, bursts", scenarios.bursts(60.0 * scale)),
        made("memory pressure", scenarios.memory_pressure(40.0 * scale)),
        made("1,000 with 100 models", scenarios.large(6.0 * scale)),
        made(HERD, scenarios.herding(15.0 * scale)),
        made(HERD_STALE, scenarios.herding(15.0 * scale, telemetry=scenarios.STALE)),
        made(HERD_TEN, scenarios.herding(8.0 * scale, 10, 6000.0, telemetry=scenarios.STALE)),
    )


Played = dict[tuple[str, Row], Result]
"""Results by title and row."""


def middle(results: Sequence[Result]) -> Result:
    """Return the median of each figure over runs with several seeds; of herds the worst."""
    return Result(
        requests=sum(each.requests for each in results),
        errors=sum(each.errors for each in results),
        p50_ms=median(each.p50_ms for each in results),
        p99_ms=median(each.p99_ms for each in results),
        p999_ms=median(each.p999_ms for each in results),
        herd=max(each.herd for each in results),
        busiest=max(each.busiest for each in results),
        loads=round(median(each.loads for each in results)),
    )


def play_row(setting: Setting, row: Row, seeds: Sequence[int], law: MakeLaw | None = None) -> Result:
    """Play one row with every seed; ``law`` in the place of the one that it names."""
    return middle([play(setting.scenario, law or row.law, row.knows, seed) for seed in seeds])


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound and what was reached; ``who`` came closest."""

    figure: str
    bound: str
    reached: float
    who: str
    met: bool


def verdicts(played: Played) -> Iterator[Verdict]:
    """Judge every bound that ``played`` has the rows of."""
    yield from _restart(played, ROLLING, Knows.REPORTS, Knows.NOTHING)
    yield from _restart(played, ROLLING, Knows.NOTHING, Knows.NOTHING)
    yield from _restart(played, LYING, Knows.PROOF, Knows.CHECKS)
    yield from _restart(played, LYING, Knows.CHECKS, Knows.CHECKS)
    for title in STEADY:
        yield from _steady(played, title)
    for title in HERDS:
        ours = played.get((title, Row(WARM, Knows.REPORTS)))
        if ours is not None and ours.herd:
            yield Verdict(f"{title}: the busiest in any 100 ms", "≤ 1.3 ×", ours.herd, "", ours.herd <= BOUND_HERD)


def _restart(played: Mapping[tuple[str, Row], Result], title: str, knows: Knows, against: Knows) -> Iterator[Verdict]:
    """Judge a restart.

    Slow start stands apart where a check starts it: that check told it the truth, once. Nothing can be 12.3 x lower
    than what it reaches, as one request takes half of that; so the router has to come close to it. Where the router
    knows no more than the others, its quarantine's probes alone find out what loads.
    """
    ours = played.get((title, Row(WARM, knows)))
    if ours is None:
        return
    alike = "told nothing" if knows is Knows.NOTHING else "checks alone"
    named = f"{title}, {alike}" if knows is against else title
    apart = (SLOW_START,) if against is Knows.CHECKS else ()
    for laws in (tuple(law for law in OTHERS if law not in apart), apart):
        ratios = {
            law: found.p999_ms / ours.p999_ms for law in laws if (found := played.get((title, Row(law, against))))
        }
        if ratios:
            who = min(ratios, key=ratios.__getitem__)
            if laws is apart:
                behind = 1 / ratios[who]
                yield Verdict(f"{named}: P99.9 to {who}'s", "≤ 1.25 ×", behind, who, behind <= BOUND_SLOW_START)
            else:
                figure = f"{named}: P99.9 lower than of each other"
                yield Verdict(figure, "≥ 12.3 ×", ratios[who], who, ratios[who] >= BOUND_P999)
    turns = played.get((title, Row("round_robin", against)))
    if turns is not None:
        ratio = turns.p99_ms / ours.p99_ms
        yield Verdict(f"{named}: P99 lower than round robin's", "≥ 40 ×", ratio, "round_robin", ratio >= BOUND_P99)


def _steady(played: Mapping[tuple[str, Row], Result], title: str) -> Iterator[Verdict]:
    ours = played.get((title, Row(WARM, Knows.REPORTS)))
    if ours is None:
        return
    for name, label in zip(QUANTILES, ("P50", "P99", "P99.9"), strict=True):
        theirs = {
            law: getattr(found, name) for law in OTHERS if (found := played.get((title, Row(law, Knows.NOTHING))))
        }
        best = min(theirs, key=theirs.__getitem__)
        ratio = getattr(ours, name) / theirs[best]
        yield Verdict(f"{title}: {label} to the best other", "≤ 1.05 ×", ratio, best, ratio <= BOUND_STEADY)
