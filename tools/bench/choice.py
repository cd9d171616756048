"""The router's part: what one choice of an endpoint costs at several sizes of the fleet."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.bench.contenders import BenchError

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "tests" / "bench" / "pick_bench.py"


@dataclass(frozen=True)
class Choice:
    """Microseconds for ``Cluster.choose`` alone, and with the ``done`` that ends it, among ``endpoints``."""

    endpoints: int
    choose_us: float
    both_us: float


def measure() -> list[Choice]:
    """Run the router's own benchmark in a fresh process.

    Raises:
        BenchError: it failed.
    """
    argv = [sys.executable, str(_SCRIPT), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, cwd=_ROOT)
    if done.returncode != 0:
        raise BenchError(f"{_SCRIPT.name} ended with {done.returncode}:\n{done.stderr[-1000:]}")
    return [Choice(row["endpoints"], row["choose_us"], row["both_us"]) for row in json.loads(done.stdout)]
