"""A real worker process for tests: started, its events read, its surface asked, ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
"""Patience, by which nothing is measured: beside other tests a worker may take ten seconds to start, or more."""


class WorkerProcess:
    """``python -m worker``, or another ``module``, with the given flags, on a port of the system's choice.

    ``through``: a command that starts it, before its own.
    """

    def __init__(
        self,
        *flags: str,
        module: str = "worker",
        environment: dict[str, str] | None = None,
        through: tuple[str, ...] = (),
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.text: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [*through, sys.executable, "-P", "-m", module, "--listen", "127.0.0.1:0", *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto"))),
                **(environment or {}),
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = ""

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def event(self, name: str, timeout_s: float = WAIT_S, **fields: Any) -> dict[str, Any]:
        """Return the first event of that name with those fields, waiting for it; AssertionError where none comes."""
        seen = 0
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self.events[seen:]:
                seen += 1
                if event["event"] == name and fields.items() <= event.items():
                    return event
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no event {name} {fields}; got {self.events} {self.text}")
            try:
                event = json.loads(line)
            except ValueError:
                self.text.append(line)
                continue
            self.events.append(event)
            if event["event"] == "worker.listening":
                self.address = event["address"]

    def listening(self) -> str:
        """Wait until it listens; returns its address."""
        return str(self.event("worker.listening")["address"])

    def warm(self, model: str) -> None:
        """Wait until ``model`` is warm."""
        self.event("model.warm", model=model)

    def ask(self, path: str, body: Any = None, timeout_s: float = 20.0) -> tuple[int, Any, dict[str, str]]:
        """Send one request on a connection of its own; returns status, JSON body and headers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), dict(error.headers)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(timeout_s)


def echo_body(value: float = 1.0, **parameters: Any) -> dict[str, Any]:
    """Return a request to the deterministic engine's default model."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    return {"inputs": [tensor], "parameters": parameters}
