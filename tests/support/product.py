"""The whole sidecar as its users start it, on addresses of the system's choice, seen from outside only."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.metrics_text import doubled
from tests.support.sidecar_process import ROOT, SidecarProcess
from tests.support.sidecars import Process, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))
PROCESSES = 2
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESTABLISHED = "01"


@dataclass(frozen=True)
class Sidecar(SidecarProcess):
    """A running sidecar with two data processes."""

    def json(self, path: str) -> Any:
        """Return what the admin API answers, which must be 200."""
        status, body = self.read(path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each sample of that name, all of one moment."""
        status, body = self.read("/metrics")
        assert status == 200, (status, body)
        assert doubled(body.decode()) == []
        return [
            (dict(_LABEL.findall(pairs)), float(value))
            for sample, pairs, value in _SAMPLE.findall(body.decode())
            if sample == name
        ]

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of that name that have these labels."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def ready(self) -> bool:
        """Whether it says now that it may get traffic."""
        return self.read("/readyz")[0] == 200

    def candidates(self, model: str) -> dict[str, dict[str, Any]]:
        """Return a model's candidates by endpoint id, as ``/routes`` shows them."""
        routes = {route["key"]: route for route in self.json("/routes")["routes"]}
        return {row["endpoint"]: row for row in routes[model]["candidates"]} if model in routes else {}

    def open_to(self, model: str) -> set[str]:
        """Return the ids of the endpoints that requests for ``model`` may go to."""
        return {id_ for id_, row in self.candidates(model).items() if row["reason"] is None}

    @property
    def data_pids(self) -> tuple[int, ...]:
        """Process ids of the data processes, as started last."""
        return tuple(self.process.child(f"data-{index}") for index in range(PROCESSES))


def write_config(directory: Path, settings: Mapping[str, Any], processes: int = PROCESSES) -> Path:
    """Put the configuration file of :func:`running` there, in place of one that is there; return its path."""
    config = {"version": 1, "listeners": [{"address": "127.0.0.1:0", "processes": processes}], **settings}
    path = directory / "warmroute.yaml"
    new = directory / "warmroute.yaml.new"
    new.write_text(json.dumps(config))  # JSON is YAML
    return new.replace(path)


@contextmanager
def running(
    directory: Path, *flags: str, settings: Mapping[str, Any] | None = None, processes: int = PROCESSES
) -> Iterator[Sidecar]:
    """Run ``warmroute sidecar`` with so many data processes until the block ends; yields once ``/readyz`` says 200.

    ``settings`` become its configuration file (less version, listener and admin address); without, there is none.

    Raises:
        AssertionError: it ended, or was not ready in time.
    """
    command = [WARMROUTE, "sidecar", "--admin", "127.0.0.1:0", "--log-format", "json"]
    if settings is None:
        command += ["--listen", "127.0.0.1:0", "--processes", str(processes)]
    else:
        command += ["--config", str(write_config(directory, settings, processes))]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    with Process([*command, *flags], directory / "sidecar.log", env=environ, cwd=ROOT) as process:
        listen = process.await_event("listener.open")["address"]
        sockets = 1 + bool((settings or {}).get("admin", {}).get("socket"))  # the Unix socket comes first
        sidecar = Sidecar(process, listen, process.await_event("admin.open", count=sockets)["address"])
        until(sidecar.ready, "ready")
        for index in range(processes):  # one alone is enough to be ready
            process.await_event("process.accepting", count=index + 1)
        yield sidecar


def owners(listen: str, pids: Iterable[int]) -> dict[int, int]:
    """Return which of ``pids`` holds each established connection to ``listen``, by the caller's port (proc(5))."""
    holder = {}
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = entry.readlink().name
            except OSError:
                continue  # closed meanwhile
            holder[target] = pid
    port = int(listen.rpartition(":")[2])
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote, state, inode = (int(fields[1][-4:], 16), int(fields[2][-4:], 16), fields[3], fields[9])
        if local == port and state == _ESTABLISHED and f"socket:[{inode}]" in holder:
            found[remote] = holder[f"socket:[{inode}]"]
    return found
