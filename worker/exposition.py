"""Which metrics a worker has: their names, and where each number stands. docs/observability.md lists them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from router.model import State
from router.wire import ModelEvent
from worker.alarms import Alarm
from worker.engines.two_phase import Phase
from worker.loading.mapping import cached_ratio
from worker.metrics import Family
from worker.starts import process_age_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker.alarms import Alarms
    from worker.execution import Executor
    from worker.execution.buffers import Buffers
    from worker.execution.pool import Pool
    from worker.governor import Governor
    from worker.loading.leases import Leases
    from worker.memory import MemoryProbe
    from worker.models import Models
    from worker.news import News
    from worker.recording import Recordings
    from worker.serving.unread import Unread
    from worker.starts import Starts

_C, _G, _H = "counter", "gauge", "histogram"


def of_models(models: Models) -> Callable[[], Iterator[Family]]:
    """Expose each replica's state, its last start and what became of its requests. Labels: ``model``, ``version``."""

    def families() -> Iterator[Family]:
        state = Family("warmroute_worker_state", _G, "1 for the state that a replica is in, 0 for the others.")
        warmth = Family(
            "warmroute_worker_warmth_ratio", _G, "Share of a replica's shape classes that a run has proven."
        )
        stages = Family("warmroute_worker_stage_seconds", _G, "What each stage of a replica's last start took.")
        start = Family("warmroute_worker_start_seconds", _G, "What a replica's last start took in all.")
        expected = Family("warmroute_worker_start_expected_seconds", _G, "What the baseline said it would take.")
        executed = Family("warmroute_worker_executions_total", _C, "Runs begun for requests; warm-up runs are not.")
        inferences = Family("warmroute_worker_inferences_total", _C, "Requests that were answered.")
        ended = Family(
            "warmroute_worker_not_answered_total", _C, "Requests that got no answer of the model's, by result."
        )
        loaded = Family("warmroute_worker_loaded_bytes", _G, "Size of a replica's files, by how they were loaded.")
        access = Family(
            "warmroute_worker_first_access_seconds", _G, "The longest that reading one page took, once loaded."
        )
        phases = Family("warmroute_worker_session_phase", _G, "1 for how far a model in two phases is, else 0.")
        for replica in models:
            labels = {"model": replica.name, "version": replica.version}
            if "two_phase" in (facts := replica.engine_facts()):
                for phase in Phase:
                    phases.add(float(facts["two_phase"]["phase"] == phase.value), **labels, phase=phase.value)
            for one in State:
                state.add(float(replica.state is one), **labels, state=one.value)
            warmth.add(replica.warmth_ratio, **labels)
            for stage, seconds in replica.stages.seconds().items():
                stages.add(seconds, **labels, stage=stage.value)
            if replica.start_s is not None:
                start.add(replica.start_s, **labels)
            if replica.expected_s is not None:
                expected.add(replica.expected_s, **labels)
            if replica.loaded is not None:
                how = {"strategy": str(replica.loaded.strategy), "hashed_from": replica.loaded.hashed_from.value}
                loaded.add(replica.loaded.bytes_total, **labels, **how)
                if replica.loaded.first_access_s is not None:
                    access.add(replica.loaded.first_access_s, **labels)
            counts = replica.counts
            executed.add(counts.executed, **labels)
            inferences.add(replica.statistics.inferences, **labels)
            for result in ("failed", "cancelled", "rejected", "before_warm"):
                ended.add(getattr(counts, result), **labels, result=result)
        return iter((state, warmth, stages, start, expected, loaded, access, executed, inferences, ended, phases))

    return families


def of_page_cache(models: Models) -> Callable[[], Callable[[], Iterator[Family]]]:
    """Expose how much of each loaded replica's files memory holds now."""

    def loaded() -> Callable[[], Iterator[Family]]:
        files = [(replica.name, replica.version, replica.loaded_files) for replica in models if replica.loaded_files]

        def families() -> Iterator[Family]:
            residency = Family("warmroute_worker_residency_ratio", _G, "Share of a replica's files that memory holds.")
            for name, version, found in files:
                held = cached_ratio(found)
                if held is not None:
                    residency.add(held, model=name, version=version)
            yield residency

        return families

    return loaded


def of_alarms(alarms: Alarms) -> Callable[[], Iterator[Family]]:
    """Expose which alarms are raised."""

    def families() -> Iterator[Family]:
        raised = Family("warmroute_worker_alarm", _G, "1 where an alarm over this process is raised.")
        for alarm in Alarm:
            raised.add(float(alarm in alarms.raised), alarm=alarm.value)
        yield raised

    return families


def of_governor(governor: Governor) -> Callable[[], Iterator[Family]]:
    """Expose how often loading was held back."""

    def families() -> Iterator[Family]:
        text = "Loads that were held back for want of memory."
        yield _one("warmroute_worker_loads_held_back_total", _C, text, governor.held_back)

    return families


def of_changes(news: News) -> Callable[[], Iterator[Family]]:
    """Expose what became of models, of all together: one that has gone is counted too."""

    def families() -> Iterator[Family]:
        changes = Family("warmroute_worker_model_changes_total", _C, "What became of models.")
        for event in ModelEvent:
            changes.add(news.counts[event], change=event.value.removeprefix("model-"))
        yield changes
        text = "Models that nobody used any more and whose engine failed to give back what they held."
        yield _one("warmroute_worker_models_not_given_back_total", _C, text, news.not_given_back)

    return families


def of_leases(leases: Leases) -> Callable[[], Iterator[Family]]:
    """Expose how many files are guarded, and what came of those that somebody opened for writing."""

    def families() -> Iterator[Family]:
        yield _one("warmroute_worker_guarded_files", _G, "Files whose writers wait for this worker.", leases.held)
        changing = Family(
            "warmroute_worker_files_changing_total", _C, "Files opened for writing while a model was mapped from them."
        )
        changing.add(leases.kept, outcome="kept")
        changing.add(leases.taken_out, outcome="taken_out")
        changing.add(leases.failed_loads, outcome="load_failed")
        yield changing

    return families


def of_recordings(recordings: Recordings, starts: Starts) -> Callable[[], Iterator[Family]]:
    """Expose how many recorded warm-ups were passed over: not to be read, or none that the model takes."""

    def families() -> Iterator[Family]:
        passed = Family("warmroute_worker_warmup_passed_over_total", _C, "Recorded warm-up inputs that were not run.")
        passed.add(recordings.unreadable, why="unreadable")
        passed.add(starts.counts.unfit_recordings, why="unfit")
        yield passed

    return families


def of_threads(executor: Executor, pool: Pool | None) -> Callable[[], Iterator[Family]]:
    """Expose the threads that execute: ``size`` are the pool's own, ``lent`` those beside it, ``busy`` run."""

    def families() -> Iterator[Family]:
        threads = Family("warmroute_worker_threads", _G, "Threads that execute.")
        lent = 0 if pool is None else pool.lent
        threads.add(executor.threads - lent, kind="size")
        threads.add(lent, kind="lent")
        threads.add(executor.busy, kind="busy")
        yield threads
        if pool is not None:
            changes = Family("warmroute_worker_pool_changes_total", _C, "How often the pool of threads changed.")
            for change, count in (("grown", pool.grown), ("shrunk", pool.shrunk), ("lent", pool.loans)):
                changes.add(count, change=change)
            yield changes

    return families


def of_buffers(buffers: Buffers) -> Callable[[], Iterator[Family]]:
    """Expose how often memory was there, and how much is held."""

    def families() -> Iterator[Family]:
        arrays = Family("warmroute_worker_buffers_total", _C, "Arrays in memory that is used again, by result.")
        arrays.add(buffers.hits, result="hit")
        arrays.add(buffers.misses, result="miss")
        yield arrays
        ratio = "Share of arrays whose memory was there."
        asked = buffers.hits + buffers.misses
        yield _one("warmroute_worker_buffers_hit_ratio", _G, ratio, buffers.hits / asked if asked else 0.0)
        yield _one("warmroute_worker_buffers_held_bytes", _G, "Memory of all buffers.", buffers.held_bytes)
        yield _one("warmroute_worker_buffers_lent", _G, "Buffers in use.", buffers.lent)

    return families


def of_unread(unread: Unread) -> Callable[[], Iterator[Family]]:
    """Expose the answers that callers have not taken yet."""

    def families() -> Iterator[Family]:
        text = "Bytes of answers that their callers have not taken yet."
        yield _one("warmroute_worker_answers_held_bytes", _G, text, unread.held_bytes)
        text = "Answers that were cut because their callers took nothing of them for too long."
        yield _one("warmroute_worker_answers_cut_total", _C, text, unread.cut)

    return families


def of_process(
    executor: Executor, memory: MemoryProbe, starts: Starts, draining: Callable[[], bool]
) -> Callable[[], Iterator[Family]]:
    """Expose what concerns the whole process."""

    def families() -> Iterator[Family]:
        counts = starts.counts
        for name, text, value in (
            ("warmroute_worker_starts_total", "Starts that ended warm.", counts.warm),
            ("warmroute_worker_failed_starts_total", "Starts that failed.", counts.failed),
            ("warmroute_worker_slow_starts_total", "Starts that took longer than --start-objective-s.", counts.slow),
            (
                "warmroute_worker_starts_outside_band_total",
                "Starts that took longer, or shorter, than the baseline's band.",
                counts.outside_band,
            ),
            (
                "warmroute_worker_preloads_fell_back_total",
                "Preloads that took longer than --preload-turn-s.",
                counts.fell_back,
            ),
        ):
            yield _one(name, _C, text, value)
        yield _one("warmroute_worker_in_flight", _G, "Requests that run or wait.", executor.in_flight)
        yield _one("warmroute_worker_queue_depth", _G, "Requests that wait for an execution.", executor.queue_depth)
        overdue = "Requests whose time was over before they were answered."
        yield _one("warmroute_worker_overdue_total", _C, overdue, executor.overdue)
        waits = Family("warmroute_worker_queue_seconds", _H, "How long requests waited for an execution.")
        waits.histograms.append(({}, executor.waits))
        yield waits
        yield _one("warmroute_worker_draining", _G, "1 where the worker drains.", float(draining()))
        found = memory.read()
        if found is not None:
            room = Family("warmroute_worker_memory_bytes", _G, "Memory of whatever the models live in.")
            room.add(found.free_bytes, kind="free")
            room.add(found.total_bytes, kind="total")
            yield room
        yield _one("process_cpu_seconds_total", _C, "Processor time of this process.", time.process_time())
        resident = _resident_bytes()
        if resident is not None:
            yield _one("process_resident_memory_bytes", _G, "Resident memory of this process.", resident)
        age_s = process_age_s()
        if age_s is not None:
            yield _one("process_start_time_seconds", _G, "When this process was made.", round(time.time() - age_s, 2))

    return families


def _one(name: str, kind: str, text: str, value: float) -> Family:
    family = Family(name, kind, text)
    family.add(value)
    return family


def _resident_bytes(proc: Path = Path("/proc")) -> int | None:
    try:
        return int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
