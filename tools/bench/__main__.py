"""``python -m tools.bench``: run the rounds, print the tables, write the page or a JSON file; see ``--help``."""

from __future__ import annotations

import argparse
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.state.embedded import EmbeddedRedisError
from tools.bench import contenders, page, profiles
from tools.bench.measuring import Bench, Wanted
from tools.bench.processes import BenchError
from tools.bench.report import print_report
from tools.bench.results import Run
from tools.bench.targets import verdicts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def main() -> int:
    """Run the benchmark; return the exit status: 1 over a bound with ``--check``, 2 where it could not run."""
    arguments = _arguments()
    if arguments.render:
        page.write(Run.from_json((page.FOLDER / "results.json").read_bytes()))
        return 0
    signal.signal(signal.SIGTERM, _interrupted)  # so that what was started is ended
    whole = not arguments.only and not arguments.profile
    wanted = Wanted(
        contenders=arguments.only or contenders.NAMES,
        profiles=arguments.profile or profiles.NAMES,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        named=bool(arguments.only),
        explain="all" if arguments.explain else "missed",
    )
    bench = Bench(wanted, lambda text: print(text, flush=True))
    try:
        run = bench.measure()
    except (BenchError, EmbeddedRedisError) as error:
        print(f"bench: {error}", file=sys.stderr)
        if bench.run.samples:
            _keep(bench.run, Path("bench-results"), whole=False)  # what was measured until then
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    print_report(run)
    _keep(run, arguments.out, whole=whole)
    missed = [one for one in verdicts(run) if not one.met]
    for one in missed:
        print(f"missed: {one}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


def _keep(run: Run, out: Path | None, *, whole: bool) -> None:
    """Write the page after a whole run, and a file of its own after a part of one."""
    if out is None and whole:
        page.write(run)
        print(f"written to {page.FOLDER.parent.name}/{page.FOLDER.name}/")
        return
    folder = out or Path("bench-results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(run.to_json())
    print(f"written to {path}")


def _interrupted(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description="CPU, latency and memory of proxies, side by side. A whole run writes docs/benchmarks/.",
    )
    parser.add_argument(
        "--only", type=_names(contenders.NAMES), help=f"contenders, with commas between: {', '.join(contenders.NAMES)}"
    )
    parser.add_argument(
        "--profile",
        type=_names(profiles.NAMES),
        help=f"what to measure, with commas between: {', '.join(profiles.NAMES)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=2, help="length of a round per contender (default: %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a figure misses its bound")
    parser.add_argument(
        "--explain", action="store_true", help="sample every build of ours, not only those that miss a bound"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing: write the page from its results.json")
    parser.add_argument(
        "--out", type=Path, help="folder for the run as JSON (default: docs/benchmarks or, for a part, bench-results)"
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.rounds <= 50 or not 0.2 <= arguments.seconds <= 60:
        parser.error("between 1 and 50 rounds of 0.2 to 60 seconds")
    return arguments


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        found = tuple(name for name in text.split(",") if name)
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return found

    return names


if __name__ == "__main__":
    sys.exit(main())
