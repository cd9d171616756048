"""``warmroute drill run`` with everything real: what it leaves to read, and what it never leaves behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sidecar.drills.place import LEASE_S
from sidecar.drills.run import END_S
from tests.support.http_origin import Echo, HttpOrigin
from tests.support.product import Sidecar, running
from tests.support.sidecars import Process, until

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}

HERE = """\
version: 1
name: here
title: Requests are late
phases:
  - {name: load, load: {path: /echo, rate_per_s: 40, body: text}}
  - {name: calm, wait: {for_s: 0.5}}
  - {name: slow, fault: {id: slow, kind: delay, delay_ms: 60, for_s: FOR}}
  - {name: late, wait: {for_s: FOR}}
objectives:
  - {measure: error_ratio, at_most: 0}
  - {measure: p50_ms, at_least: 60, at_most: 2000, during: [late]}
  - {measure: lost, at_most: 0}
  - {measure: wrong, at_most: 0}
"""
DRAIN = """\
version: 1
name: drain
title: Somebody drains it too
phases:
  - {name: hold, do: {act: drain, endpoint: ENDPOINT}}
  - {name: held, expect: {endpoint: ENDPOINT, reason: held, within_s: 20}}
  - {name: go, do: {act: resume, endpoint: ENDPOINT}}
  - {name: again, do: {act: drain, endpoint: ENDPOINT}}
objectives:
  - {measure: requests, at_most: 0}
"""
WATCH = """\
version: 1
name: watch
title: Others' requests fail
phases:
  - {name: broken, fault: {kind: abort, status: 503, for_s: 30}}
  - {name: seen, wait: {for_s: 30}}
objectives:
  - {measure: error_ratio, at_most: 0}
abort:
  - {measure: error_ratio, above: 0.5, over_s: 2, least: 5}
"""


class Here:
    """A sidecar that runs, with an origin behind it, and drills against it."""

    def __init__(self, sidecar: Sidecar, scratch: Path) -> None:
        self.sidecar = sidecar
        self.scratch = scratch
        self.admin = f"unix:{scratch}/admin.sock"

    def drill(self, for_s: float) -> Process:
        file = self.scratch / "here.yaml"
        file.write_text(HERE.replace("FOR", f"{for_s:g}"))
        command = [WARMROUTE, "drill", "run", str(file), "--admin", self.admin, "--target", self.sidecar.listen]
        with (self.scratch / "out").open("wb") as out:
            return Process([*command, "--out", str(self.scratch)], self.scratch / "err", stdout=out, env=ENVIRON)

    def faults(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.sidecar.json("/faults")["faults"]
        return found

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.scratch / "here.json").read_bytes())
        return found


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    scratch = tmp_path  # a sidecar for each test: what one drill breaks stays out for a while
    with HttpOrigin(Echo) as origin:
        settings = {
            "models": [{"name": "m", "endpoints": [origin.url], "default": True}],
            "admin": {"socket": str(scratch / "admin.sock")},
        }
        with running(scratch, settings=settings, processes=1) as sidecar:
            yield Here(sidecar, scratch)


def test_a_drill_against_a_sidecar_that_runs(here: Here) -> None:
    with here.drill(1.0) as process:
        assert process.wait() == 0, process.text()
    report = here.report()
    assert report["passed"]
    assert report["faults_injected"] > 0
    never = {"lost": 0, "doubled": 0, "wrong": 0, "clean_cut": 0}
    assert report["accounts"] == {"sent": report["figures"]["requests"], **never}
    assert here.faults() == []
    assert (here.scratch / "here.xml").read_bytes().startswith(b"<?xml")
    assert b"<svg" in (here.scratch / "here.html").read_bytes()


def test_what_an_operator_drained_stays_drained(here: Here) -> None:
    (endpoint,) = here.sidecar.json("/endpoints")["endpoints"]
    by_hand = [WARMROUTE, "endpoints", "drain", endpoint["id"], "--admin", here.admin]
    subprocess.run(by_hand, check=True, env=ENVIRON, timeout=30, capture_output=True)
    file = here.scratch / "drain.yaml"
    file.write_text(DRAIN.replace("ENDPOINT", json.dumps(endpoint["id"])))
    command = [WARMROUTE, "drill", "run", str(file), "--admin", here.admin, "--target", here.sidecar.listen]
    done = subprocess.run(
        [*command, "--out", str(here.scratch)], check=False, env=ENVIRON, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (endpoint,) = here.sidecar.json("/endpoints")["endpoints"]
    assert endpoint["held"]


def test_another_drill_is_refused_and_ctrl_c_takes_the_fault_back_first(here: Here) -> None:
    with here.drill(60) as process:
        until(here.faults, "the fault is in force")
        other = here.scratch / "drain.yaml"
        other.write_text(DRAIN.replace("ENDPOINT", json.dumps(here.sidecar.json("/endpoints")["endpoints"][0]["id"])))
        command = [WARMROUTE, "drill", "run", str(other), "--admin", here.admin, "--out", str(here.scratch)]
        done = subprocess.run(command, check=False, env=ENVIRON, timeout=60, capture_output=True, text=True)
        who = re.escape(f'the drill "here" (unix uid={os.getuid()} pid={process.popen.pid}) has this sidecar, for ')
        assert re.search(
            rf"drain: {who}[89]\d\d s at most, for \d+ s if it is not heard of again: ", done.stderr.strip()
        ), done.stderr
        assert done.returncode == 2
        assert not any(one["held"] for one in here.sidecar.json("/endpoints")["endpoints"])
        process.send(signal.SIGINT)
        assert process.wait() == 1, process.text()
    assert here.faults() == []
    assert here.report()["cut_short"] == "interrupted (SIGINT)"
    assert here.sidecar.json("/drill") == {"drill": None}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_impatient_changes_nothing_of_a_verdict(signum: signal.Signals, here: Here) -> None:
    """Not its exit code, and not its reports, which are written then."""
    with here.drill(60) as process:
        until(here.faults, "the fault is in force")
        process.send(signal.SIGINT)
        until(lambda: "FAILED cut short" in (here.scratch / "out").read_text(), "the verdict is told")
        while process.popen.poll() is None:
            process.popen.send_signal(signum)
        assert process.popen.returncode == 1, process.text()
    assert here.report()["cut_short"] == "interrupted (SIGINT)"
    assert "</html>" in (here.scratch / "here.html").read_text()
    assert (here.scratch / "out").read_text().splitlines()[-1].split() == [
        str(here.scratch / f"here.{suffix}") for suffix in ("json", "xml", "html")
    ]


def test_a_killed_drill_leaves_its_fault_no_longer_than_its_lease(here: Here) -> None:
    with here.drill(60) as process:
        until(here.faults, "the fault is in force")
        process.send(signal.SIGKILL)
        process.wait()
    left = here.faults()
    assert all(fault["left_s"] <= LEASE_S for fault in left)
    assert here.sidecar.json("/drill")["drill"]["left_s"] <= LEASE_S


def test_a_sidecar_that_crashed_for_good_is_named_as_what_could_not_be_asked(here: Here) -> None:
    """Its faults went with it; the drill cannot know that, and says so."""
    with here.drill(60) as process:
        until(here.faults, "the fault is in force")
        here.sidecar.process.send(signal.SIGKILL)
        here.sidecar.process.wait()
        until(lambda: here.sidecar.read("/faults")[0] == 0, "nobody answers")
        process.send(signal.SIGINT)
        assert process.wait(40) == 1, process.text()
    report = here.report()
    assert report["cut_short"] == "interrupted (SIGINT)"
    (left,) = report["left_behind"]
    how = f"what it had ends by itself within {LEASE_S:g} s, or with the process"
    assert left == f"fault slow: the sidecar is not reachable: {how}"


def control_of(supervisor: int) -> int:
    """Return the process id of a sidecar's control process."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has gone meanwhile
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == supervisor and b"control" in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
    raise AssertionError("no control process")


def test_an_admin_api_that_hangs_is_not_waited_for_after_a_second_ctrl_c(here: Here) -> None:
    """The load ends with the first, and what may be left is named."""
    control = control_of(here.sidecar.process.pid)
    with here.drill(60) as process:
        until(here.faults, "the fault is in force")
        os.kill(control, signal.SIGSTOP)
        try:
            process.send(signal.SIGINT)
            until(lambda: "ending: load, faults" in (here.scratch / "out").read_text(), "it ends")
            began = time.monotonic()
            process.send(signal.SIGINT)
            assert process.wait() == 1, process.text()
            assert time.monotonic() - began < END_S  # alone what is asked would have taken longer
        finally:
            os.kill(control, signal.SIGCONT)
    assert process.text() == ""  # no word of what was given up
    report = here.report()
    assert report["left_behind"] == [
        f"fault slow: nobody said in time that it is ended; it ends by itself within {LEASE_S:g} s"
    ]
    assert report["accounts"]["sent"] == report["figures"]["requests"]


def test_a_drill_without_a_load_watches_what_others_send_and_aborts(here: Here) -> None:
    file = here.scratch / "watch.yaml"
    file.write_text(WATCH)
    command = [WARMROUTE, "drill", "run", str(file), "--admin", here.admin, "--out", str(here.scratch)]
    process = Process(command, here.scratch / "watch.err", stdout=subprocess.DEVNULL, env=ENVIRON)
    with process:
        while process.popen.poll() is None:  # others, until the drill has seen enough of them fail
            connection = http.client.HTTPConnection(here.sidecar.listen, timeout=30)
            connection.request("POST", "/echo", b"text")
            connection.getresponse().read()
            connection.close()
        assert process.wait() == 1, process.text()
    report = json.loads((here.scratch / "watch.json").read_bytes())
    assert report["cut_short"].startswith("aborted: error_ratio ")
    assert report["outcomes"].keys() <= {"ok", "fault", "no_candidate"}  # the breaker may open on them
    assert report["accounts"] is None
    assert here.faults() == []


def test_a_bad_file_touches_nothing(here: Here) -> None:
    file = here.scratch / "bad.yaml"
    file.write_text(HERE.replace("FOR", "1").replace("delay_ms: 60", "delay_ms: sixty"))
    command = [WARMROUTE, "drill", "run", str(file), "--admin", here.admin, "--target", here.sidecar.listen]
    done = subprocess.run(command, check=False, env=ENVIRON, timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'{file}:7:59: phases[2].fault.delay_ms: "sixty": must be a number\n'


@pytest.mark.parametrize("where", ["/proc/none", "here.yaml/out"])
def test_reports_that_cannot_be_written_are_told_before_anything_is_touched(where: str, here: Here) -> None:
    file = here.scratch / "here.yaml"
    file.write_text(HERE.replace("FOR", "1"))
    out = here.scratch / where
    command = [WARMROUTE, "drill", "run", str(file), "--admin", here.admin, "--target", here.sidecar.listen]
    done = subprocess.run(
        [*command, "--out", str(out)], check=False, env=ENVIRON, timeout=30, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"--out: {out}: ") or done.stderr.startswith(f"warmroute: --out: {out}: ")
    assert done.stderr.endswith(": name a directory that can be written to\n")


def test_a_drill_that_cannot_work_here_touches_nothing(here: Here) -> None:
    file = here.scratch / "else.yaml"
    file.write_text(HERE.replace("FOR", "1").replace("kind: delay", "kind: delay, endpoint: elsewhere"))
    command = [WARMROUTE, "drill", "run", str(file), "--admin", here.admin, "--target", here.sidecar.listen]
    done = subprocess.run(command, check=False, env=ENVIRON, timeout=30, capture_output=True, text=True)
    assert done.returncode == 2
    assert 'fault slow: the sidecar knows no "elsewhere"; it knows: 127.0.0.1:' in done.stderr
    command[command.index(here.admin)] = f"unix:{here.scratch}/nobody.sock"
    done = subprocess.run(command, check=False, env=ENVIRON, timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (3, 1)
    assert "is a sidecar running there? --admin" in done.stderr
    assert here.faults() == []
