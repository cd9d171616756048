"""``warmroute sidecar`` without a file, and every command that asks it, as docs/cli.md writes them."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_origin import Handler, HttpOrigin
from tests.support.sidecar_process import free_port
from tests.support.sidecars import Process, until

WARMROUTE = str(Path(sys.executable).with_name("warmroute"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}


class Origin(Handler):
    """A worker's part: 200 to everything."""

    def get(self) -> None:
        self.answer(b"ok")


class Running:
    """A sidecar made of flags, and the commands that ask it."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        self.directory = directory
        self.endpoint = endpoint
        self.listen, self.admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.command = [WARMROUTE, "sidecar", "--listen", self.listen, "--to", f"http://{endpoint}", "--processes", "1"]
        self.command += ["--admin", self.admin, "--admin-socket", str(directory / "admin.sock"), "--log-format", "json"]
        self.socket = ["--admin", f"unix:{directory}/admin.sock"]

    def ask(self, *arguments: str, admin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``warmroute`` with WARMROUTE_ADMIN set to this sidecar."""
        environ = ENVIRON | {"WARMROUTE_ADMIN": admin or f"http://{self.admin}"}
        return subprocess.run(
            [WARMROUTE, *arguments],
            env=environ,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def said(self, *arguments: str) -> str:
        """Return what a command that succeeds prints."""
        done = self.ask(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def status(self, path: str) -> int:
        """Ask through the proxy."""
        connection = http.client.HTTPConnection(self.listen, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("cli")
    with HttpOrigin(Origin) as origin:
        sidecar = Running(directory, f"127.0.0.1:{origin.port}")
        with Process(sidecar.command, directory / "log", env=ENVIRON, cwd=directory) as process:
            until(lambda: sidecar.ask("health").returncode == 0, "ready")
            yield sidecar
            process.send(signal.SIGTERM)
            assert process.wait() == 0


def test_any_path_reaches_the_worker(running: Running) -> None:
    assert [running.status(path) for path in ("/", "/v2/models/whatever/infer", "/a/b?c")] == [200, 200, 200]


def test_health(running: Running) -> None:
    alive, ready = running.said("health").splitlines()
    assert alive.startswith("alive: ")
    assert "1 of 1 data processes, store live" in alive
    assert ready == "ready"


def test_routes(running: Running) -> None:
    header, row = running.said("routes").splitlines()
    assert header.split()[:3] == ["model", "endpoint", "state"]
    assert row.split()[:6] == ["default", "(default)", running.endpoint, "warm", row.split()[4], "100.0%"]
    answer = json.loads(running.said("routes", "--json"))
    assert [route["key"] for route in answer["routes"]] == ["default"]
    assert running.said("routes", *running.socket).splitlines()[0].split()[0] == "model"


def test_explain(running: Running) -> None:
    text = running.said("routes", "explain", "--model", "default")
    assert text.startswith("default, store live\nweight = ")
    assert all(term in text for term in ("warmth", "free_memory", "speed", running.endpoint))
    assert json.loads(running.said("routes", "explain", "--model", "default", "--json"))["route"] == "default"
    done = running.ask("routes", "explain", "--model", "nobody")
    assert done.returncode == 1
    assert done.stderr == "warmroute: no route for 'nobody'; known here: default\n"
    over_grpc = running.said("routes", "explain", "--model", "default", "--protocol", "grpc", "--json")
    assert json.loads(over_grpc)["rows"] == []


def test_drain_and_resume(running: Running) -> None:
    refused = running.ask("endpoints", "drain", running.endpoint)
    assert refused.returncode == 1
    assert refused.stderr.endswith("(here: --admin unix:PATH, or --token-file FILE)\n")
    running.said("endpoints", "drain", running.endpoint, *running.socket)
    try:
        assert "drained here" in running.said("endpoints", "list")
        until(lambda: running.status("/") == 503, "no request reaches it")
        not_ready = running.ask("health")
        assert not_ready.returncode == 1
        assert not_ready.stdout.splitlines()[1] == "not ready: no routable worker for any model (default: held)"
    finally:
        running.said("endpoints", "resume", running.endpoint, *running.socket)
    until(lambda: running.status("/") == 200, "requests reach it again")
    unknown = running.ask("endpoints", "drain", "nobody", *running.socket)
    assert (unknown.returncode, unknown.stderr) == (
        1,
        f"warmroute: no endpoint 'nobody'; known here: {running.endpoint}\n",
    )


def test_faults(running: Running) -> None:
    assert running.said("fault", "list") == "no faults in force\n"
    added = running.said("fault", "add", "abort", "--status", "418", "--for-s", "20", *running.socket)
    fault = added.partition(":")[0]
    assert added == f"{fault}: abort in force for 20.0 s; warmroute fault remove {fault} ends it\n"
    try:
        assert running.said("fault", "list").splitlines()[1].split()[:5] == [
            fault,
            "abort",
            "request",
            "status=418",
            "100%",
        ]
        listed: dict[str, Any] = json.loads(running.said("fault", "list", "--json"))
        assert [one["id"] for one in listed["faults"]] == [fault]
        until(lambda: running.status("/") == 418, "the fault hits")
    finally:
        assert running.said("fault", "remove", fault, *running.socket) == f"{fault}: removed\n"
    until(lambda: running.status("/") == 200, "the fault is gone")
    scope = ("--endpoint", running.endpoint + "x", "--tenant", "t")
    done = running.ask("fault", "add", "delay", "--delay-ms", "1", *scope, *running.socket)
    running.said("fault", "remove", done.stdout.partition(":")[0], *running.socket)
    missed, tenant = done.stderr.splitlines()
    assert missed.startswith(
        f'warning: endpoint: no endpoint "{running.endpoint}x" is known now, so this strikes nothing'
    )
    assert missed.endswith(f'; did you mean "{running.endpoint}"?')
    assert tenant.startswith("warning: tenant: policies.admission.tenant.header is null")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [("add", "delay"), ("add", "abort", "--delay-ms", "1"), ("add", "abort", "--ratio", "7"), ("add", "explode")],
)
def test_faults_that_make_no_sense(running: Running, arguments: tuple[str, ...]) -> None:
    done = running.ask("fault", *arguments, *running.socket)
    assert done.returncode == 2
    assert done.stderr.startswith("warmroute: ")


def test_nobody_there(running: Running) -> None:
    place = f"unix:{running.directory}/none.sock"
    for command in (["health"], ["routes"], ["endpoints", "list"], ["fault", "list"]):
        done = running.ask(*command, admin=place)
        assert done.returncode == 3
        assert done.stderr == (
            f"warmroute: {place}: no such file or directory: "
            "is a sidecar running there? --admin or WARMROUTE_ADMIN names another place\n"
        )
