"""``warmroute bench updates``: what callers see, and what memory it takes, when a model is changed in three ways.

One caller asks all the while, one request after the other. ``full`` unloads what serves and loads the new content,
``lazy`` lets it go and has the next request load the new content, ``hot`` loads the new content beside the old one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import yaml

from worker.bench.model import NAME, ModelError, Repository, find_model
from worker.bench.samples import SWAP_S, cores, is_building, of_process, shared_directory
from worker.bench.tables import table
from worker.bench.worker_start import START_S, StartError, WorkerStart
from worker.flag_types import MAX_THREADS, count, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.bench.model import BenchModel

ROUNDS: Final = 5
MOST_ROUNDS: Final = 10_000
WAYS: Final = ("full", "lazy", "hot")
_FAILED, _REFUSED = 1, 2
_RETRY_S: Final = 0.002
"""After a refusal the caller asks again so soon."""
SPAN_S: Final = 1.0
"""How long the caller is listened to before an update, and after it."""
LEAST_SPAN_S: Final = 0.01
MOST_SPAN_S: Final = 3600.0
_IDLE_S: Final = 0.3
"""Of the row ``lazy``: how long nobody asks until the old content has gone."""


class Update(msgspec.Struct, frozen=True):
    """One update. Seconds and bytes."""

    way: str
    seconds: float
    """From saying so to the new content's first answer; ``lazy``: from the first request for it."""
    silence_s: float
    """The longest time between two answers meanwhile."""
    refused: int
    """Requests that were not answered."""
    p99_before_s: float
    slowest_s: float
    """The longest that an answer took from the update's beginning until shortly after it."""
    resident_bytes: int
    """Before it; file pages included."""
    peak_bytes: int
    settled_bytes: int
    """When everything is done, a second session too."""


class _Caller:
    """Asks one request after the other in a thread; keeps when each was answered, and how long it took."""

    def __init__(self, address: str, body: bytes) -> None:
        place = urlsplit(address)
        self._connection = HTTPConnection(place.hostname or "", place.port, timeout=START_S)
        self._body = body
        self._stop = threading.Event()
        self.answers: list[tuple[float, float]] = []
        self.refused = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            try:
                self._connection.request("POST", f"/v2/models/{NAME}/infer", self._body)
                answer = self._connection.getresponse()
                answer.read()
                good = answer.status == 200
            except (OSError, HTTPException):
                self._connection.close()
                good = False
            ended = time.perf_counter()
            if good:
                self.answers.append((ended, ended - began))
            else:
                self.refused += 1
                self._stop.wait(_RETRY_S)

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(START_S)
        self._connection.close()


class _Worker:
    """A worker whose one model can be changed."""

    def __init__(self, model: BenchModel, repository: Repository, shared: str, threads: int, *, idle: bool) -> None:
        self._description = repository.root / NAME / "1" / "model.yaml"
        self._said = dict(model.description)
        self._turn = 0
        flags = ["--models", str(repository.root), "--model-control", "explicit", "--load-model", NAME]
        flags += ["--threads", str(threads), "--shm-dir", shared]
        if idle:
            flags += ["--idle-unload-s", str(_IDLE_S)]
        self.start = WorkerStart(flags, model.shapes)

    def change(self) -> None:
        """Give the version another description, which makes it new content: whole, by one rename."""
        self._turn += 1
        classes = [dict(one) for one in self._said.get("warmup") or [{}]]
        classes[0]["name"] = f"benched-{self._turn}"
        new = self._description.with_name(".model.yaml")
        new.write_text(yaml.safe_dump({**self._said, "warmup": classes}))
        new.rename(self._description)

    def post(self, change: str) -> None:
        """Have the worker load or unload it.

        Raises:
            StartError: it did not.
        """
        place = urlsplit(self.start.event("worker.listening")["address"])
        connection = HTTPConnection(place.hostname or "", place.port, timeout=START_S)
        try:
            connection.request("POST", f"/v2/repository/models/{NAME}/{change}", b"{}")
            answer = connection.getresponse()
            said = answer.read()
        except OSError as error:
            raise StartError(f"{change}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise StartError(f"{change}: HTTP {answer.status}: {said[:300]!r}")

    def settle(self) -> None:
        """Wait until no second session is being made."""
        until = time.perf_counter() + SWAP_S
        while is_building(self.start.stats()) and time.perf_counter() < until:
            time.sleep(0.05)


def measure(model: BenchModel, way: str, threads: int, span_s: float = SPAN_S) -> Update:
    """Change a model once, ``full``, ``lazy`` or ``hot``, in a fresh worker; the caller is heard ``span_s`` around it.

    Raises:
        StartError: the worker did not do it.
        ModelError: no repository can be made of the model.
    """
    with shared_directory() as shared, Repository(model, {}) as repository:
        worker = _Worker(model, repository, shared, threads, idle=way == "lazy")
        with worker.start as start:
            start.first_answer()
            address = start.event("worker.listening")["address"]
            caller = _Caller(address, start.body)
            try:
                worker.settle()
                caller.answers.clear()
                time.sleep(span_s)
                resident = of_process(start.pid)["resident"]
                Path(f"/proc/{start.pid}/clear_refs").write_text("5")  # the peak is counted from here on (proc(5))
                worker.change()
                before = list(caller.answers)
                if way == "lazy":
                    gone = _unloads(start)
                    caller.stop()
                    _wait(lambda: _unloads(start) > gone)
                    refused_before, began = 0, time.perf_counter()
                    caller = _Caller(address, start.body)
                    _wait(lambda: bool(caller.answers))
                    ended = caller.answers[0][0]
                else:
                    refused_before, began = caller.refused, time.perf_counter()
                    if way == "full":
                        worker.post("unload")
                    worker.post("load")
                    done = time.perf_counter()
                    _wait(lambda: caller.answers[-1][0] - caller.answers[-1][1] > done)
                    ended = next(at for at, took in caller.answers if at - took > done)
                time.sleep(span_s)
                answers = list(caller.answers)
                worker.settle()
                memory = of_process(start.pid)
            finally:
                caller.stop()
    answered = [at for at, _ in answers if began <= at <= ended]
    times = [began, *answered, ended]
    return Update(
        way,
        ended - began,
        max(later - earlier for earlier, later in itertools.pairwise(times)),
        caller.refused - refused_before,
        sorted(took for _, took in before)[int(0.99 * len(before))],
        max(took for at, took in answers if at >= began),
        resident,
        memory["peak"],
        memory["resident"],
    )


def _unloads(start: WorkerStart) -> int:
    start.poll("model.unloaded")
    return sum(event["event"] == "model.unloaded" for _, event in start.events)


def _wait(holds: Callable[[], bool]) -> None:
    until = time.perf_counter() + START_S
    while not holds():
        if time.perf_counter() > until:
            raise StartError(f"the new content did not answer within {START_S:.0f} s")
        time.sleep(0.001)


def report(model: BenchModel, updates: list[Update], threads: int) -> str:
    """Return the table: medians by way."""
    rows = []
    for way in WAYS:
        of_way = [update for update in updates if update.way == way]
        if not of_way:
            continue

        def middle(name: str, of_way: list[Update] = of_way) -> float:
            return float(median(getattr(update, name) for update in of_way))

        resident = middle("resident_bytes")
        rows.append(
            [
                way,
                *(f"{middle(name) * 1000:,.1f}" for name in ("seconds", "silence_s")),
                f"{middle('refused'):.0f}",
                *(f"{middle(name) * 1000:,.1f}" for name in ("p99_before_s", "slowest_s")),
                f"{resident / 1e6:,.0f}",
                f"{middle('peak_bytes') / 1e6:,.0f}",
                f"{middle('settled_bytes') / 1e6:,.0f}",
            ]
        )
    head = ["", "update", "no answer for", "refused", "P99 before", "slowest", "MB before", "MB at peak", "MB after"]
    rounds = len(updates) // len({update.way for update in updates})
    return (
        f"{model.directory}: {model.size_bytes / 1e6:,.0f} MB, one caller, {rounds} rounds, {threads} threads within "
        f"one execution; ms, medians.\n\n{table(head, rows)}\n"
    )


def add_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser, by its ``add_parser``."""
    parser = add(
        "updates",
        help="measure what changing a model under load costs",
        description="Change a model under one caller: full (unload, load), lazy (by the next request), hot (beside).",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a version's directory, as models/synthetic/1")
    option = parser.add_argument
    option("--rounds", type=count(1, MOST_ROUNDS), default=ROUNDS, metavar="N", help=f"updates of each way ({ROUNDS})")
    option(
        "--threads",
        type=count(1, MAX_THREADS),
        default=cores(),
        metavar="N",
        help="within one execution of the worker (all cores)",
    )
    option(
        "--span-s",
        type=number(LEAST_SPAN_S, MOST_SPAN_S),
        default=SPAN_S,
        metavar="S",
        help=f"the caller is heard so long around it ({SPAN_S:g})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every update there")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    try:
        model = find_model(given.model)
    except ModelError as error:
        sys.stderr.write(f"error: {error}\n")
        return _REFUSED
    updates: list[Update] = []
    try:
        for number in range(given.rounds):
            for way in WAYS:
                updates.append(measure(model, way, given.threads, given.span_s))
                sys.stderr.write(f"{number + 1}/{given.rounds} {way}: {updates[-1].seconds * 1000:.1f} ms\n")
    except (StartError, ModelError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _FAILED
    print(report(model, updates, given.threads))
    if given.json is not None:
        said: dict[str, Any] = {"model": str(model.directory), "bytes": model.size_bytes, "threads": given.threads}
        given.json.write_text(json.dumps({**said, "updates": msgspec.to_builtins(updates)}, indent=1) + "\n")
    return 0
