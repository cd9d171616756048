"""However a drill ends, or what it strikes crashes: no fault is left, of requests, of signals and of processes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.sidecars import Process, gone, until
from tests.support.up_fleet import MODEL, Fleet, fleet

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}

pytestmark = pytest.mark.timeout(180)  # whole fleets start and end

FAULTS = """\
version: 1
name: NAME
title: Faults of requests and of signals
phases:
  - name: load
    load:
      path: /v2/models/MODEL/infer
      rate_per_s: 30
      headers: {content-type: application/json}
      body: '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}'
  - {name: late, fault: {id: late, kind: delay, delay_ms: 5, for_s: 300}}
  - {name: pressed, fault: {id: pressed, kind: memory_pressure, endpoint: worker-2, for_s: 300}}
  - {name: seen, expect: {model: MODEL, endpoint: worker-2, weight_at_most: 0.49, within_s: 20}}
  - {name: stays, wait: {for_s: 300}}
objectives:
  - {measure: error_ratio, at_most: 0.01}
"""
OF_ALL_SORTS = FAULTS.replace(
    "phases:\n", "start: {up: {workers: 2, config: {models: [{name: MODEL, idempotent: true}]}}}\nphases:\n"
).replace(
    "  - {name: stays,",
    "  - {name: stuck, fault: {id: stop, kind: stop, process: worker-1, for_s: 300}}\n  - {name: stays,",
)


def children(pid: int) -> dict[int, str]:
    """Return the command lines of a process's children by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has gone meanwhile, or is no process
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == pid:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def stands_still(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP), and not gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


@dataclass
class Drill:
    """One drill under way, with all its faults in force."""

    process: Process
    directory: Path
    keeper: int

    @property
    def places(self) -> dict[str, Any]:
        """Where its fleet is now."""
        found: dict[str, Any] = json.loads(next(self.directory.glob("tmp/warmroute-drill-*/ready.json")).read_bytes())
        return found

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / f"{name}.json").read_bytes())
        return found


@contextmanager
def drill(directory: Path, name: str, text: str, *flags: str) -> Iterator[Drill]:
    """Run a drill until the end of the block; yields once it waits, all its faults in force."""
    file, out, tmp = directory / f"{name}.yaml", directory / f"{name}.out", directory / "tmp"
    file.write_text(text.replace("NAME", name).replace("MODEL", MODEL if flags else "drill"))
    tmp.mkdir(exist_ok=True)
    command = [WARMROUTE, "drill", "run", str(file), "--out", str(directory), *flags]
    with out.open("wb") as stream:
        process = Process(command, directory / f"{name}.err", stdout=stream, env=ENVIRON | {"TMPDIR": str(tmp)})
    with process:

        def waits() -> bool:
            assert process.popen.poll() is None, out.read_text()
            return "stays: wait" in out.read_text()

        until(waits, "all faults are in force", within_s=60)
        assert "NOT so" not in out.read_text()
        keepers = [pid for pid, line in children(process.pid).items() if " sidecar faults " in line]
        yield Drill(process, directory, keepers[0] if keepers else 0)


def now(up: Fleet) -> dict[str, Any]:
    """Return where a fleet is, once its ready file names a sidecar that runs."""

    def places() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((up.scratch / "ready.json").read_bytes())
        return {} if gone(found["sidecar_pid"]) or gone(found["control_pid"]) else found

    found: dict[str, Any] = until(places, "the ready file is of now")
    return found


def admin_of(places: dict[str, Any]) -> tuple[str, ...]:
    return ("--admin", f"unix:{places['admin_socket']}", "--target", places["listen"])


def crash_of_the_sidecar(places: dict[str, Any]) -> None:
    """Kill its supervisor and one data process, and wait for the rest of it to have left."""
    os.kill(places["data_pids"][0], signal.SIGKILL)
    os.kill(places["sidecar_pid"], signal.SIGKILL)
    for pid in (places["control_pid"], *places["data_pids"]):
        until(lambda pid=pid: gone(pid), f"process {pid} has left", within_s=40)  # type: ignore[misc]


def back(running: Drill, before: dict[str, Any]) -> dict[str, Any]:
    """Return where a drill's fleet is, once it has another sidecar than before; nothing until then."""
    found = running.places
    return {} if found["sidecar_pid"] in (None, before["sidecar_pid"]) else found


@pytest.mark.parametrize("how", ["ctrl-c", "killed", "sidecar-crashes"])
def test_nothing_is_left_of_a_drill_with_a_fleet_of_its_own(how: str, tmp_path: Path) -> None:
    with drill(tmp_path, "own", OF_ALL_SORTS) as running:
        before = running.places
        stopped = before["workers"][0]["pid"]
        assert stands_still(stopped)
        assert running.keeper
        if how == "sidecar-crashes":
            crash_of_the_sidecar(before)
            after = until(lambda: back(running, before), "the sidecar is back")
        else:
            after = running.places
            running.process.send(signal.SIGKILL if how == "killed" else signal.SIGINT)
        until(lambda: not stands_still(stopped), "nothing is stopped any more")
        running.process.wait(60)  # by itself where its sidecar crashed, and its faults with it
    pids = [worker["pid"] for worker in after["workers"]]
    for places in (before, after):
        pids += [places[name] for name in ("sidecar_pid", "control_pid", "redis_pid", "janitor_pid")]
        pids += places["data_pids"]
    for pid in filter(None, {*pids, running.keeper}):
        until(lambda pid=pid: gone(pid), f"process {pid} is gone", within_s=40)  # type: ignore[misc]
    if how != "killed":
        report = running.report("own")
        assert re.match(r"interrupted" if how == "ctrl-c" else r"its faults are gone: ", report["cut_short"])
        assert report["left_behind"] == []
    until(lambda: list((tmp_path / "tmp").iterdir()) == [], "its directory is gone", within_s=40)


def rules(up: Fleet) -> list[dict[str, Any]] | None:
    """Return the faults in force; None where nobody answers."""
    with suppress(OSError):
        status, body = up.ask(up.places["admin"], "/faults")
        if status == 200:
            found: list[dict[str, Any]] = json.loads(body)["faults"]
            return found
    return None


def kept(up: Fleet) -> set[str]:
    """Return the kinds of keys in the state store, as ``ep`` of ``wr:{up}:ep:worker-1``; none may tell of a drill."""
    client = redis.Redis(unix_socket_path=up.places["redis_socket"], decode_responses=True)
    try:
        keys = [str(key) for key in client.scan_iter("*")]
        hashes = [str(client.hgetall(key)) for key in keys if client.type(key) == "hash"]
    finally:
        client.close()
    assert keys
    assert not [text for text in (*keys, *hashes) if "drill" in text]
    return {key.split(":")[2] for key in keys} - {"lat", "lats"}  # what sidecars measured comes and goes


def test_nothing_is_left_in_a_sidecar_that_crashes_during_a_drill(tmp_path: Path) -> None:
    """Nor in its state store: what is altered of signals is altered in the sidecar alone."""
    own = tmp_path / "own"
    own.mkdir()
    with fleet(tmp_path) as up:
        lasting = kept(up)
        with drill(own, "other", FAULTS, *admin_of(up.places)) as running:
            assert {rule["kind"] for rule in rules(up) or ()} == {"delay", "memory_pressure"}
            assert memory(up, "worker-2") < memory(up, "worker-1") / 2
            assert kept(up) == lasting
            running.process.send(signal.SIGKILL)
            running.process.wait()
            crash_of_the_sidecar(up.places)
            until(lambda: rules(up) == [], "the sidecar is back, without a fault")
            until(lambda: memory(up, "worker-2") > memory(up, "worker-1") / 2, "it believes what worker-2 says")
            # a drill that lives finds another sidecar, in which it puts no fault in force, and ends
        with drill(own, "again", FAULTS, *admin_of(up.places)) as running:
            crash_of_the_sidecar(now(up))
            assert running.process.wait(60) == 1
        report = running.report("again")
        assert report["cut_short"].startswith("its faults are gone: no drill ")
        assert report["left_behind"] == []
        assert rules(up) == []
        assert kept(up) == lasting


def memory(up: Fleet, endpoint: str) -> float:
    """Return the score of the memory that the sidecar takes an endpoint to have free; NaN where it cannot tell."""
    with suppress(OSError):
        status, body = up.ask(up.places["admin"], "/routes")
        rows = json.loads(body)["routes"][0]["candidates"] if status == 200 else []
        scores = [
            term["score"]
            for row in rows
            if row["endpoint"] == endpoint
            for term in row["terms"]
            if term["name"] == "free_memory"
        ]
        if scores and scores[0] is not None:
            return float(scores[0])
    return math.nan
