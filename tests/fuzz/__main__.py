"""``python -m tests.fuzz [--seconds 60] [--seed N]``: fuzz the codec; each finding with the seed that makes it again.

A seed given is run alone, as long as it takes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback

from sidecar.telemetry.page import Page, create
from tests.fuzz import run

STEPS = {"requests": run.requests, "responses": run.responses}
MAX_FINDINGS = 20


def main() -> int:
    """Run to the end of the time, or to too many findings; return 1 where there was one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the HTTP/1.1 codec.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, help="this one only")
    options = parser.parse_args()
    fd = create("fuzz")
    page = Page(fd)
    page.begin(os.getpid(), 0.0)
    first = int.from_bytes(os.urandom(5), "big") if options.seed is None else options.seed
    until = time.monotonic() + options.seconds
    runs = findings = 0
    seed = first
    while findings < MAX_FINDINGS:
        for name, step in STEPS.items():
            try:
                step(page, random.Random(seed))
            except Exception:  # noqa: BLE001  that is what is looked for
                findings += 1
                print(f"--- {name}, --seed {seed}\n{traceback.format_exc(limit=-3)}", flush=True)
        runs += 1
        seed += 1
        if options.seed is not None or time.monotonic() >= until:
            break
    print(f"{runs} runs of each kind from seed {first}, {findings} findings")
    page.close()
    os.close(fd)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
