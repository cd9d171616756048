"""One model version as this worker holds it: brought up, reported, swapped for new content, unloaded, taken down."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from router.baseline_load import remaining_s
from router.model import Replica, State
from router.wire import ModelEvent
from worker.building import Builder, BuildError, close
from worker.engines import Cancellation, EngineError, GivenUpError
from worker.execution import binding
from worker.expectation import check_expected
from worker.gate import Gate
from worker.lifecycle import Lifecycle, Transition
from worker.memory import HostMemory
from worker.news import News
from worker.stages import Stage, Stages
from worker.starts import Start, Starts
from worker.statistics import Statistics
from worker.warmup import DEFAULT_CLASS, WarmupError, shape_classes, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker.copies import LoadedCopy
    from worker.engines import Array, Engine, LoadedModel, Parameters
    from worker.execution.buffers import Buffers
    from worker.loading import Loaded, Loader
    from worker.loading.version_files import SourceFile
    from worker.log import EventLog
    from worker.store import ModelFiles, ShapeClass

PROGRESS_EVERY_S = 0.2
CLOSE_S = 5.0
"""How long an unload waits at least for what nobody uses any more to be given back."""
FIRST_AGAIN_S, MOST_AGAIN_S = 1.0, 60.0
"""How long after a load that failed a request has it tried again: twice as long after each, up to the most."""


class AtLimitError(Exception):
    """A version has as many requests as it may have; the text is the protocol's error message."""


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


@dataclass(frozen=True, slots=True)
class _Progress:
    bytes_read: int = 0
    bytes_total: int = 0


class HeldReplica:
    """A model version, its state, its gate and its counts.

    Used on the event loop only, except :meth:`hold` and :meth:`execute`. What runs is a copy; a swap puts another one
    in its place, and the one before is closed when its last run has ended.
    """

    def __init__(
        self,
        files: ModelFiles,
        engine: Engine,
        loader: Loader,
        log: EventLog,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        starts: Starts | None = None,
        news: News | None = None,
    ) -> None:
        """``clock``: monotonic seconds. ``on_change`` is called whenever what :meth:`report` returns has changed.

        ``starts`` is told of its start, ``news`` of what becomes of it.
        """
        self.files = files
        self.counts = Counts()
        self.statistics = Statistics()
        self.gate = Gate(files.name)
        self._builder = Builder(engine, loader, HostMemory())
        self._log = log
        self._clock = clock
        self._on_change = on_change
        self._starts = Starts(log) if starts is None else starts
        self._news = News() if news is None else news
        self.stages = Stages(clock)
        """Of the last time it was loaded."""
        self.start_s: float | None = None
        """What that took in all, once it was warm."""
        self.expected_s: float | None = None
        """What its start should take, once that is known."""
        self._began = clock()
        self._copy: LoadedCopy | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Lock()
        self._cancellation = Cancellation()
        self.rest: Rest | None = None
        self._on_request = False
        self._failures = 0
        self._again_at: float | None = None
        self._ended = False
        self._unloads = 0
        self._trouble = ""
        self._unread = ""
        self._fell_back = ""
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._last_used = clock()
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
    def reason(self) -> str:
        """Why it is in this state, or has its old content, or not all pages; empty where there is nothing to say."""
        return self._lifecycle.reason or self._unread or self._trouble

    @property
    def model(self) -> LoadedModel | None:
        """The loaded model, or None while there is none. Its tensors may be looked at; to run it, :meth:`hold` it."""
        return None if self._copy is None else self._copy.model

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
    def can_be_wanted(self) -> bool:
        """A request for it has it loaded: it rests until one comes, or the load for the last one failed a while ago."""
        if self.state is State.FAILED and self._again_at is not None:
            return self._clock() >= self._again_at
        return self.rest in (Rest.LAZY, Rest.IDLE)

    def lay_to_rest(self, rest: Rest, why: str) -> None:
        """Say that it is cold on purpose."""
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

    def not_begun(self, why: str) -> None:
        """Say that it is not loaded, or its new content not taken over, because what that waited for did not come."""
        if self._ended:
            return
        if self._copy is not None:
            self._not_taken_over(why)
            return
        self._trouble = self._fell_back = ""
        self._lifecycle.to(State.LOADING, self._clock())
        self._fail(why)

    def fall_back(self, after_s: float) -> None:
        """Have a preload whose turn of ``after_s`` seconds is over go on as ``lazy``, begun or not.

        What need not be read before it serves then comes when it is used. What must be hashed is read all the same, and
        it is warm once its warm-up runs have succeeded.
        """
        if self._ended or self.state not in (State.COLD, State.LOADING, State.WARMING):
            return
        why = (
            f"it was not warm after {after_s:g} s of its turn to be preloaded; what need not be read before it serves "
            f"comes when it is used"
        )
        progress = self._progress
        self._starts.fell_back(self.name, self.version, self.state, after_s, progress.bytes_read, progress.bytes_total)
        if self.state is State.COLD:
            self._fell_back = why
            return
        self._trouble = why
        self._cancellation.hasten()
        self._on_change()

    @property
    def serves(self) -> bool:
        """Requests are executed."""
        return self.state is State.WARM

    @property
    def lost(self) -> bool:
        """It is loaded and does not serve, because what it depends on was amiss."""
        return self._copy is not None and self.state is State.FAILED

    def lose(self, why: str) -> None:
        """Serve no more, and keep what is loaded, until :meth:`regain`. Requests that run end as they would."""
        self.gate.close(why)
        self._lifecycle.to(State.FAILED, self._clock(), why)

    async def regain(self) -> None:
        """Prove what is loaded once more, and serve again where that succeeds."""
        async with self._busy:
            copy = self._copy
            if self._ended or copy is None or self.state is not State.FAILED:
                return
            self._cancellation = cancellation = Cancellation()
            self._lifecycle.to(State.LOADING, self._clock())
            self._lifecycle.to(State.WARMING, self._clock())
            try:
                await asyncio.to_thread(warm_up, copy.model, copy.proven, cancellation)
                await asyncio.to_thread(check_expected, copy.model, self.files, cancellation)
            except GivenUpError:
                return
            except Exception as error:  # noqa: BLE001 - whatever broke, it must not stay between two states
                known = isinstance(error, EngineError | WarmupError)
                self.lose(str(error) if known else f"{type(error).__name__}: {error}")
                return
            if self._lifecycle.state is State.WARMING:  # else it was drained meanwhile
                self.gate.open()
                self._lifecycle.to(State.WARM, self._clock())

    # --- loading ----------------------------------------------------------------------------------------------------

    async def bring_up(self, files: ModelFiles | None = None) -> bool:
        """Read, load and warm up; True where it is warm then.

        ``files``: what to load from now on. Every failure but a cancellation ends in state ``failed``, with its reason.
        """
        unloads = self._unloads
        async with self._busy:
            if self._ended or self._copy is not None:
                return self.state is State.WARM
            if self._unloads != unloads:
                return False  # while this waited for another change to end
            self.files = files or self.files
            self.rest = None
            self._trouble, self._fell_back = self._fell_back, ""
            stages = self.stages = Stages(self._clock)
            self._starts.begin(stages)
            self._began = self._clock() - sum(stages.seconds().values())
            self._cancellation = Cancellation()
            self._progress = _Progress()
            if self._trouble:
                self._cancellation.hasten()
            self._warmth = {shape_class.name: 0.0 for shape_class in shape_classes(self.files)}
            self._lifecycle.to(State.LOADING, self._clock())
            self.expected_s = await asyncio.to_thread(self._starts.expected_s, self.files)
            try:
                copy = await self._builder.build(
                    self.files,
                    self._cancellation,
                    stages,
                    self._note_progress,
                    self._loaded,
                    self._proven,
                    self._passed_over,
                )
            except GivenUpError:
                return False
            except BuildError as error:
                self._fail(str(error))
                return False
            self._copy = copy
            self._failures, self._again_at = 0, None
            self._last_used = self._clock()
            self.gate.open()
            self._lifecycle.to(State.WARM, self._clock())
            self.start_s = self._clock() - self._began
            start = Start(self.start_s, self.expected_s, stages, copy.loaded.facts())
            self._news.add(ModelEvent.LOADED, self.name, self.version)
            self._starts.warm(self.name, self.version, copy.model.device, start)
            return True

    async def swap(self, files: ModelFiles) -> bool:
        """Load ``files`` beside the copy that serves, prove the new one and let it take over; True where it did.

        Requests that run end on the copy that they began on, which is closed then (:meth:`retired`). Where the load
        fails, everything that it took is given back, the old copy goes on serving, and :attr:`reason` says why.
        """
        async with self._busy:
            if self._ended or self.state is not State.WARM:
                return False
            began = self._clock()
            stages = Stages(self._clock)
            self._cancellation = Cancellation()
            try:
                copy = await self._builder.build(
                    files,
                    self._cancellation,
                    stages,
                    self._note_progress,
                    _unnoticed,
                    _unnoticed,
                    self._tell_passed_over,
                )
            except GivenUpError:
                return False
            except BuildError as error:
                self._not_taken_over(str(error))
                return False
            old, self._copy = self._copy, copy
            self.files = files
            self._trouble = ""
            self._warmth = {shape_class.name: 1.0 for shape_class in copy.proven}
            self._news.add(ModelEvent.SWAPPED, self.name, self.version)
            self._on_change()
            self.stages, self.start_s = stages, self._clock() - began
            self._log.info(
                "model.swapped",
                model=self.name,
                version=self.version,
                seconds=round(self.start_s, 3),
                device=copy.model.device,
                stages={stage.value: round(took_s, 4) for stage, took_s in stages.seconds().items()},
                **copy.loaded.facts(),
            )
            if old is not None:
                self._retire(old)
            return True

    def _not_taken_over(self, why: str) -> None:
        self._trouble = f"the new content was not taken over: {why}"
        self._news.add(ModelEvent.SWAP_FAILED, self.name, self.version, why)
        self._log.error("model.swap_failed", model=self.name, version=self.version, reason=why)
        self._on_change()

    def _fail(self, why: str) -> None:
        self._starts.failed()
        self._news.add(ModelEvent.LOAD_FAILED, self.name, self.version, why)
        if self._on_request:
            self._again_at = self._clock() + min(MOST_AGAIN_S, FIRST_AGAIN_S * 2.0 ** min(self._failures, 16))
            self._failures += 1
        self.gate.close(f"loading failed: {why}", self._again_in_s)
        self._lifecycle.to(State.FAILED, self._clock(), why)

    def _loaded(self) -> None:
        self._lifecycle.to(State.WARMING, self._clock())

    def _proven(self, shape_class: ShapeClass) -> None:
        self._warmth[shape_class.name] = 1.0
        self._on_change()

    def _passed_over(self, shape_class: ShapeClass, why: str) -> None:
        """What callers once asked fits no more: it proves nothing, and is not waited for."""
        self._tell_passed_over(shape_class, why)
        del self._warmth[shape_class.name]
        self._warmth = self._warmth or {DEFAULT_CLASS.name: 0.0}
        self._on_change()

    def _tell_passed_over(self, shape_class: ShapeClass, why: str) -> None:
        self._starts.passed_over(self.name, self.version, str(shape_class.file), why)

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

    # --- requests ---------------------------------------------------------------------------------------------------

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
        if not copy.first_run():
            if buffers is not None:
                return binding.run(copy.model, buffers, inputs, outputs, parameters, cancellation)
            return copy.model.run(inputs, outputs, parameters, cancellation)
        with copy.stages.measure(Stage.FIRST_ANSWER):
            answer = copy.model.run(inputs, outputs, parameters, cancellation)
        self._starts.first_answer(self.name, self.version, copy.stages)
        return answer

    # --- its end ----------------------------------------------------------------------------------------------------

    async def unload(self, rest: Rest, why: str, settle_s: float = 0.0, drain_s: float = 30.0) -> bool:
        """Give back what the model holds, once no request uses it, and be ``cold``; a load that is under way ends.

        For ``settle_s`` after the state said ``draining`` requests are still let in, because callers may not have heard
        of it. Those that were let in have ``drain_s`` to end before this returns; what still runs then runs to its end,
        and what it uses is given back after that. What has not begun by then never does (:class:`UnloadedError`).

        Returns:
            Whether everything that was ever loaded here is given back by now.
        """
        loop = asyncio.get_running_loop()
        self._unloads += 1
        self._cancellation.cancel()
        if self.state in (State.LOADING, State.WARMING):
            self._lifecycle.to(State.DRAINING, self._clock(), why)
        async with self._busy:
            if self._ended:
                return False
            until = loop.time() + drain_s
            if self.state is State.WARM:
                self._lifecycle.to(State.DRAINING, self._clock(), why)
                await asyncio.sleep(settle_s)
                self.lay_to_rest(rest, why)  # a request that comes from now on has it loaded again, once it is gone
                until = loop.time() + drain_s
                await self._requests_ended(drain_s)
            else:
                self.lay_to_rest(rest, why)
            copy, self._copy = self._copy, None
            if copy is not None:
                self._retire(copy)
            least_s = 0.0 if self._requests or (copy is not None and copy.users) else CLOSE_S
            given_back = await self.retired(max(least_s, until - loop.time()))
            self._trouble = ""
            self._warmth = dict.fromkeys(self._warmth, 0.0)
            self.start_s = None
            if copy is not None:
                self._news.add(ModelEvent.UNLOADED, self.name, self.version, rest.value)
            if self.state in (State.DRAINING, State.FAILED):
                self._lifecycle.to(State.COLD, self._clock(), why)
            if copy is not None:
                self._log.info(
                    "model.unloaded",
                    model=self.name,
                    version=self.version,
                    reason=rest.value,
                    given_back=given_back,
                )
            return given_back

    async def _requests_ended(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._requests:
                    self._no_requests.clear()
                    await self._no_requests.wait()

    def _retire(self, copy: LoadedCopy) -> None:
        task = asyncio.create_task(self._retired(copy), name=f"retire {self.name}@{self.version}")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retired(self, copy: LoadedCopy) -> None:
        loop, unused = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(unused.set)

        copy.retire(tell)
        await unused.wait()
        await close(copy)

    async def retired(self, timeout_s: float) -> bool:
        """Wait until copies that were swapped or unloaded are closed; False where one still runs at the end."""
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=timeout_s)
        return not self._retiring

    def drain(self) -> None:
        """Say that no more requests should come, because the process ends; those that do are still answered."""
        self._ended = True
        self._cancellation.cancel()
        if self.state in (State.LOADING, State.WARMING, State.WARM):
            self._lifecycle.to(State.DRAINING, self._clock())

    def take_down(self) -> None:
        """Give back what the model holds, because the process ends. Nothing runs any more that can be stopped."""
        self._ended = True
        self._cancellation.cancel()
        self.gate.close("the worker is shutting down")
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.loaded.keep()
            copy.retire(copy.close)
        if self.state is State.DRAINING:
            self._lifecycle.to(State.COLD, self._clock())

    # --- reports ----------------------------------------------------------------------------------------------------

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


def _unnoticed(*_: object) -> None:
    """A copy that is made beside the one that serves changes nothing that is reported."""
