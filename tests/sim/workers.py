"""Simulated workers: they hold models in bounded memory, load what is asked for, queue, and run a few at a time.

Nothing here knows how requests are routed. A worker is truthful only where :class:`Worker.ready` and the records of
``tests/sim/signals.py`` say so: it accepts requests from the moment its process runs, warm or not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Protocol

from router.outcomes import AttemptResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.sim.timeline import Timeline

GIB = 1 << 30


class Service(Protocol):
    """Draws how long a request takes, in seconds."""

    def __call__(self, rng: Random) -> float: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    seconds: float

    def __call__(self, rng: Random) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """Log-normal: the P99 is ``exp(2.33 sigma)`` times the median."""

    median_s: float
    sigma: float

    def __call__(self, rng: Random) -> float:
        return self.median_s * exp(rng.gauss(0.0, self.sigma))


TWENTY_MS = Fixed(0.020)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker as its scenario describes it.

    Args:
        models: those it may be asked for.
        concurrency: requests run at a time; the rest queue, in order.
        service: draws how long one takes.
        slowness: its service times are so many times longer.
        load_s: how long a model takes from disk to its first answer.
        holds: requests for a model that loads are held until it is there; else they are answered 503 with Retry-After.
        memory_bytes: device memory; a model takes ``model_bytes``, a request that runs ``request_bytes``.
        most_models: resident at a time, the first of ``models`` at the start. One that is loaded beyond that takes the
            place of the least recently used one that is idle.
    """

    id: str
    models: tuple[str, ...] = ("m",)
    concurrency: int = 4
    service: Service = TWENTY_MS
    slowness: float = 1.0
    load_s: float = 2.0
    holds: bool = True
    memory_bytes: int = 64 * GIB
    model_bytes: int = 4 * GIB
    request_bytes: int = 0
    most_models: int = 16

    @property
    def first_models(self) -> tuple[str, ...]:
        """What it loads when it starts."""
        return self.models[: self.most_models]


class Job:
    """One attempt as a worker sees it. ``ended`` is told how it went, once."""

    __slots__ = ("ended", "model", "owner")

    def __init__(self, model: str, owner: object, ended: Callable[[Job, AttemptResult], None]) -> None:
        self.model = model
        self.owner = owner
        self.ended = ended


class Worker:
    """One worker process and those that follow it under its id.

    ``slowed`` makes service times so many times longer than the spec says, from the next request on.
    ``changed`` is called where what it would report of itself has changed. ``neighbour_bytes`` is memory that another
    process on the device holds: less room for requests, none of its models is lost by it.
    """

    def __init__(self, spec: WorkerSpec, timeline: Timeline, rng: Random) -> None:
        self.spec = spec
        self.epoch = 1
        self.up = True
        self.neighbour_bytes = 0
        self.loads = 0
        self.slowed = 1.0
        self.changed: Callable[[Worker], None] = _nobody_cares
        self._timeline = timeline
        self._rng = rng
        self._queue: deque[Job] = deque()
        self._running: dict[Job, None] = {}  # in the order in which they began
        self._busy: dict[str, int] = {}  # by model: queued and running
        self._resident: dict[str, float] = dict.fromkeys(
            spec.first_models, float("-inf")
        )  # model: warm since, least used first
        self._loading: dict[str, list[Job]] = {}  # and who is held; the first is being loaded, the others wait for it
        self._begun: list[Job] | None = None  # those that the load which runs was begun for
        self._loading_first = False  # since its start, what it starts with is not there yet

    @property
    def id(self) -> str:
        """The endpoint's id, which its successors keep."""
        return self.spec.id

    @property
    def ready(self) -> bool:
        """Return what a truthful readiness check says: it runs, and no model that it starts with is still loading."""
        return self.up and not self._loading_first

    @property
    def queued(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    @property
    def free_bytes(self) -> int:
        """Device memory that nobody holds."""
        spec = self.spec
        held = len(self._resident) * spec.model_bytes + len(self._running) * spec.request_bytes
        return max(0, spec.memory_bytes - self.neighbour_bytes - held)

    def warm_since(self, model: str) -> float | None:
        """Return since when a model's first answer was proven, None where it is not resident."""
        return self._resident.get(model)

    def is_loading(self, model: str) -> bool:
        """Return whether it is on its way into memory."""
        return model in self._loading

    # --- its process -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process at once: every request in it is reset, every model lost."""
        self.up = False
        lost = [*self._running, *self._queue, *(job for jobs in self._loading.values() for job in jobs)]
        self._running.clear()
        self._queue.clear()
        self._busy.clear()
        self._resident.clear()
        self._loading.clear()
        self.epoch += 1
        for job in lost:
            job.ended(job, AttemptResult.RESET)

    def start(self) -> None:
        """Start a process anew: it accepts at once, and loads its first models meanwhile."""
        self.up = True
        self._loading_first = True
        for model in self.spec.first_models:
            self._load(model)
        self.changed(self)

    # --- requests --------------------------------------------------------------------------------------------------

    def arrive(self, job: Job) -> None:
        """Take a request; refused where no process runs."""
        if not self.up:
            job.ended(job, AttemptResult.CONNECT_REFUSED)
            return
        if job.model in self._resident:
            self._enqueue(job)
            return
        held = self._loading.get(job.model)
        if held is None:
            held = self._load(job.model)
            self.changed(self)
        if self.spec.holds:
            held.append(job)
        else:
            job.ended(job, AttemptResult.BUSY)

    def settle(self) -> None:
        """Let more run where room has come since."""
        while self._queue and self._has_room():
            self._begin(self._queue.popleft())

    def _has_room(self) -> bool:
        spec = self.spec
        running = len(self._running)
        if running >= spec.concurrency:
            return False
        return not running or not spec.request_bytes or self.free_bytes >= spec.request_bytes

    def _enqueue(self, job: Job) -> None:
        model = job.model
        self._resident[model] = self._resident.pop(model)  # most recently used
        self._busy[model] = self._busy.get(model, 0) + 1
        if not self._queue and self._has_room():
            self._begin(job)
        else:
            self._queue.append(job)

    def _begin(self, job: Job) -> None:
        self._running[job] = None
        took = self.spec.service(self._rng) * self.spec.slowness * self.slowed
        self._timeline.at(self._timeline.now + took, self._finish, job)

    def _finish(self, job: Job) -> None:
        if job not in self._running:  # its process was killed
            return
        del self._running[job]
        self._busy[job.model] -= 1
        if self._loading and not self._busy[job.model]:
            self._make_room()
        self.settle()
        job.ended(job, AttemptResult.SUCCESS)

    # --- models ----------------------------------------------------------------------------------------------------

    def _load(self, model: str) -> list[Job]:
        held = self._loading[model] = []
        if len(self._loading) == 1:
            self._make_room()
        return held

    def _make_room(self) -> None:
        """Begin to load the first that waits, once there is room."""
        model = next(iter(self._loading))
        if self._loading[model] is self._begun:
            return
        spec = self.spec
        if len(self._resident) >= spec.most_models:
            idle = next((each for each in self._resident if not self._busy.get(each)), None)
            if idle is None:
                return  # whoever ends makes room
            del self._resident[idle]
            self.changed(self)
        self._begun = self._loading[model]
        self.loads += 1
        self._timeline.at(self._timeline.now + spec.load_s, self._loaded, (model, self.epoch))

    def _loaded(self, what: tuple[str, int]) -> None:
        model, epoch = what
        if epoch != self.epoch:
            return
        held = self._loading.pop(model)
        self._begun = None
        self._resident[model] = self._timeline.now
        for job in held:
            self._enqueue(job)
        if self._loading:
            self._make_room()
        else:
            self._loading_first = False
        self.changed(self)


def _nobody_cares(worker: Worker) -> None:
    """Stand in where nothing listens to a worker."""
