"""One model version as this worker holds it: brought up step by step, reported, and taken down again."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.model import Replica, State
from worker.engines import Cancellation, EngineError, GivenUpError
from worker.gate import Gate
from worker.lifecycle import Lifecycle, Transition
from worker.loading import LoadError
from worker.stages import Stage, Stages
from worker.starts import Start, Starts
from worker.statistics import Statistics
from worker.warmup import WarmupError, shape_classes, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.engines import Array, Engine, LoadedModel, Parameters
    from worker.loading import Loaded, Loader
    from worker.log import EventLog
    from worker.store import ModelFiles, ShapeClass

PROGRESS_EVERY_S = 0.2


class Counts:
    """What happened to requests since the process started. ``executed`` counts runs begun, warm-up runs not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.executed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0
        self.before_warm = 0

    def begun(self) -> bool:
        """A run began; called in the thread that runs it. True for the first."""
        with self._lock:
            self.executed += 1
            return self.executed == 1


@dataclass(frozen=True, slots=True)
class _Progress:
    bytes_read: int = 0
    bytes_total: int = 0


class HeldReplica:
    """A model version, its state, its gate and its counts. Used on the event loop only, except :meth:`execute`."""

    def __init__(
        self,
        files: ModelFiles,
        engine: Engine,
        loader: Loader,
        log: EventLog,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        starts: Starts | None = None,
    ) -> None:
        """``clock``: monotonic seconds. ``on_change`` is called whenever what :meth:`report` returns has changed.

        ``starts`` is told of its start.
        """
        self.files = files
        self.counts = Counts()
        self.statistics = Statistics()
        self.gate = Gate(files.name)
        self.content_hash = ""
        self.config_revision = files.config_revision
        self._engine = engine
        self._loader = loader
        self._log = log
        self._clock = clock
        self._on_change = on_change
        self._starts = Starts(log) if starts is None else starts
        self.stages = Stages(clock)
        self.start_s: float | None = None
        """What its start took in all, once it is warm."""
        self.expected_s: float | None = None
        """What its start should take, once that is known."""
        self._model: LoadedModel | None = None
        self._cancellation = Cancellation()
        self._progress = _Progress()
        self._progress_logged = float("-inf")
        self._warmth = {shape_class.name: 0.0 for shape_class in shape_classes(files)}
        self._lifecycle = Lifecycle(clock(), self._transition)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.files.name

    @property
    def version(self) -> str:
        """The model's version."""
        return self.files.version

    @property
    def state(self) -> State:
        """The state now."""
        return self._lifecycle.state

    @property
    def model(self) -> LoadedModel | None:
        """The loaded model, or None while there is none."""
        return self._model

    @property
    def warmth_ratio(self) -> float:
        """The share of its shape classes that a run has proven."""
        return sum(self._warmth.values()) / len(self._warmth)

    async def bring_up(self) -> None:
        """Read, load and warm up. Every failure but a cancellation ends in state ``failed``, with its reason."""
        stages = self.stages
        self._starts.begin(stages)
        began = self._clock() - sum(stages.seconds().values())
        try:
            self._lifecycle.to(State.LOADING, self._clock())
            loaded = await asyncio.to_thread(self._bring_in, stages)
            self._go_on()
            self.content_hash = loaded.content_hash
            self._model = await asyncio.to_thread(self._engine.load, self.files, self._cancellation, stages)
            self._go_on()
            _check_labels(self.files, self._model)
            self._lifecycle.to(State.WARMING, self._clock())
            with stages.measure(Stage.WARM_UP):
                await asyncio.to_thread(
                    warm_up, self._model, shape_classes(self.files), self._cancellation, self._prover()
                )
            self._go_on()  # a run that could not be interrupted ends well after a drain began
        except GivenUpError:
            return
        except (LoadError, EngineError, WarmupError) as error:
            self._fail(str(error))
            return
        except Exception as error:  # noqa: BLE001 - a replica that will never be warm must say so, whatever broke
            self._fail(f"{type(error).__name__}: {error}")
            return
        self.gate.open()
        self._lifecycle.to(State.WARM, self._clock())
        self.start_s = self._clock() - began
        start = Start(self.start_s, self.expected_s, stages)
        self._starts.warm(self.name, self.version, self._model.device, start)

    def _bring_in(self, stages: Stages) -> Loaded:
        self.expected_s = self._starts.expected_s(self.files)
        return self._loader.load(self.files, self._note_progress, self._cancellation, stages)

    def _go_on(self) -> None:
        if self._cancellation.cancelled:
            raise GivenUpError("drained meanwhile")

    def _fail(self, reason: str) -> None:
        self._starts.failed()
        self.gate.close(f"loading failed: {reason}")
        self._lifecycle.to(State.FAILED, self._clock(), reason)

    def _prover(self) -> Callable[[ShapeClass], None]:
        loop = asyncio.get_running_loop()

        def proven(shape_class: ShapeClass) -> None:
            loop.call_soon_threadsafe(self._proven, shape_class.name)

        return proven

    def _proven(self, name: str) -> None:
        self._warmth[name] = 1.0
        self._on_change()

    def _note_progress(self, bytes_read: int, bytes_total: int) -> None:
        self._progress = _Progress(bytes_read, bytes_total)
        now = self._clock()
        if now - self._progress_logged >= PROGRESS_EVERY_S or bytes_read == bytes_total:
            self._progress_logged = now
            self._log.info(
                "model.loading",
                model=self.name,
                version=self.version,
                bytes_read=bytes_read,
                bytes_total=bytes_total,
            )

    def _transition(self, step: Transition) -> None:
        if step.after in (State.LOADING, State.WARMING):
            self.gate.close(f"it is {step.after.value}")
        write = self._log.error if step.after is State.FAILED else self._log.info
        write(
            "model.state",
            **{"model": self.name, "version": self.version, "from": step.before.value, "to": step.after.value},
            reason=step.reason,
            lasted_s=round(step.lasted_s, 3),
        )
        self._on_change()

    def execute(
        self, inputs: dict[str, Array], outputs: list[str], parameters: Parameters, cancellation: Cancellation
    ) -> list[Array]:
        """Run the model once for a request; blocks. See :meth:`worker.engines.LoadedModel.run`.

        Raises:
            EngineError: the execution failed, or the model was taken down meanwhile.
        """
        model = self._model
        if model is None:
            raise EngineError(f"model {self.name!r} was taken down")
        if not self.counts.begun():
            return model.run(inputs, outputs, parameters, cancellation)
        with self.stages.measure(Stage.FIRST_ANSWER):
            answer = model.run(inputs, outputs, parameters, cancellation)
        self._starts.first_answer(self.name, self.version, self.stages)
        return answer

    def drain(self) -> None:
        """Say that no more requests should come; those that do are still answered."""
        self._cancellation.cancel()
        if self.state in (State.LOADING, State.WARMING, State.WARM):
            self._lifecycle.to(State.DRAINING, self._clock())

    def take_down(self) -> None:
        """Give back what the model holds. Nothing runs any more."""
        self._cancellation.cancel()
        self.gate.close("the worker is shutting down")
        model, self._model = self._model, None
        if model is not None:
            model.close()
        if self.state is State.DRAINING:
            self._lifecycle.to(State.COLD, self._clock())

    def warm_for_s(self) -> float:
        """Return for how many seconds it has been warm; 0 where it is not."""
        return self._lifecycle.in_state_s(self._clock()) if self.state is State.WARM else 0.0

    def report(self) -> Replica:
        """Return what there is to say of it now."""
        return Replica(
            model=self.name,
            version=self.version,
            state=self.state,
            warmth=tuple(sorted(self._warmth.items())),
            content_hash=self.content_hash,
            config_revision=self.config_revision,
            generation=1,
            warm_for_s=self.warm_for_s(),
            reason=self._lifecycle.reason[:500],
        )


def _check_labels(files: ModelFiles, model: LoadedModel) -> None:
    if files.labels and not any(spec.shape and spec.shape[-1] in (-1, len(files.labels)) for spec in model.outputs):
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in model.outputs)
        raise EngineError(f"{files.directory}: {len(files.labels)} labels fit no output; the outputs are {shapes}")
