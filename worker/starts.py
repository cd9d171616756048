"""What is told of a worker's starts: what was expected, what each stage took, what was slow or out of the ordinary."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.baseline_load import PRIOR
from worker.baseline import features
from worker.loading import LoadError
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.baseline_load import Baseline, StartFeatures
    from router.model import State
    from worker.log import EventLog
    from worker.memory import MemoryProbe
    from worker.stages import Stages
    from worker.store import ModelFiles

OBJECTIVE_S: Final = 1.2
"""A start that takes longer is told; the P95 of cold ones should stay below."""


@dataclass(slots=True)
class StartCounts:
    """What happened since the process started."""

    warm: int = 0
    failed: int = 0
    slow: int = 0
    outside_band: int = 0
    fell_back: int = 0
    unfit_recordings: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """One start that came to its end: when all of it is counted, what was expected, and its stages so far.

    ``facts``: what its loader says of it (:meth:`worker.loading.Loaded.facts`).
    """

    seconds: float
    expected_s: float | None
    stages: Stages
    facts: Mapping[str, object] = field(default_factory=dict)


class Starts:
    """Watches one process's starts. Used on the event loop, but for :meth:`expected_s` and :meth:`first_answer`."""

    def __init__(
        self,
        log: EventLog,
        baseline: Baseline = PRIOR,
        memory: MemoryProbe | None = None,
        *,
        imports_s: float | None = None,
        objective_s: float = OBJECTIVE_S,
        accelerator: bool = False,
        cached_ratio: Callable[[ModelFiles], float] | None = None,
    ) -> None:
        """``imports_s``: how long the process took to come here, where its first start is of the process itself too.

        ``objective_s``: 0 for none. ``cached_ratio`` is asked only where the baseline goes by it.
        """
        self._log = log
        self._imports_s = imports_s
        self._baseline = baseline
        self._memory = memory
        self._objective_s = objective_s
        self._accelerator = accelerator
        self._cached_ratio = cached_ratio if baseline.cached_s else None
        self.counts = StartCounts()

    def expected_s(self, files: ModelFiles) -> float | None:
        """Return how long a start of ``files`` should take; None where they cannot be looked at. Blocks."""
        try:
            return self._baseline.predict_s(self._known(files))
        except (OSError, LoadError):
            return None  # whoever reads them in a moment will say so

    def _known(self, files: ModelFiles) -> StartFeatures:
        cached = 0.0 if self._cached_ratio is None else self._cached_ratio(files)
        return features(files, self._memory, accelerator=self._accelerator, cached_ratio=cached)

    def apart(self) -> None:
        """No model is loaded as the process starts: the first start is none of the process itself."""
        self._imports_s = None

    def begin(self, stages: Stages) -> None:
        """A start begins."""
        if self._imports_s is not None:
            stages.add(Stage.IMPORTS, self._imports_s)
            self._imports_s = None

    def warm(self, name: str, version: str, device: str, start: Start) -> None:
        """Tell of a start that ended well."""
        self.counts.warm += 1
        took_s = start.seconds
        stages = {stage.value: round(seconds, 4) for stage, seconds in start.stages.seconds().items()}
        told = {} if start.expected_s is None else {"expected_s": round(start.expected_s, 3)}
        self._log.info(
            "model.warm",
            model=name,
            version=version,
            seconds=round(took_s, 3),
            device=device,
            stages=stages,
            **told,
            **start.facts,
        )
        if 0 < self._objective_s < took_s:
            self.counts.slow += 1
            slowest = max(stages, key=lambda stage: stages[stage], default="")
            self._log.warning(
                "model.slow_start",
                model=name,
                version=version,
                seconds=round(took_s, 3),
                objective_s=self._objective_s,
                slowest=slowest,
                slowest_s=stages.get(slowest, 0.0),
            )
        if start.expected_s is not None and self._baseline.is_outside(start.expected_s, took_s):
            self.counts.outside_band += 1
            low_s, high_s = self._baseline.band_s or (0.0, 0.0)
            self._log.warning(
                "model.start_outside_band",
                model=name,
                version=version,
                seconds=round(took_s, 3),
                expected_s=round(start.expected_s, 3),
                band_s=[round(max(0.0, start.expected_s + low_s), 3), round(start.expected_s + high_s, 3)],
            )

    def fell_back(self, name: str, version: str, state: State, after_s: float, read: int, total: int) -> None:
        """Tell of a preload whose turn was over in ``state``, when ``read`` of ``total`` bytes were in."""
        self.counts.fell_back += 1
        self._log.warning(
            "load.fell_back",
            model=name,
            version=version,
            state=state.value,
            after_s=after_s,
            bytes_read=read,
            bytes_total=total,
        )

    def passed_over(self, name: str, version: str, file: str, why: str) -> None:
        """Tell of a recorded warm-up that the model does not take any more."""
        self.counts.unfit_recordings += 1
        self._log.warning("warmup.passed_over", model=name, version=version, file=file, error=why)

    def failed(self) -> None:
        """Count a start that failed; its reason is told with the state."""
        self.counts.failed += 1

    def first_answer(self, name: str, version: str, stages: Stages) -> None:
        """Tell what the first run for a caller took. From any thread."""
        seconds = stages.seconds().get(Stage.FIRST_ANSWER, 0.0)
        self._log.info("model.first_answer", model=name, version=version, seconds=round(seconds, 4))


def process_age_s(proc: Path = Path("/proc")) -> float | None:
    """Return how long ago this process was made, to 10 ms (proc_pid_stat(5), field 22); None where that is unknown."""
    try:
        fields = (proc / "self" / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return None
