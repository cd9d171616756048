"""What one measured start, and one measured load after it, came to; and how to take them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import msgspec

from worker.bench import page_cache, plain
from worker.bench.model import ModelError, PlainFiles, Repository
from worker.bench.worker_start import StartError, WorkerStart, spawn
from worker.loading.mapping import cached_ratio
from worker.loading.settings import SHARED_MEMORY
from worker.memory import HostMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker.bench.contenders import Change, Contender
    from worker.bench.model import BenchModel
    from worker.bench.worker_start import Starter
    from worker.bench.zygotes import BenchZygote

SWAPPED: Final = "model.session_swapped"
_BUILDING: Final = ("first", "building", "proving")
"""Phases of a two-phase session after which another session is still to come."""
KEPT_S: Final = 120.0
"""How long a worker may take to keep something for its next start."""
SWAP_S: Final = 300.0
"""How long the second session may take before it is not waited for any more."""


class Sample(msgspec.Struct, frozen=True):
    """One start. Seconds and bytes."""

    row: str
    cache: str
    """The page cache before it: ``cold`` or ``warm``."""
    round: int
    answer_s: float
    """From the spawn to the end of the first answer."""
    first_access_s: float
    """From the first request to the end of its answer."""
    warm_s: float
    """From the spawn to where the worker called the model warm, by its clock; of a plain session, its first answer."""
    free_bytes: int
    """Free memory before it."""
    stages: dict[str, float]
    cached_before: float | None
    """Share of the model's pages in the page cache when it began, and at the first answer; None: unknown."""
    cached_after: float | None
    peak_bytes: int
    """Resident memory at its highest, file pages included, up to the first answer."""
    anonymous_bytes: int
    """Memory of its own, right after the first answer."""


class Steady(msgspec.Struct, frozen=True):
    """A load of one caller from the first answer on, before and after the second session took over."""

    row: str
    round: int
    loading_rps: float | None
    """Answers per second while the second session was made; None where there was none."""
    swap_s: float | None
    """From the first answer to the swap."""
    after_rps: float
    median_s: float
    p99_s: float
    resident_bytes: int
    anonymous_bytes: int
    peak_bytes: int
    device_bytes: int | None


class Measuring:
    """Takes samples of one model; a context manager, which keeps a repository for each row meanwhile."""

    def __init__(
        self,
        model: BenchModel,
        rows: Sequence[Contender],
        threads: int,
        zygote: BenchZygote,
        *,
        everything: bool = True,
        providers: Sequence[str] = (),
    ) -> None:
        """``threads``: within one execution, of the workers; a plain session has its default.

        ``zygote`` is started only where a row needs it. ``everything``: empty the whole page cache, where that is
        allowed, and not of the model's files alone. All repositories are made before the first start: a new link to a
        file looks like a change of it to a worker that remembers its hash. ``providers``: of the plain session.

        Raises:
            ModelError: a repository cannot be made.
        """
        self._model = model
        self._threads = threads
        self._zygote = zygote
        self._everything = everything
        self._providers = providers
        self._repositories: dict[str, Repository] = {}
        self._kept = model.directory.parent / f".bench-{os.getpid()}-kept"
        self._plain = PlainFiles(model)
        self._shared = shared_directory()
        try:
            for row in rows:
                if row.change is not None:
                    self._repositories[row.name] = Repository(model, row.change.description)
        except ModelError:
            self.close()
            raise
        self._body = b""
        self.dropped = ""
        """How the page cache was emptied."""

    def close(self) -> None:
        """Take the repositories away."""
        for repository in self._repositories.values():
            repository.close()
        self._plain.close()
        self._shared.cleanup()
        shutil.rmtree(self._kept, ignore_errors=True)

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, row: Contender, cache: str, number: int) -> Sample:
        """Start ``row`` once, from a ``cold`` or ``warm`` page cache.

        Raises:
            StartError: it did not come to a first answer.
        """
        files = self._model.files
        if cache == "cold":
            self.dropped = page_cache.drop(files, everything=self._everything)
        else:
            page_cache.warm(files)
        before = cached_ratio(files)
        free = HostMemory().read()
        if row.change is None:
            with PlainStart(self._plain, self._model.shapes, self._providers) as started:
                answer_s, stages = started.first_answer()
                warm_s, first_access_s = answer_s, stages["first_answer"]
                memory = of_process(started.pid)
                after = cached_ratio(files)
        else:
            with self._worker(row.name, row.change) as worker:
                answer_s, first_access_s = worker.first_answer()
                self._body = worker.body
                memory = of_process(worker.pid)
                after = cached_ratio(files)
                warm = worker.event("model.warm")
                warm_s, stages = warm["seconds"], {**warm["stages"], "first_answer": first_access_s}
        return Sample(
            row.name,
            cache,
            number,
            answer_s,
            first_access_s,
            warm_s,
            0 if free is None else free.free_bytes,
            stages,
            before,
            after,
            memory["peak"],
            memory["anonymous"],
        )

    def _worker(self, name: str, change: Change) -> WorkerStart:
        flags = ["--models", str(self._repositories[name].root), "--shm-dir", self._shared.name]
        flags += ["--threads", str(self._threads)]
        place, id_ = self._kept / name.replace(" ", "-"), f"bench-{name.replace(' ', '-')}"
        if any("{kept}" in flag for flag in change.flags):
            place.mkdir(parents=True, exist_ok=True)
        flags += [flag.format(kept=place, id=id_) for flag in change.flags]
        starter = self._zygote.start() if change.zygote else spawn
        if change.in_line:
            return self._next_in_line(flags, starter)
        started = WorkerStart(flags, self._model.shapes, starter, standby=change.standby)
        if self._body:
            started.prepare(self._body)
        return started

    def _next_in_line(self, flags: list[str], starter: Starter) -> WorkerStart:
        """Have one worker serve and another stand by, both with their last session; kill the first."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            flags = [*flags, "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        with WorkerStart(flags, self._model.shapes, starter) as before:
            before.event("model.warm")
            started = WorkerStart(flags, self._model.shapes, starter)
            try:
                for name in ("model.warm", "worker.stands_by"):
                    started.event(name)
                with suppress(StartError):  # a small model has one session only
                    started.event(SWAPPED, SWAP_S / 10)
                started.prepare(self._body or before.ask_for_body())
                os.kill(before.pid, signal.SIGKILL)
                started.begin_again()
            except BaseException:
                started.close()
                raise
        return started

    def prepare(self, row: Contender) -> None:
        """Start ``row`` once and wait until what its next start finds is there.

        Raises:
            StartError: that did not come.
        """
        if row.change is not None:
            with self._worker(row.name, row.change) as worker:
                worker.first_answer()
                for name in row.change.kept:
                    worker.event(name, KEPT_S)

    def steady(self, row: Contender, number: int, seconds: float) -> Steady:
        """Start ``row`` from a warm page cache and load it with one caller until ``seconds`` after the last swap.

        Raises:
            StartError: it did not come to a first answer, or an answer failed.
        """
        page_cache.warm(self._model.files)
        if row.change is None:
            with PlainStart(self._plain, self._model.shapes, self._providers) as started:
                started.first_answer()
                took = started.run(seconds)
                return _steady(row.name, number, None, None, took, started.pid)
        with self._worker(row.name, row.change) as worker:
            worker.first_answer()
            answered = time.perf_counter()
            loading, swap_s = [], None
            while is_building(worker.stats()) and time.perf_counter() < answered + SWAP_S:
                loading += worker.run(0.25)
            if loading and worker.poll(SWAPPED):
                swapped = next(at for at, event in worker.events if event["event"] == SWAPPED)
                swap_s = swapped - answered
            return _steady(row.name, number, loading, swap_s, worker.run(seconds), worker.pid)


class PlainStart:
    """A plain session in a fresh process, with the interface of a worker's start."""

    def __init__(self, files: PlainFiles, shapes: Mapping[str, tuple[int, ...]], providers: Sequence[str] = ()) -> None:
        self._files = files
        argv = [sys.executable, plain.__file__, str(files.file), json.dumps(dict(shapes)), json.dumps(files.unpacks)]
        argv += providers
        self.began = time.perf_counter()
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def __enter__(self) -> PlainStart:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._files.clear()

    def _line(self) -> Any:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise StartError("the plain session's process ended; its error is above")
        return json.loads(line)

    def first_answer(self) -> tuple[float, dict[str, float]]:
        """Wait for its first run; returns seconds from the spawn to its end, and its stages."""
        stages: dict[str, float] = self._line()
        answer_s = time.perf_counter() - self.began
        stages["imports"] = answer_s - sum(took_s for stage, took_s in stages.items() if stage != "imports")
        return answer_s, stages

    def run(self, seconds: float) -> list[float]:
        """Run on for ``seconds``; returns what each run took."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        took: list[float] = self._line()
        return took


def _steady(
    row: str, number: int, loading: list[float] | None, swap_s: float | None, took: list[float], pid: int
) -> Steady:
    memory = of_process(pid)
    ordered = sorted(took)
    return Steady(
        row,
        number,
        len(loading) / sum(loading) if loading else None,
        swap_s,
        len(took) / sum(took),
        statistics.median(ordered),
        ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        memory["resident"],
        memory["anonymous"],
        memory["peak"],
        device_bytes(pid),
    )


def shared_directory() -> TemporaryDirectory[str]:
    """Return a directory of a bench's own for what its workers keep in memory; gone at the end of ``with``."""
    return TemporaryDirectory(
        prefix=f"warmroute-bench-{os.getpid()}-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    )


def is_building(stats: Mapping[str, Any]) -> bool:
    """Return whether the engine says that a second session is still to come."""
    phase = ((stats.get("engine") or {}).get("two_phase") or {}).get("phase")
    return phase in _BUILDING


def of_process(pid: int) -> dict[str, int]:
    """Return a process's memory in bytes: ``peak`` and ``resident``, shared pages included, and ``anonymous``."""
    found = {"peak": 0, "resident": 0, "anonymous": 0}
    names = {"VmHWM": "peak", "VmRSS": "resident", "RssAnon": "anonymous"}
    for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in names:
            found[names[name]] = int(rest.split()[0]) * 1024
    return found


def device_bytes(pid: int) -> int | None:
    """Return how much memory of NVIDIA devices a process holds; None where there is none to ask."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(",") for line in said.splitlines() if line.count(",") == 1]
    return sum(int(used) << 20 for found, used in rows if found.strip() == str(pid) and used.strip().isdecimal())


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
