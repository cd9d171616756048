"""One model version as requests and reports find it: its state and gate, the copy that runs, what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from router.baseline_load import remaining_s
from router.model import Replica, State
from worker import json_text
from worker.engines import told
from worker.execution import binding
from worker.gate import Gate
from worker.lifecycle import Lifecycle, Transition
from worker.stages import Stage, Stages
from worker.statistics import Statistics
from worker.warmup import shape_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker.copies import LoadedCopy
    from worker.engines import Array, Cancellation, LoadedModel, Parameters
    from worker.execution.buffers import Buffers
    from worker.loading import Loaded
    from worker.loading.version_files import SourceFile
    from worker.log import EventLog
    from worker.starts import Starts
    from worker.store import ModelFiles


class AtLimitError(Exception):
    """There are as many requests of a version, or unread answers, as may be; the text is the protocol's error."""


class UnloadedError(Exception):
    """A request that was let in was still waiting when its model was unloaded, and did not run."""


class Rest(StrEnum):
    """Why a replica is cold on purpose, which keeps nobody from being ready."""

    LAZY = "lazy"  # no request came for it yet: the first has it loaded
    IDLE = "idle"  # none came for long: the next has it loaded
    UNLOADED = "unloaded"  # somebody said so, or nobody said that it should be loaded


class Counts:
    """What happened to requests since the process started. ``executed`` counts runs begun, warm-up runs not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.executed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0
        self.before_warm = 0

    def begun(self) -> None:
        """A run began; called in the thread that runs it."""
        with self._lock:
            self.executed += 1


class ServedReplica:
    """What :class:`worker.replica.HeldReplica` is to those who do not change it.

    Used on the event loop only, except :meth:`hold` and :meth:`execute`. What runs is a copy; a swap puts another one
    in its place, and the one before is closed when its last run has ended.
    """

    def __init__(
        self,
        files: ModelFiles,
        log: EventLog,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        starts: Starts,
    ) -> None:
        """See :class:`worker.replica.HeldReplica`."""
        self.files = files
        self.counts = Counts()
        self.statistics = Statistics()
        self.gate = Gate(files.name)
        self._log = log
        self._clock = clock
        self._on_change = on_change
        self._starts = starts
        self.stages = Stages(clock)
        """Of the last time it was loaded."""
        self.start_s: float | None = None
        """What that took in all, once it was warm."""
        self.expected_s: float | None = None
        """What its start should take, once that is known."""
        self._began = clock()
        self._copy: LoadedCopy | None = None
        self.rest: Rest | None = None
        self.at_start = False
        """The worker was to bring it up as it started, and it has not been laid to rest since."""
        self.starting = False
        """That has not come to an end yet, one way or the other."""
        self._on_request = False
        self._failures = 0
        self._again_at: float | None = None
        self._trouble = ""
        self._unread = ""
        self._fell_back = ""
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._last_used = clock()
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
    def reason(self) -> str:
        """Why it is in this state, or has its old content, or not all pages; empty where there is nothing to say."""
        return self._lifecycle.reason or self._unread or self._trouble

    @property
    def model(self) -> LoadedModel | None:
        """The loaded model, or None while there is none. Its tensors may be looked at; to run it, :meth:`hold` it."""
        return None if self._copy is None else self._copy.model

    def engine_facts(self) -> dict[str, Any]:
        """Return what its engine says of the loaded model; nothing while there is none.

        Where the engine fails to say, ``error`` is what it raised.
        """
        if self.model is None:
            return {}
        try:
            facts = dict(self.model.facts())
            json_text.encode(facts)
        except BaseException as error:  # noqa: BLE001 - asked on the loop, for all models at once
            return {"error": f"{type(error).__name__}: {told(error)}"}
        return facts

    @property
    def content_hash(self) -> str:
        """What is equal where the loaded files are; empty while there are none."""
        return "" if self._copy is None else self._copy.loaded.content_hash

    @property
    def loaded(self) -> Loaded | None:
        """What its loader brought in; None while it is not loaded."""
        return None if self._copy is None else self._copy.loaded

    @property
    def loaded_files(self) -> tuple[SourceFile, ...]:
        """The files that it was loaded from; none while it is not loaded."""
        return () if self._copy is None else self._copy.loaded.files

    @property
    def warmth_ratio(self) -> float:
        """The share of its shape classes that a run has proven."""
        return sum(self._warmth.values()) / len(self._warmth)

    @property
    def comes_on_request(self) -> bool:
        """Requests have it loaded, now or later: it is lazy, or was unloaded for idleness."""
        return self._on_request

    @property
    def can_be_wanted(self) -> bool:
        """A request for it has it loaded: it rests until one comes, or the load for the last one failed a while ago."""
        if self.state is State.FAILED and self._again_at is not None:
            return self._clock() >= self._again_at
        return self.rest in (Rest.LAZY, Rest.IDLE)

    @property
    def serves(self) -> bool:
        """Requests are executed."""
        return self.state is State.WARM

    @property
    def lost(self) -> bool:
        """It is loaded and does not serve, because what it depends on was amiss."""
        return self._copy is not None and self.state is State.FAILED

    # --- what is said of it -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say that the worker is to bring it up as it starts."""
        self.at_start = self.starting = True

    def put_off(self) -> None:
        """Say that the worker's start does not wait for it: what it waits for itself may never come."""
        if self.starting:
            self.starting = False
            self._on_change()

    def lay_to_rest(self, rest: Rest, why: str) -> None:
        """Say that it is cold on purpose."""
        self.put_off()
        self.at_start = False
        self.rest = rest
        self._fell_back = ""
        self._on_request = rest is not Rest.UNLOADED
        self._failures, self._again_at = 0, None
        self.gate.close(why)

    def want(self) -> None:
        """Say that it is about to be loaded, because a request came for it."""
        self.rest = None
        self._again_at = None
        self.gate.close("it is being loaded")

    def _again_in_s(self) -> float:
        return 0.0 if self._again_at is None else self._again_at - self._clock()

    def hold_back(self, why: str) -> None:
        """Say what it waits for before it is loaded, or before new content takes over; then it serves on."""
        if not self.serves:
            self.gate.close(why)
        self._trouble = why
        self._on_change()

    def note_unread(self, why: str) -> None:
        """Say that its files in the repository cannot be read any more, so that it stays as it is; ``""``: they can."""
        said = f"what is in the repository cannot be read: {why}" if why else ""
        if said != self._unread:
            self._unread = said
            self._on_change()

    def wait_no_more(self) -> None:
        """Say no longer what it waits for: that was given up."""
        self._trouble = ""
        self._on_change()

    def _transition(self, step: Transition) -> None:
        if step.after in (State.LOADING, State.WARMING):
            self.gate.close(f"it is {step.after.value}")
        elif step.after in (State.WARM, State.FAILED):
            self.starting = False
        write = self._log.error if step.after is State.FAILED else self._log.info
        write(
            "model.state",
            **{"model": self.name, "version": self.version, "from": step.before.value, "to": step.after.value},
            reason=step.reason,
            lasted_s=round(step.lasted_s, 3),
        )
        self._on_change()

    # --- requests -----------------------------------------------------------------------------------------------------

    @contextmanager
    def request(self, *, background: bool = False) -> Iterator[None]:
        """Count a request that was let in, until its end: while there is one, the model is not unloaded.

        ``background``: no caller waits for it, so that it does not keep an idle model loaded.

        Raises:
            AtLimitError: the version has as many as it may have.
        """
        limit = self.files.max_requests
        if limit and self._requests >= limit:
            raise AtLimitError(f"model {self.name!r} version {self.version}: at its limit of {limit} requests at once")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not background:
                self._last_used = self._clock()
            if self._requests == 0:
                self._no_requests.set()

    def idle_s(self) -> float:
        """Return for how many seconds no request was let in here, nor under way."""
        return 0.0 if self._requests else max(0.0, self._clock() - self._last_used)

    @contextmanager
    def hold(self) -> Iterator[LoadedCopy]:
        """Keep the copy that serves now from being closed, in any thread, until the end of the ``with`` block.

        Raises:
            UnloadedError: there is none: the model was unloaded meanwhile.
        """
        while True:
            copy = self._copy
            if copy is None:
                raise UnloadedError(f"model {self.name!r} was unloaded before this was begun")
            if copy.take():  # else it was swapped in between, and the next look finds the new one
                break
        try:
            yield copy
        finally:
            copy.give_back()

    def execute(
        self,
        copy: LoadedCopy,
        inputs: dict[str, Array],
        outputs: list[str],
        parameters: Parameters,
        cancellation: Cancellation,
        buffers: Buffers | None = None,
    ) -> list[Array]:
        """Run a copy that is held once, for a request; blocks. See :meth:`worker.engines.LoadedModel.run`.

        ``buffers``: where outputs may be written.

        Raises:
            EngineError: the execution failed.
        """
        self.counts.begun()
        copy.running.add(cancellation)
        try:
            if not copy.first_run():
                if buffers is not None:
                    return binding.run(copy.model, buffers, inputs, outputs, parameters, cancellation)
                return copy.model.run(inputs, outputs, parameters, cancellation)
            with copy.stages.measure(Stage.FIRST_ANSWER):
                answer = copy.model.run(inputs, outputs, parameters, cancellation)
        finally:
            copy.running.discard(cancellation)
        self._starts.first_answer(self.name, self.version, copy.stages)
        return answer

    async def _requests_ended(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._requests:
                    self._no_requests.clear()
                    await self._no_requests.wait()

    # --- reports ------------------------------------------------------------------------------------------------------

    def warm_in_s(self) -> float:
        """Return in how many seconds it should be warm, rounded up; 0 where it does not come up, or is overdue."""
        if self.expected_s is None or self.state not in (State.LOADING, State.WARMING):
            return 0.0
        return float(math.ceil(remaining_s(self.expected_s, self._clock() - self._began) or 0.0))

    def warm_for_s(self) -> float:
        """Return for how many seconds it has been warm; 0 where it is not."""
        return self._lifecycle.in_state_s(self._clock()) if self.state is State.WARM else 0.0

    def report(self) -> Replica:
        """Return what there is to say of it now."""
        shard = self.files.shard
        return Replica(
            model=self.name,
            version=self.version,
            state=self.state,
            warmth=tuple(sorted(self._warmth.items())),
            content_hash=self.content_hash,
            config_revision=self.files.config_revision,
            generation=1 if shard is None else shard.generation,
            warm_for_s=self.warm_for_s(),
            warm_in_s=self.warm_in_s(),
            reason=self.reason[:500],
            shard=0 if shard is None else shard.index,
            shard_count=1 if shard is None else shard.count,
            group="" if shard is None else shard.group,
        )
