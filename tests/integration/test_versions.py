"""Which version takes requests that name none, with real processes: latest, splits, mirrors, commands, rollouts."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_origin import Handler, HttpOrigin
from tests.support.product import Sidecar, running, write_config
from tests.support.sidecars import until

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}


class Origin(HttpOrigin):
    """A worker's part: answers with its version, or fails; notes the targets that it was asked, mirrored ones apart."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.status = 200
        self.ready = True
        self.asked: list[str] = []
        self.mirrored: list[str] = []
        origin = self

        class Answers(Handler):
            def get(self) -> None:
                self.answer(origin.version.encode(), 200 if origin.ready else 503)

            def post(self) -> None:
                self.body()
                seen = origin.mirrored if self.headers["warmroute-mirror"] == "1" else origin.asked
                seen.append(self.path)
                self.answer(origin.version.encode(), origin.status)

        super().__init__(Answers)


@pytest.fixture
def origins() -> Iterator[tuple[Origin, Origin]]:
    with Origin("9") as old, Origin("10") as new:
        yield old, new


def config(
    directory: Path, origins: tuple[Origin, Origin], versions: dict[str, Any], probe: dict[str, Any] | None = None
) -> dict[str, Any]:
    endpoints = [
        {"url": origin.url, "name": f"w{origin.version}", "models": [f"m@{origin.version}"], "probe": probe}
        for origin in origins
    ]
    return {
        "admin": {"socket": str(directory / "admin.sock"), "address": "127.0.0.1:0"},
        "state": {"url": "none"},
        "endpoints": endpoints,
        "models": [{"name": "m", "default": True, "versions": versions}],
    }


@contextmanager
def serving(
    directory: Path, origins: tuple[Origin, Origin], versions: dict[str, Any], probe: dict[str, Any] | None = None
) -> Iterator[Sidecar]:
    with running(directory, settings=config(directory, origins, versions, probe)) as sidecar:
        yield sidecar


class Caller:
    """Asks the sidecar, on one connection as long as that lives."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._connection = http.client.HTTPConnection(sidecar.listen, timeout=10)

    def ask(self, path: str = "/v2/models/m/infer", **fields: str) -> tuple[int, str]:
        """Return status and body."""
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        self._connection.request("POST", path, body=b"abc", headers=headers)
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def callers(sidecar: Sidecar, number: int = 8) -> Iterator[list[Caller]]:
    """Yield callers that are spread over the data processes by the kernel."""
    made = [Caller(sidecar) for _ in range(number)]
    try:
        yield made
    finally:
        for caller in made:
            caller.close()


class Load:
    """Asks all the time, in a thread, until told to stop."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.answers: list[tuple[int, str]] = []
        self._caller = Caller(sidecar)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.answers.append(self._caller.ask())
            except (OSError, http.client.HTTPException) as error:
                self.answers.append((0, repr(error)))
                return
            time.sleep(0.002)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._caller.close()


def post(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("POST", path)
        return connection.getresponse().status
    finally:
        connection.close()


def warmroute(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [WARMROUTE, *arguments, "--admin", f"unix:{directory}/admin.sock"]
    return subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=30, check=False)


def test_the_latest_version_takes_over_once_it_is_warm_and_nobody_notices(
    tmp_path: Path, origins: tuple[Origin, Origin]
) -> None:
    old, new = origins
    new.ready = False
    probe = {"path": "/ready", "interval_s": 0.1, "timeout_s": 2.0}
    with serving(tmp_path, origins, {"serve": "latest"}, probe) as sidecar, Load(sidecar) as load:
        until(lambda: len(load.answers) > 50, "answers")
        assert set(load.answers) == {(200, "9")}
        new.ready = True
        until(lambda: load.answers[-1] == (200, "10"), "the new version's answers")
        with callers(sidecar) as some:
            until(lambda: {one.ask() for one in some} == {(200, "10")}, "it in every process", 2.0)
            assert {one.ask("/v2/models/m/versions/9/infer") for one in some} == {(200, "9")}
        assert warmroute(tmp_path, "endpoints", "drain", "w9").returncode == 0
        old.ready = False
        at = len(load.answers)
        until(lambda: len(load.answers) > at + 100, "more answers")
        statuses = Counter(status for status, _ in load.answers)
        assert set(statuses) == {200}
        bodies = [body for _, body in load.answers]
        first = bodies.index("10")
        assert set(bodies[first:]) == {"10"}
        assert sidecar.metric("warmroute_version_share_ratio", model="m", version="10") == 1.0


def test_a_split_keeps_callers_at_their_version_in_every_process(
    tmp_path: Path, origins: tuple[Origin, Origin]
) -> None:
    split = {
        "serve": "split",
        "split": [{"version": "9", "weight": 1}, {"version": "10", "weight": 1}],
        "key": {"header": "x-user"},
    }
    with serving(tmp_path, origins, split) as sidecar, callers(sidecar) as some:
        seen = {f"u{number}": {one.ask(x_user=f"u{number}") for one in some} for number in range(20)}
        assert all(len(each) == 1 for each in seen.values())
        assert {answer for each in seen.values() for answer in each} == {(200, "9"), (200, "10")}
        assert {one.ask() for one in some for _ in range(4)} == {(200, "9"), (200, "10")}


def test_a_mirror_gets_copies_and_no_caller_hears_of_it(tmp_path: Path, origins: tuple[Origin, Origin]) -> None:
    _, new = origins
    new.status = 500
    with serving(tmp_path, origins, {"serve": "9", "mirror": {"version": "10"}}) as sidecar:
        with callers(sidecar, 4) as some:
            answers = Counter(one.ask() for one in some for _ in range(10))
        assert answers == {(200, "9"): 40}
        until(lambda: len(new.mirrored) == 40, "copies")
        assert new.asked == []
        until(lambda: sidecar.metric("warmroute_mirrors_failed_total") == 40, "their ends")
        assert sidecar.metric("warmroute_mirrors_total") == 40
        until(lambda: sidecar.metric("warmroute_requests_total", model="m", outcome="ok") == 40, "requests counted")
        assert sidecar.metric("warmroute_requests_total") == 40
        assert sidecar.metric("warmroute_attempts_total") == 40
        assert sidecar.metric("warmroute_version_attempts_total", version="10") == 0
        assert sidecar.candidates("m@10")["w10"]["reason"] is None  # 40 failures, and its breaker knows of none


def test_commands_steer_every_process_at_once_and_outlive_the_control_process(
    tmp_path: Path, origins: tuple[Origin, Origin]
) -> None:
    with serving(tmp_path, origins, {"serve": "9"}) as sidecar, callers(sidecar) as some:
        assert {one.ask() for one in some} == {(200, "9")}
        done = warmroute(tmp_path, "versions", "promote", "m")
        assert (done.returncode, done.stdout) == (0, "m: requests that name no version go to: version 10\n")
        until(lambda: {one.ask() for one in some} == {(200, "10")}, "it in every process", 1.0)
        os.kill(sidecar.process.child("control"), signal.SIGKILL)
        assert {one.ask() for one in some} == {(200, "10")}
        sidecar.process.await_event("control.started", count=2)
        until(sidecar.ready, "ready again")
        (shown,) = sidecar.json("/versions")["models"]
        assert (shown["serve"], shown["configured"]) == ("version 10", "version 9")
        assert shown["steered"]["by"].startswith(f"unix uid={os.getuid()} pid=")
        assert shown["steered"]["why"] == "promoted 10"
        listed = warmroute(tmp_path, "versions", "list").stdout
        assert "m (version 10)" in listed
        assert "promoted 10, by unix uid=" in listed
        done = warmroute(tmp_path, "versions", "split", "m", "9=1", "10=1")
        assert done.stdout == "m: requests that name no version go to: split: 9 0.5, 10 0.5\n"
        until(lambda: {one.ask()[1] for one in some for _ in range(6)} == {"9", "10"}, "a split", 1.0)
        assert warmroute(tmp_path, "versions", "promote", "m", "10").returncode == 0
        assert warmroute(tmp_path, "versions", "rollback", "m", "9").returncode == 0
        until(lambda: {one.ask() for one in some} == {(200, "9")}, "the one before in every process", 1.0)
        assert (
            sidecar.metric("warmroute_version_changes_total", model="m", by="operator") == 3
        )  # of this control process
        refused = warmroute(tmp_path, "versions", "promote", "m", "11")
        assert refused.returncode == 1
        assert "m: version '11' has no replica that may be picked; known here: 9, 10" in refused.stderr
        assert post(sidecar.admin, "/versions/m/promote") == 403  # over TCP, without a token
        assert warmroute(tmp_path, "versions", "promote", "nope").stderr.startswith("warmroute: no model 'nope'")
        assert warmroute(tmp_path, "versions", "split", "m", "9").returncode == 2
        assert "w10 @10" in warmroute(tmp_path, "routes").stdout
        assert warmroute(tmp_path, "versions", "reset", "m").returncode == 0
        assert sidecar.json("/versions")["models"][0]["steered"] is None

        assert warmroute(tmp_path, "versions", "promote", "m", "10").returncode == 0
        changed = config(tmp_path, origins, {"serve": "9"})
        changed["models"][0]["idempotent"] = True
        write_config(tmp_path, changed)
        assert warmroute(tmp_path, "config", "reload").returncode == 0
        assert {one.ask() for one in some} == {(200, "10")}  # nothing about versions has changed
        write_config(tmp_path, config(tmp_path, origins, {"serve": "9", "mirror": {"version": "10", "share": 0.0}}))
        assert warmroute(tmp_path, "config", "reload").returncode == 0
        until(lambda: {one.ask() for one in some} == {(200, "9")}, "the later word", 1.0)
        assert sidecar.json("/versions")["models"][0]["steered"] is None


def test_a_new_version_that_fails_is_rolled_back_by_itself(tmp_path: Path, origins: tuple[Origin, Origin]) -> None:
    _, new = origins
    new.status = 500
    split = {
        "serve": "split",
        "split": [{"version": "9", "weight": 1}, {"version": "10", "weight": 0}],
        "rollout": {"steps": [30, 100], "interval_s": 2.0, "min_samples": 50},
    }
    with serving(tmp_path, origins, split) as sidecar, Load(sidecar) as load:
        event = sidecar.process.await_event("rollout.rolled_back")
        assert event["model"] == "m"
        assert event["why"].startswith("more_errors: new: ")
        with callers(sidecar) as some:
            until(lambda: {one.ask() for one in some for _ in range(4)} == {(200, "9")}, "the old version", 2.0)
        assert (500, "10") in load.answers
        (shown,) = sidecar.json("/versions")["models"]
        assert shown["serve"] == "version 9"
        assert shown["steered"]["by"] == "rollout"
        assert shown["rollout"]["stage"] == "rolled_back"
        assert sidecar.metric("warmroute_rollout_stage", model="m", stage="rolled_back") == 1


def test_a_new_version_that_works_is_promoted_by_itself(tmp_path: Path, origins: tuple[Origin, Origin]) -> None:
    split = {
        "serve": "split",
        "split": [{"version": "9", "weight": 1}, {"version": "10", "weight": 0}],
        "rollout": {"steps": [30, 60, 100], "interval_s": 0.5, "min_samples": 30, "max_p95_ratio": 100},
    }
    with serving(tmp_path, origins, split) as sidecar, Load(sidecar) as load:
        sidecar.process.await_event("rollout.stepped", step=1)
        sidecar.process.await_event("rollout.promoted")
        until(lambda: set(load.answers[-50:]) == {(200, "10")}, "the new version alone")
        assert {status for status, _ in load.answers} == {200}
        assert sidecar.json("/versions")["models"][0]["serve"] == "version 10"
