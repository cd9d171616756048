"""One sample: load on one contender for a while, and what its processes spent meanwhile."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench import procfs
from tools.bench.origins import WIRE
from tools.bench.processes import BenchError, program

if TYPE_CHECKING:
    from tools.bench.processes import Contender
    from tools.bench.profiles import Profile

CONNECTIONS = 32


@dataclass(frozen=True)
class Sample:
    """One round of one contender. A unit is a request, or an event of a stream.

    ``cpu_us`` is scheduler time of the whole process tree over the units; ``system_ratio`` is the kernel's part of it;
    ``p50_us`` and ``p99_us`` are latencies, or the delays of events; ``units_per_read``, how many events came
    at once, above 1 where the proxy put some together; ``by_process`` has each process's part of
    ``cpu_us``.
    """

    units: int
    seconds: float
    cpu_us: float
    cpu_ratio: float
    system_ratio: float
    switches: float
    p50_us: float
    p99_us: float
    pss_bytes: int
    units_per_read: float = 1.0
    by_process: dict[str, float] = field(default_factory=dict)


class Load:
    """The load generator on its core."""

    def __init__(self, paced: Path, directory: Path, core: int) -> None:
        self._paced = paced
        self._template = directory / "request"
        self._core = [program("taskset", "util-linux"), "-c", str(core)]

    def measure(self, proxy: Contender, profile: Profile, seconds: float, tag: str) -> Sample:
        """Load ``proxy`` for ``seconds`` and return what it cost.

        Raises:
            BenchError: a request failed, or the proxy's set of processes changed: the figure would mean nothing.
        """
        before = procfs.Usage.of(proxy.pid)
        result = self._run(proxy, profile, seconds, tag)
        after = procfs.Usage.of(proxy.pid)
        if before.cpu_s.keys() != after.cpu_s.keys():
            changed = set(before.cpu_s) ^ set(after.cpu_s)
            raise BenchError(f"{proxy.name}: its processes changed during a round ({changed})")
        spent = {pid: after.cpu_s[pid] - before.cpu_s[pid] for pid in after.cpu_s}
        total, units = sum(spent.values()), result["units"]
        user, system = after.user_s - before.user_s, after.system_s - before.system_s
        return Sample(
            units=units,
            seconds=result["seconds"],
            cpu_us=total / units * 1e6,
            cpu_ratio=total / result["seconds"],
            system_ratio=system / (user + system) if user + system else 0.0,
            switches=(after.switches - before.switches) / units,
            p50_us=result["p50_us"],
            p99_us=result["p99_us"],
            pss_bytes=sum(procfs.pss_bytes(pid) for pid in spent),
            units_per_read=units / result["reads"] if "reads" in result else 1.0,
            by_process=_by_role(spent, units),
        )

    def _run(self, proxy: Contender, profile: Profile, seconds: float, tag: str) -> dict[str, Any]:
        self._template.write_bytes(profile.ask.template(proxy.port, tag, profile.heads))
        rate = [str(profile.rate)] if profile.rate else []
        if profile.kind == "grpc":
            argv = [*self._core, *WIRE, "load", str(proxy.port), str(seconds)]
        else:
            argv = [*self._core, str(self._paced), profile.kind, str(proxy.port), str(CONNECTIONS), *rate]
            argv += [str(seconds), str(self._template)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30, check=False)
        if done.returncode:
            raise BenchError(f"{proxy.name}, {profile.name}: {done.stderr.strip() or done.returncode}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def _by_role(spent: dict[int, float], units: int) -> dict[str, float]:
    """Return each process's part under its role or program: paths would say more about this machine than about it."""
    parts: dict[str, float] = {}
    for pid, cpu in spent.items():
        role = _role(procfs.command(pid).split())
        parts[role] = round(parts.get(role, 0.0) + cpu / units * 1e6, 3)
    return parts


def _role(words: list[str]) -> str:
    """Return ``data``, ``control`` or ``supervisor`` for a process of ours, else its program's name."""
    for before, word, role in zip(words, words[1:], words[2:], strict=False):
        if (before, word) == ("-m", "sidecar"):
            return role
    if any(Path(word).name == "warmroute" for word in words[:2]):
        return "supervisor"
    return Path(words[0]).name.rstrip(":") if words else "gone"
