"""What proxies learn of workers besides their own requests: reports through the store, active checks, proof.

Reports come late and some get lost, as the scenario says; each carries the whole record, so the next one mends a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from router.model import EndpointGone, EndpointRecord, EndpointSeen, GoneReason, Replica, State
from router.outcomes import AttemptResult
from tests.sim.workers import Job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.sim.proxies import Sidecar
    from tests.sim.timeline import Timeline
    from tests.sim.workers import Worker

HEARTBEAT_S = 1.0
QUICK_HEARTBEAT_S = 0.2
"""While a model loads."""
TTL_S = 5.0
CHECK_S = 0.25
"""How often an active check asks."""
PROOF_S = 0.25
"""How long after a warm-up request that failed the next one is sent."""


class Knows(StrEnum):
    """What a proxy is told of its endpoints."""

    NOTHING = "nothing"  # addresses alone
    CHECKS = "checks"  # a readiness check every 250 ms, as truthful as the scenario's workers
    REPORTS = "reports"  # workers report through the store
    PROOF = "proof"  # checks, and warm-up requests of the proxy's own before the first request


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How reports arrive: so much later (drawn evenly from this range), and this share of them never."""

    least_s: float = 0.002
    most_s: float = 0.02
    lost_ratio: float = 0.0


PROMPT = Telemetry()


class Reporter:
    """One worker's reports to every sidecar: on each change, on each heartbeat."""

    def __init__(
        self, worker: Worker, sidecars: Sequence[Sidecar], telemetry: Telemetry, timeline: Timeline, rng: Random
    ) -> None:
        self._worker = worker
        self._telemetry = telemetry
        self._timeline = timeline
        self._rng = rng
        self._arrives = dict.fromkeys(sidecars, 0.0)  # when the last word does: words never overtake
        self._said: dict[Sidecar, EndpointRecord | None] = dict.fromkeys(sidecars)
        self._revision = 0
        self._spoke_at = 0.0
        worker.changed = self._report
        timeline.at(0.0, self._first)

    def _first(self, _: None) -> None:
        for sidecar in self._arrives:
            sidecar.take(EndpointSeen(self._record(), self._timeline.now))
        self._timeline.at(self._rng.random() * HEARTBEAT_S, self._beat)

    def _beat(self, _: None) -> None:
        worker = self._worker
        quick = worker.up and any(worker.is_loading(model) for model in worker.spec.models)
        self._timeline.at(self._timeline.now + (QUICK_HEARTBEAT_S if quick else HEARTBEAT_S), self._beat)
        self._report(worker)

    def _report(self, worker: Worker) -> None:
        now = self._timeline.now
        if not worker.up:
            if now - self._spoke_at >= TTL_S:
                for sidecar in self._arrives:
                    sidecar.take(EndpointGone(worker.id, GoneReason.EXPIRED, now))
            return
        self._spoke_at = now
        record = self._record()
        telemetry = self._telemetry
        for sidecar, last in self._arrives.items():
            if self._rng.random() < telemetry.lost_ratio:
                continue
            late = telemetry.least_s + (telemetry.most_s - telemetry.least_s) * self._rng.random()
            arrives = self._arrives[sidecar] = max(last, now + late)
            self._timeline.at(arrives, sidecar.arrived, record)

    def _record(self) -> EndpointRecord:
        worker = self._worker
        now = self._timeline.now
        replicas = []
        for model in worker.spec.models:
            since = worker.warm_since(model)
            if since is not None:
                replicas.append(Replica(model, "1", warmth=(("any", 1.0),), warm_for_s=min(1e6, now - since)))
            else:
                state = State.LOADING if worker.is_loading(model) else State.COLD
                replicas.append(Replica(model, "1", state=state))
        self._revision += 1
        return EndpointRecord(
            worker.id,
            f"http://{worker.id}",
            epoch=str(worker.epoch),
            revision=self._revision,
            replicas=tuple(replicas),
            free_memory_bytes=worker.free_bytes,
            total_memory_bytes=worker.spec.memory_bytes,
            queue_depth=worker.queued,
        )


class Checks:
    """A sidecar's active checks of all workers: the process must answer, and say that it is ready unless it lies.

    ``lies``: it says so from the moment its process runs.
    """

    def __init__(
        self, workers: Sequence[Worker], sidecar: Sidecar, timeline: Timeline, rng: Random, *, lies: bool
    ) -> None:
        self._sidecar = sidecar
        self._lies = lies
        self._passed = dict.fromkeys(workers, True)
        for worker in workers:
            timeline.every(CHECK_S, lambda now, worker=worker: self._check(worker), rng.random() * CHECK_S)  # type: ignore[misc]

    def _check(self, worker: Worker) -> None:
        passed = worker.up if self._lies else worker.ready
        if passed is not self._passed[worker]:
            self._passed[worker] = passed
            self._sidecar.checked(worker.id, passed)


class Proof:
    """Checks, and before an endpoint gets its first request again, a warm-up request that it answered.

    Whoever failed a check, or was ejected, has to prove itself anew.
    """

    def __init__(
        self, workers: Sequence[Worker], sidecar: Sidecar, timeline: Timeline, rng: Random, *, lies: bool
    ) -> None:
        self._workers = {worker.id: worker for worker in workers}
        self._sidecar = sidecar
        self._timeline = timeline
        self._proving: set[str] = set()
        sidecar.on_ejected(self.doubt)
        for worker in workers:
            timeline.every(CHECK_S, lambda now, worker=worker: self._check(worker, lies), rng.random() * CHECK_S)  # type: ignore[misc]

    def _check(self, worker: Worker, lies: bool) -> None:
        if not (worker.up if lies else worker.ready):
            self.doubt(worker.id)

    def doubt(self, id_: str) -> None:
        """Take an endpoint as warming until it has answered a warm-up request."""
        if id_ not in self._proving:
            self._proving.add(id_)
            self._sidecar.checked(id_, False)
            self._ask(id_)

    def _ask(self, id_: str) -> None:
        worker = self._workers[id_]
        worker.arrive(Job(worker.spec.models[0], id_, self._answered))

    def _answered(self, job: Job, result: AttemptResult) -> None:
        assert isinstance(job.owner, str)
        if result is AttemptResult.SUCCESS:
            self._proving.discard(job.owner)
            self._sidecar.checked(job.owner, True, proven=True)
        else:
            self._timeline.at(self._timeline.now + PROOF_S, self._ask, job.owner)
