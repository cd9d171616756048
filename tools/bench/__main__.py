"""``python -m tools.bench``: run the rounds, print one table, write one JSON file; see ``--help``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.state.embedded import EmbeddedRedis, EmbeddedRedisError
from tools.bench import choice
from tools.bench.contenders import NAMES, BenchError, contender, origin
from tools.bench.load import CONNECTIONS, Sample, measure
from tools.bench.report import BOUNDS, Report, print_report

if TYPE_CHECKING:
    from types import FrameType

    from tools.bench.contenders import Contender


def main() -> int:
    """Run the benchmark; return the exit status: 1 over a bound with ``--check``, 2 where it could not run."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _interrupted)  # so that what was started is ended
    try:
        samples, versions = _proxies(arguments.only, arguments.rounds, arguments.seconds, arguments.heads)
        choices = choice.measure() if "warmroute" in arguments.only and not arguments.no_choice else []
    except (BenchError, EmbeddedRedisError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    report = Report.of(samples, versions, choices)
    print_report(report)
    _write(report, samples, arguments.out)
    if arguments.check and report.over:
        print("over the bounds: " + "; ".join(report.over), file=sys.stderr)
        return 1
    return 0


def _interrupted(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    bounds = ", ".join(f"{ours} {most} x {name}" for ours, others in BOUNDS.items() for name, most in others.items())
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="CPU per proxied request, side by side.")
    parser.add_argument(
        "--only", default=",".join(NAMES), help="contenders, with commas between (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=4, help="length of a round per contender (default: %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help=f"exit 1 over a bound ({bounds})")
    parser.add_argument(
        "--heads",
        choices=("usual", "new"),
        default="usual",
        help="usual: heads differ in the request id, as callers' do; new: no two have the same shape (default: usual)",
    )
    parser.add_argument("--no-choice", action="store_true", help="leave the router's choice out")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-results"), help="folder of results (default: %(default)s)"
    )
    arguments = parser.parse_args()
    arguments.only = tuple(name for name in arguments.only.split(",") if name)
    if unknown := set(arguments.only) - set(NAMES):
        parser.error(f"unknown contender {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    if not 1 <= arguments.rounds <= 50 or not 1 <= arguments.seconds <= 60:
        parser.error("between 1 and 50 rounds of 1 to 60 seconds")
    return arguments


def _proxies(
    names: tuple[str, ...], rounds: int, seconds: float, heads: str
) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    cores = sorted(os.sched_getaffinity(0))
    proxy_core, load_core = cores[0], cores[-1]
    if proxy_core == load_core:
        print("bench: only one core: proxy and load share it", file=sys.stderr)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-bench-")))
        origins = stack.enter_context(origin(directory, load_core))
        state = EmbeddedRedis(directory)
        stack.callback(state.stop)
        url = state.start()
        proxies = [stack.enter_context(contender(name, directory, proxy_core, origins, url)) for name in names]
        for proxy in proxies:
            measure(proxy, 1, load_core, "warm", heads)
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        for number in range(rounds):
            for proxy in _turn(proxies, number):
                samples[proxy.name].append(measure(proxy, seconds, load_core, str(number), heads))
                print(f"round {number + 1}/{rounds} {proxy.name:<18} {_line(samples[proxy.name][-1])}", flush=True)
        return samples, {proxy.name: proxy.version for proxy in proxies}


def _turn(proxies: list[Contender], number: int) -> list[Contender]:
    """Return the contenders in another order each round, so that none always follows the same one."""
    start = number % len(proxies)
    return proxies[start:] + proxies[:start]


def _line(sample: Sample) -> str:
    rate = sample.requests / sample.seconds
    return f"{sample.cpu_us_per_request:7.2f} µs/request {rate:9,.0f} requests/s {sample.cpu_ratio:5.0%} of a core"


def _write(report: Report, samples: dict[str, list[Sample]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"proxy-{now:%Y%m%dT%H%M%SZ}.json"
    machine = {
        "at": now.isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "connections": CONNECTIONS,
    }
    rounds = {name: [asdict(sample) for sample in of_one] for name, of_one in samples.items()}
    path.write_text(json.dumps({"machine": machine, "report": asdict(report), "rounds": rounds}, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
