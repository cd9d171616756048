"""``python -m tools.headline``: play the profiles, print tables and verdicts; 1 where a bound is missed."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench import machine
from tools.bench.contenders import version_of
from tools.bench.processes import BenchError, program
from tools.headline import page
from tools.headline.figures import compare
from tools.headline.measure import measure
from tools.headline.profiles import PROFILES, ROUNDS, WHOLE
from tools.headline.report import Result, about_figures, judged, parameters, table, to_json

if TYPE_CHECKING:
    from types import FrameType

    from tools.headline.profiles import Profile


def main() -> int:
    """Play what is asked for; return the exit status: 1 where a bound is missed, 2 where it could not be played."""
    arguments = _arguments()
    if arguments.render:
        page.render()
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has it ignored
    signal.signal(signal.SIGTERM, _interrupt)  # so that what was started is ended
    cores = sorted(os.sched_getaffinity(0))
    facts = machine.described()
    profiles = [one for one in WHOLE if not arguments.profile or one.name in arguments.profile]
    results = []
    try:
        for profile in profiles:
            sized = profile if arguments.period_s is None else profile.sized(arguments.period_s)
            results.append(result_of(sized, arguments.rounds, (cores[0], cores[-1]), facts))
    except BenchError as error:
        print(f"headline: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headline: interrupted", file=sys.stderr)
        return 130
    finally:
        os.sched_setaffinity(0, cores)
    for result in results:
        print(f"\n{result.title}\n\n{table(result)}\n\n{about_figures(result)}\n")
        for verdict in result.compared.verdicts:
            print(judged(verdict))
    if arguments.json is not None:
        arguments.json.write_bytes(to_json(results))
    if arguments.write:
        page.keep(results)
        print(f"\nwritten to docs/{page.PAGE}")
    return 0 if all(result.met for result in results) else 1


def result_of(profile: Profile, rounds: int, cores: tuple[int, int], facts: dict[str, str]) -> Result:
    """Play one profile, and return what it came to.

    Raises:
        BenchError: a proxy is not there, or does not answer.
    """
    versions = {
        "warmroute": version_of("warmroute", [str(Path(sys.executable).with_name("warmroute"))]),
        "HAProxy": version_of("haproxy", [program("haproxy", "haproxy")]),
    }
    played = measure(profile, rounds, cores, lambda text: print(text, flush=True))
    compared = compare(profile, played.rounds, random.Random(1))  # noqa: S311
    said = parameters(profile, rounds)
    return Result(profile.name, profile.title, facts, versions, said, max(played.late_ms), profile.told, compared)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Do as Ctrl-C does: raised here, an exception would end up in whatever callback runs, and be lost there."""
    signal.raise_signal(signal.SIGINT)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.headline", description=__doc__)
    parser.add_argument("--profile", action="append", choices=PROFILES, help="may be repeated (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="interleaved rounds (default: %(default)s)")
    parser.add_argument(
        "--period-s", type=float, help="from one restart to the next, for a look (default: the profile's)"
    )
    parser.add_argument("--write", action="store_true", help="write docs/headline.md, its pictures and its JSON")
    parser.add_argument("--json", type=Path, help="write the results there too")
    parser.add_argument("--render", action="store_true", help="measure nothing: write the page by what is kept")
    arguments = parser.parse_args()
    if not 1 <= arguments.rounds <= 50:
        parser.error("--rounds must be between 1 and 50")
    if arguments.period_s is not None and not 1 <= arguments.period_s <= 60:
        parser.error("--period-s must be between 1 and 60")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
