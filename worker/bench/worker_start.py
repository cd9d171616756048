"""One worker, started and measured from outside: its process, its events, the first answer, then runs on end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from worker.bench.model import NAME, request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_S: Final = 600.0
"""How long a start may take before the bench gives up on it."""
_STOP_S: Final = 20.0
STORED: Final = "model_cache.stored"
NOT_STORED: Final = "model_cache.not_stored"


class StartError(Exception):
    """A start that did not come to its end; the text says what the worker said."""


class Process(Protocol):
    """A process that was made for a measured start."""

    @property
    def pid(self) -> int:
        """Its id."""

    def stop(self) -> None:
        """End it and wait for its end."""


class Spawned:
    """A process of its own, from the command line."""

    def __init__(self, argv: Sequence[str], stderr: int) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, close_fds=True
        )
        self.pid = self._process.pid

    def stop(self) -> None:
        """End it; see :class:`Process`."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def worker_argv(flags: Sequence[str]) -> list[str]:
    """Return the command line of a worker with ``flags``."""
    return [sys.executable, "-P", "-m", "worker", *flags]


class Starter(Protocol):
    """Makes a worker's process; its standard error is the descriptor given."""

    def __call__(self, flags: Sequence[str], stderr: int, /) -> Process:
        """Return the process as soon as it is made.

        Raises:
            StartError: it cannot be made.
        """


def spawn(flags: Sequence[str], stderr: int) -> Process:
    """Make a worker's process the plain way; it ends with this one."""
    return Spawned(worker_argv((*flags, "--parent-pid", str(os.getpid()))), stderr)


class WorkerStart:
    """Started when it is made; :meth:`first_answer` waits for the first answer. A context manager that ends it."""

    def __init__(
        self,
        flags: Sequence[str],
        shapes: Mapping[str, tuple[int, ...]],
        starter: Starter = spawn,
        *,
        standby: bool = False,
    ) -> None:
        """``flags`` of the worker; ``shapes`` that the model is asked with.

        ``standby``: the start begins where the worker, which is up, is told to load the model.
        """
        self._shapes = shapes
        self._standby = standby
        self._buffer = b""
        self.events: list[tuple[float, dict[str, Any]]] = []
        """Each event, with when it was read, on :func:`time.perf_counter`'s clock."""
        reading, writing = os.pipe()
        self._stderr = reading
        os.set_blocking(reading, False)
        self.began = time.perf_counter()
        try:
            self._process = starter(("--listen", "127.0.0.1:0", "--settle-s", "0", *flags), writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._connection: HTTPConnection | None = None
        self._body = b""

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    def __enter__(self) -> WorkerStart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        if self._connection is not None:
            self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.stop()
        os.close(self._stderr)

    def begin_again(self) -> None:
        """Measure from now on."""
        self.began = time.perf_counter()

    def ask_for_body(self) -> bytes:
        """Return what to ask with, as the worker says that it takes."""
        self._connect()
        return self._make_body()

    def event(self, name: str, timeout_s: float = START_S) -> dict[str, Any]:
        """Return the first event of that name, and wait for it.

        Raises:
            StartError: it did not come, because the worker or its model failed, or in time.
        """
        seen = 0
        deadline = time.perf_counter() + timeout_s
        while True:
            for _, event in self.events[seen:]:
                seen += 1
                if event["event"] == name:
                    return event
                if event["event"] == "worker.failed" or event.get("to") == "failed":
                    raise StartError(str(event.get("error") or event.get("reason")))
                if event["event"] == NOT_STORED and name == STORED:
                    raise StartError(f"the optimised graph was not kept: {event.get('reason')}")
            if not self._read(deadline - time.perf_counter()):
                raise StartError(f"no event {name} within {timeout_s:.0f} s, or before its process ended")

    def poll(self, name: str) -> bool:
        """Return whether an event of that name has come."""
        while self._read(0):
            pass
        return any(event["event"] == name for _, event in self.events)

    def _read(self, timeout_s: float) -> bool:
        """Take what the worker has written, waiting for it; False where there was nothing, or will be nothing more."""
        ready, _, _ = select.select([self._stderr], [], [], max(0.0, timeout_s))
        data = os.read(self._stderr, 1 << 16) if ready else b""
        now = time.perf_counter()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self.events.append((now, event))
        return bool(data)

    def first_answer(self) -> tuple[float, float]:
        """Wait for the first answer; returns seconds from the start, and from the request, to its end.

        The connection is made before the model is warm, and what to ask is known by then: a caller of a service is
        there before a worker that is restarted.

        Raises:
            StartError: there was none.
        """
        self._connect()
        if self._standby:
            self.began = time.perf_counter()
            status, said = self._exchange("POST", f"/v2/repository/models/{NAME}/load", b"{}")
            if status != 200:
                raise StartError(f"loading: HTTP {status}: {said[:300]!r}")
        self.event("model.warm")
        if not self._body:
            self._body = self._make_body()
        asked = time.perf_counter()
        self.ask()
        answered = time.perf_counter()
        return answered - self.began, answered - asked

    def _connect(self) -> None:
        place = urlsplit(self.event("worker.listening")["address"])
        connection = HTTPConnection(place.hostname or "", place.port, timeout=START_S)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def _make_body(self) -> bytes:
        status, said = self._exchange("GET", f"/v2/models/{NAME}")
        if status != 200:
            raise StartError(f"GET /v2/models/{NAME}: HTTP {status}: {said[:200]!r}")
        return request(json.loads(said)["inputs"], self._shapes)

    def prepare(self, body: bytes) -> None:
        """Ask with ``body``, so that the worker need not be asked first what it takes."""
        self._body = body

    @property
    def body(self) -> bytes:
        """What it was asked with; empty before the first answer."""
        return self._body

    def ask(self) -> float:
        """Send one request; returns seconds to the end of its answer.

        Raises:
            StartError: the answer was not the model's.
        """
        began = time.perf_counter()
        status, said = self._exchange("POST", f"/v2/models/{NAME}/infer", self._body)
        if status != 200:
            raise StartError(f"inference: HTTP {status}: {said[:300]!r}")
        return time.perf_counter() - began

    def run(self, seconds: float) -> list[float]:
        """Ask on for ``seconds``, one request after the other, once at least; returns what each took.

        Raises:
            StartError: an answer was not the model's.
        """
        took = []
        until = time.perf_counter() + seconds
        while True:
            took.append(self.ask())
            self._read(0)  # a worker whose events nobody takes would stop at its next one
            if time.perf_counter() >= until:
                return took

    def _exchange(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        if self._connection is None:
            raise StartError("nothing was asked yet: first_answer() makes the connection")
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            raise StartError(f"{method} {path}: {type(error).__name__}: {error}") from error

    def stats(self) -> dict[str, Any]:
        """Return what ``GET /stats`` says of the model."""
        status, said = self._exchange("GET", "/stats")
        if status != 200:
            raise StartError(f"GET /stats: HTTP {status}")
        found = json.loads(said)["models"]
        return dict(found.get(NAME) or {})
