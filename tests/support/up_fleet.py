"""A whole fleet as ``warmroute up`` starts it, on addresses of the system's choice, seen from outside only."""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.sidecars import Process, gone, until

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "toy"


@dataclass
class Fleet:
    process: Process
    places: dict[str, Any]
    scratch: Path

    @property
    def pids(self) -> list[int]:
        places = self.places
        single = [places[name] for name in ("sidecar_pid", "control_pid", "redis_pid", "janitor_pid")]
        return [*single, *places["data_pids"], *(worker["pid"] for worker in places["workers"])]

    def ask(self, address: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=40)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metadata(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(self.places["listen"], f"/v2/models/{MODEL}")[1])
        return answer

    def infer(self, **parameters: float) -> int:
        request = json.loads(Path(self.places["request"]).read_bytes())
        if parameters:
            request["parameters"] = parameters
        return self.ask(self.places["listen"], f"/v2/models/{MODEL}/infer", request)[0]

    def output(self) -> str:
        return (self.scratch / "out").read_text()

    def assert_nothing_is_left(self) -> None:
        for pid in [self.process.pid, *self.pids]:
            until(lambda pid=pid: gone(pid), f"process {pid} is gone", within_s=30)  # type: ignore[misc]
        assert list((self.scratch / "tmp").iterdir()) == []
        assert not (self.scratch / "ready.json").exists()


@contextmanager
def fleet(tmp_path: Path, *flags: str) -> Iterator[Fleet]:
    """Run ``warmroute up`` with the deterministic engine until it is ready."""
    scratch = tmp_path
    (scratch / "tmp").mkdir()
    command = [sys.executable, "-P", "-m", "sidecar.cli.main", "up", "--listen", "127.0.0.1:0", "--admin"]
    command += ["127.0.0.1:0", "--ready-file", str(scratch / "ready.json"), "--no-color"]
    command += ["--engine", "deterministic", "--model", MODEL]
    with (scratch / "out").open("wb") as out:
        process = Process(
            [*command, *flags],
            scratch / "err",
            stdout=out,
            cwd=scratch,
            env=os.environ | {"TMPDIR": str(scratch / "tmp"), "PYTHONUNBUFFERED": "1"},
        )
    with process:
        ready = scratch / "ready.json"

        def is_ready() -> bool:
            assert process.popen.poll() is None, (scratch / "out").read_text()
            return ready.exists()

        until(is_ready, "warmroute up is ready", within_s=60)
        started = Fleet(process, json.loads(ready.read_bytes()), scratch)
        try:
            yield started
        except BaseException as error:
            error.add_note(f"its output:\n{started.output()}")
            raise
