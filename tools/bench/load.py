"""The load: wrk with a fixed number of connections, and what the proxy's processes spent meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench import procfs
from tools.bench.contenders import PATH, BenchError, program

if TYPE_CHECKING:
    from tools.bench.contenders import Contender

CONNECTIONS = 32
_SCRIPT = Path(__file__).with_name("request.lua")


@dataclass(frozen=True)
class Sample:
    """One round of one contender. ``by_process`` maps a command line to its CPU µs per request."""

    requests: int
    seconds: float
    cpu_us_per_request: float
    cpu_ratio: float  # of one core
    p50_ms: float
    p99_ms: float
    pss_bytes: int
    by_process: dict[str, float]


def measure(proxy: Contender, seconds: float, core: int, tag: str, heads: str) -> Sample:
    """Load ``proxy`` for ``seconds`` from ``core`` and return what it cost.

    Raises:
        BenchError: a request failed, or the proxy's set of processes changed: the figure would mean nothing.
    """
    before = {pid: procfs.cpu_s(pid) for pid in procfs.tree(proxy.pid)}
    began = time.monotonic()
    result = _wrk(proxy.port, seconds, core, tag, heads)
    took = time.monotonic() - began
    after = {pid: procfs.cpu_s(pid) for pid in procfs.tree(proxy.pid)}
    if before.keys() != after.keys():
        raise BenchError(f"{proxy.name}: its processes changed during a round ({set(before) ^ set(after)})")
    if result["errors"] or result["refused"] or not result["requests"]:
        raise BenchError(f"{proxy.name}: requests failed during a round: {result}")
    spent = {pid: after[pid] - before[pid] for pid in after}
    total, requests = sum(spent.values()), result["requests"]
    return Sample(
        requests=requests,
        seconds=result["duration_us"] / 1e6,
        cpu_us_per_request=total / requests * 1e6,
        cpu_ratio=total / took,
        p50_ms=result["p50_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
        pss_bytes=sum(procfs.pss_bytes(pid) for pid in after),
        by_process={f"{pid} {procfs.command(pid)}": round(cpu / requests * 1e6, 3) for pid, cpu in spent.items()},
    )


def _wrk(port: int, seconds: float, core: int, tag: str, heads: str) -> dict[str, int]:
    argv = [
        *(program("taskset", "util-linux"), "-c", str(core), program("wrk", "wrk")),
        *("-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--timeout", "5s", "-s", str(_SCRIPT)),
        *(f"http://127.0.0.1:{port}{PATH}", "--", f"{os.getpid()}-{tag}", heads),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, int] = json.loads(line.removeprefix("RESULT "))
            return result
    raise BenchError(f"wrk said no result (exit {done.returncode}): {done.stdout[-500:]}{done.stderr[-500:]}")
