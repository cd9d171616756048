"""A fleet of the drill's own: ``warmroute up`` as a child, which ends when the drill does, in whatever way."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.children import Child
from sidecar.config.document import written
from sidecar.up.announce import Places
from sidecar.up.janitor import Janitor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.drills.scenario import Start, Streams

POLL_S = 0.05
END_S = 60.0
"""How long the fleet may take to drain before it is killed; longer than ``warmroute up`` itself waits for its parts."""
_KILLED_S = 5.0
_LAST_LINES = 12


class FleetError(Exception):
    """The fleet does not come up; the text says what it said last."""


class Fleet:
    """One fleet over its life."""

    def __init__(self, what: Start, environ: Mapping[str, str]) -> None:
        self._up = what.up
        self._dir = Path(tempfile.gettempdir(), f"warmroute-drill-{secrets.token_hex(8)}")
        self._janitor = Janitor(END_S)  # removes it, should the drill be killed: so it knows of it before it is there
        self._janitor.tree(self._dir)
        self._dir.mkdir(mode=0o700)
        self._ready_file = self._dir / "ready.json"
        self._log = self._dir / "up.log"
        self._log_fd = os.open(self._log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._sockets: list[socket.socket] = []
        self._streams: list[Child] = []
        config = dict(self._up.config)
        if what.streams is not None:
            config["endpoints"] = [*config.get("endpoints", ()), *self._stand_ins(what.streams, environ)]
        self._child = Child("up", self._command(config), stderr_fd=self._log_fd, environ=environ)

    def start(self) -> None:
        """Start it; :meth:`ready` waits for it."""
        for child in (*self._streams, self._child):
            self._janitor.process(child.start(time.monotonic()))
        for sock in self._sockets:
            sock.close()  # each has its own

    async def ready(self) -> Places:
        """Return where everything is, once all is warm.

        Raises:
            FleetError: it ended, or was not ready in time.
        """
        until = time.monotonic() + self._up.ready_s
        while not self._ready_file.exists():
            now = time.monotonic()
            if self._child.reap(now) is not None:
                raise FleetError(f"warmroute up ended: {self._last_words()}")
            if now > until:
                raise FleetError(f"warmroute up was not ready within {self._up.ready_s:g} s: {self._last_words()}")
            await asyncio.sleep(POLL_S)
        return self.places()

    def places(self) -> Places:
        """Return where everything is now; ``warmroute up`` writes it anew when it has started a process again."""
        return msgspec.json.decode(self._ready_file.read_bytes(), type=Places)

    def gone(self) -> bool:
        """Whether it ended by itself."""
        return self._child.reap(time.monotonic()) is not None or self._child.pid is None

    async def end(self) -> str:
        """End it and remove what it left; return what went wrong with that, "" where nothing did."""
        trouble = ""
        self._child.send(signal.SIGTERM)
        until = time.monotonic() + END_S
        while self._child.pid is not None and self._child.reap(time.monotonic()) is None:
            now = time.monotonic()
            if now > until and not trouble:
                trouble = f"warmroute up did not end within {END_S:g} s and was killed"
                self._child.send(signal.SIGKILL)
                until = now + _KILLED_S
            elif now > until:
                return f"warmroute up (process {self._child.pid}) cannot be ended"
            await asyncio.sleep(POLL_S)
        for child in self._streams:  # they hold nothing, and nobody asks them any more
            child.send(signal.SIGKILL)
        until = time.monotonic() + _KILLED_S
        while any(child.reap(time.monotonic()) is None and child.pid for child in self._streams):
            if time.monotonic() > until:
                return trouble or "a stand-in for a server of streams cannot be ended"
            await asyncio.sleep(POLL_S)
        os.close(self._log_fd)
        shutil.rmtree(self._dir, ignore_errors=True)
        await asyncio.to_thread(self._janitor.finish)
        return trouble

    def _stand_ins(self, streams: Streams, environ: Mapping[str, str]) -> list[dict[str, Any]]:
        """Make what starts the stand-ins, on ports of the system's choice; return them as a sidecar's endpoints."""
        made = []
        for number in range(1, streams.count + 1):
            sock = socket.create_server(("127.0.0.1", 0))
            self._sockets.append(sock)
            fd, name = sock.fileno(), f"stream-{number}"
            command = [sys.executable, "-P", "-m", "sidecar.drills.stand_in", "--fd", str(fd)]
            command += ["--events", str(streams.events), "--every-ms", str(streams.every_ms)]
            command += ["--parent-pid", str(os.getpid())]
            self._streams.append(Child(name, command, pass_fds=(fd,), stderr_fd=self._log_fd, environ=environ))
            url = "http://{}:{}".format(*sock.getsockname())
            made.append({"url": url, "models": [streams.model], "name": name})
        return made

    def _command(self, settings: dict[str, Any]) -> list[str]:
        up = self._up
        command = [sys.executable, "-P", "-m", "sidecar.cli.main", "up", "--listen", "127.0.0.1:0"]
        command += ["--admin", "127.0.0.1:0", "--ready-file", str(self._ready_file), "--no-color"]
        command += ["--workers", str(up.workers), "--processes", str(up.processes)]
        command += ["--parent-pid", str(os.getpid())]
        for model in up.models:
            command.append(f"--model={model}")  # in one word, so that nothing is taken for another option
        if up.engine is not None:
            command.append(f"--engine={up.engine}")
        if up.models_dir is not None:
            command.append(f"--models={up.models_dir}")
        config = self._dir / "warmroute.yaml"
        config.write_text(written({"version": 1, **settings}), encoding="utf-8")
        command += ["--config", str(config)]
        return [*command, "--", *up.worker_flags] if up.worker_flags else command

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["", *lines[-_LAST_LINES:]])
