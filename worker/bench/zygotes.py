"""A zygote for the bench: started when the first row needs it, and the workers that it forks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from worker.bench.worker_start import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.bench.worker_start import Process
    from worker.zygote_client import ForkedWorker

_STOP_S = 20.0


class BenchZygote:
    """Not started before it is called for the first time; a context manager that ends it."""

    def __init__(self) -> None:
        self._place: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.seconds = 0.0
        """What its own start took."""

    def __call__(self, flags: Sequence[str], stderr: int) -> Process:
        """Fork a worker; see :class:`worker.bench.worker_start.Starter`. :meth:`start` comes before a measured one."""
        from worker.zygote_client import ForkedWorker, NoZygoteError

        if self._place is None:
            raise StartError("there is no zygote yet")
        try:
            with open(os.devnull, "r+b") as nowhere:
                forked = ForkedWorker(
                    str(self._place / "zygote.sock"), tuple(flags), (nowhere.fileno(), nowhere.fileno(), stderr)
                )
        except NoZygoteError as error:
            raise StartError(str(error)) from error
        return _Forked(forked)

    def start(self) -> BenchZygote:
        """Start it, where it is not yet, and wait until it forks.

        Raises:
            StartError: it did not come up.
        """
        if self._process is None:
            self._place = Path(tempfile.mkdtemp(prefix="warmroute-bench-"))
            argv = [sys.executable, "-P", "-m", "worker.zygote", "--listen", str(self._place / "zygote.sock")]
            self._process = subprocess.Popen(
                [*argv, "--parent-pid", str(os.getpid())], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            line = b"" if self._process.stderr is None else self._process.stderr.readline()
            try:
                self.seconds = float(json.loads(line)["seconds"])
            except (ValueError, KeyError) as error:
                raise StartError(f"the zygote did not come up: {line.decode(errors='replace').strip()}") from error
        return self

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=_STOP_S)
            self._process.kill()
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def __enter__(self) -> BenchZygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Forked:
    """A worker that the zygote has forked."""

    def __init__(self, forked: ForkedWorker) -> None:
        self._forked = forked
        self.pid = forked.pid

    def stop(self) -> None:
        """End it; see :class:`worker.bench.worker_start.Process`."""
        self._forked.send(signal.SIGTERM)
        self._forked.wait()
        self._forked.close()
