"""``python -m tests.sim [--seeds 3] [--scale 1] [--jobs 2] [--only TEXT] [--variations] [--write]``: play all laws.

Prints the tables; ``--write`` puts them and the plot into docs/.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from tests.sim import report
from tests.sim.laws import WARM
from tests.sim.runs import HERDS, Row, Setting, play_row, settings
from tests.sim.signals import Knows
from tests.sim.variations import VARIATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.measures import Result
    from tests.sim.runs import Played


def main() -> int:
    """Play; return the exit status, 0 whatever was reached: the tables say what was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulate fleets, and compare laws.")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, with seeds 1 and up (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of each run (1)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--only", default="", help="scenarios with this in their title")
    parser.add_argument("--variations", action="store_true", help="variations of the router's law beside it")
    parser.add_argument("--write", action="store_true", help="write docs/routing.md and its plot")
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    chosen = [each for each in settings(options.scale) if options.only in each.title]
    short = [each.title for each in chosen if each.scenario.duration_s <= each.scenario.settle_s]
    if short:
        parser.error(f"--scale {options.scale:g} leaves nothing to measure of {', '.join(short)}: make it larger")
    if not chosen:
        parser.error(f"--only {options.only!r}: no scenario has that in its title")
    if options.variations:
        _print_variations(chosen, seeds, options.jobs)
        return 0
    played = _play(chosen, seeds, options.jobs)
    for heading, rows in report.tables(played):
        print(f"\n{heading}\n\n{report.as_text(rows)}")
    if options.write:
        report.write(played, seeds)
    return 0


def _play(chosen: Sequence[Setting], seeds: Sequence[int], jobs: int) -> Played:
    work = [(setting, row, seeds) for setting in chosen for row in setting.rows]
    with ProcessPoolExecutor(jobs) as pool:
        played = {}
        begun = time.monotonic()
        for number, ((setting, row, _), result) in enumerate(zip(work, pool.map(_one, work), strict=True), 1):
            played[setting.title, row] = result
            _progress(number, len(work), begun, f"{setting.title}: {report.named(row, setting.title)}")
    return played


def _one(work: tuple[Setting, Row, Sequence[int]]) -> Result:
    return play_row(*work)


def _varied(work: tuple[Setting, str, Sequence[int]]) -> Result:
    setting, name, seeds = work
    return play_row(setting, Row(WARM, Knows.REPORTS), seeds, VARIATIONS[name])


def _print_variations(chosen: Sequence[Setting], seeds: Sequence[int], jobs: int) -> None:
    work = [(setting, name, seeds) for setting in chosen for name in VARIATIONS]
    rows: report.Rows = [("scenario", "law", "P50 ms", "P99 ms", "P99.9 ms", "herd")]
    begun = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        for number, ((setting, name, _), result) in enumerate(zip(work, pool.map(_varied, work), strict=True), 1):
            herd = f"{result.herd:.2f} ×" if setting.title in HERDS else ""
            rows.append((setting.title, name, *report.quantiles(result), herd))
            _progress(number, len(work), begun, f"{setting.title}: {name}")
    print(f"\n{report.as_text(rows)}")


def _progress(number: int, of: int, begun: float, what: str) -> None:
    spent_s = time.monotonic() - begun
    left_s = spent_s / number * (of - number)
    print(f"{number}/{of}, about {left_s:.0f} s left: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
