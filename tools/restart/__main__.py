"""``python -m tools.restart``: play the rolling restart, print the table, judge it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tools.bench.processes import Missing
from tools.restart.play import PRIORITY, Plan, play, rows
from tools.restart.report import table, verdicts, write_docs
from tools.restart.setups import SETUPS


def main() -> int:
    """Play the rows; return 1 where a bound is missed and ``--check`` asks for it."""
    arguments = _arguments()
    if arguments.realtime:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
        except PermissionError:
            print("--realtime: not allowed here; run it as root, or with CAP_SYS_NICE", file=sys.stderr)
            return 2
    plan = Plan(period_s=arguments.period_s)
    parts = [part.strip() for part in arguments.only.split(";")]
    setups = [setup for setup in SETUPS if any(part in setup.name for part in parts)]
    if not setups:
        print(f"no row has {arguments.only!r} in its name", file=sys.stderr)
        return 2
    planned = list(rows(setups))
    print(f"{len(planned)} rows of {plan.duration_s:g} s, {plan.rate:g} requests a second", flush=True)
    played = {}
    for number, (setup, lying) in enumerate(planned, 1):
        readiness = "lies" if lying else "tells the truth"
        try:
            played[setup, lying] = outcome = play(setup, plan, lying=lying)
        except Missing as error:
            print(f"{number}/{len(planned)} {setup.name}: left out: {error}", flush=True)
            continue
        print(
            f"{number}/{len(planned)} {setup.name}, readiness {readiness}: P99 {outcome.p99_ms:.0f} ms, "
            f"P99.9 {outcome.p999_ms:.0f} ms, {outcome.failures} of {outcome.requests} failed {outcome.errors or ''}",
            flush=True,
        )
    print("\n" + table(played))
    found = verdicts(played)
    for verdict in found:
        print(verdict)
    if arguments.json is not None:
        kept = [{"name": s.name, "lying": lying, **asdict(one)} for (s, lying), one in played.items()]
        arguments.json.write_text(json.dumps(kept, indent=1))
    if arguments.write:
        print(f"written to {write_docs(played, plan, realtime=arguments.realtime)}")
    return 1 if arguments.check and any(not verdict.met for verdict in found) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.restart", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds this, or one of these with ; between")
    parser.add_argument("--period-s", type=float, default=10.5, help="from one kill to the next (default: %(default)s)")
    parser.add_argument(
        "--realtime", action="store_true", help="have it go before all else that runs on this machine; takes root"
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/routing.md")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bound is missed")
    arguments = parser.parse_args()
    if not 3 <= arguments.period_s <= 60:
        parser.error("--period-s must be between 3 and 60: a restart takes 2.4 s")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
