"""One model version as this worker holds it: brought up, swapped for new content, unloaded, taken down."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.model import State
from router.wire import ModelEvent
from worker.building import Builder, BuildError, close, give_back
from worker.engines import Cancellation, EngineError, GivenUpError, contained, told
from worker.expectation import check_expected
from worker.memory import HostMemory
from worker.news import News
from worker.served import ServedReplica
from worker.stages import Stages
from worker.starts import Start, Starts
from worker.warmup import DEFAULT_CLASS, WarmupError, shape_classes, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.copies import LoadedCopy
    from worker.engines import Engine
    from worker.loading import Loader
    from worker.loading.leases import Leases
    from worker.log import EventLog
    from worker.served import Rest
    from worker.store import ModelFiles, ShapeClass

PROGRESS_EVERY_S = 0.2
CLOSE_S = 5.0
"""How long an unload waits at least for what nobody uses any more to be given back."""
FIRST_AGAIN_S, MOST_AGAIN_S = 1.0, 60.0
"""How long after a load that failed a request has it tried again: twice as long after each, up to the most."""


@dataclass(frozen=True, slots=True)
class _Progress:
    bytes_read: int = 0
    bytes_total: int = 0


class HeldReplica(ServedReplica):
    """A model version and its life. Used on the event loop only, but as :class:`worker.served.ServedReplica` says."""

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
        leases: Leases | None = None,
    ) -> None:
        """``clock``: monotonic seconds. ``on_change`` is called whenever what :meth:`report` returns has changed.

        ``starts`` is told of its start, ``news`` of what becomes of it. ``leases`` guard what it is mapped from.
        """
        super().__init__(files, log, clock, on_change, Starts(log) if starts is None else starts)
        self._builder = Builder(engine, loader, HostMemory(), self._note_kept, leases, self._heed_guard)
        self._news = News() if news is None else news
        self._busy = asyncio.Lock()
        self._cancellation = Cancellation()
        self._ended = False
        self._unloads = 0
        self._retiring: set[asyncio.Task[None]] = set()
        self.not_given_back = ""
        """Why what it had loaded is not given back, though nobody uses it. Until the next load."""
        self._progress = _Progress()
        self._progress_logged = float("-inf")

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
                await asyncio.to_thread(contained, check_expected, copy.model, self.files, cancellation)
            except GivenUpError:
                return
            except Exception as error:  # noqa: BLE001 - whatever broke, it must not stay between two states
                if self._lifecycle.state is not State.WARMING:
                    return  # it was drained or taken out meanwhile
                known = isinstance(error, EngineError | WarmupError)
                self.lose(told(error) if known else f"{type(error).__name__}: {told(error)}")
                return
            if self._lifecycle.state is State.WARMING:  # else it was drained meanwhile
                self.gate.open()
                self._lifecycle.to(State.WARM, self._clock())

    # --- loading ------------------------------------------------------------------------------------------------------

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
            self.not_given_back = ""
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
            self._heed_guard()
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
            self.not_given_back = ""
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
            if self._lifecycle.state is State.FAILED:  # the old one was taken out meanwhile
                self._lifecycle.to(State.LOADING, self._clock())
                self._lifecycle.to(State.WARMING, self._clock())
                self.gate.open()
                self._lifecycle.to(State.WARM, self._clock())
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
            self._heed_guard()
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

    # --- its end ------------------------------------------------------------------------------------------------------

    async def unload(self, rest: Rest, why: str, settle_s: float = 0.0, drain_s: float = 30.0) -> bool:
        """Give back what the model holds, once no request uses it, and be ``cold``; a load that is under way ends.

        For ``settle_s`` after the state said ``draining`` requests are still let in, because callers may not have heard
        of it. Those that were let in have ``drain_s`` to end before this returns; what still runs then runs to its end,
        and what it uses is given back after that. What has not begun by then never does (:class:`UnloadedError`).

        Returns:
            Whether everything that was loaded here is given back by now; what an earlier load or swap left behind,
            because its engine failed to, does not count.
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
                said = f"{why}; {self.not_given_back}" if self.not_given_back else why
                self._lifecycle.to(State.COLD, self._clock(), said)
            if copy is not None:
                self._log.info(
                    "model.unloaded",
                    model=self.name,
                    version=self.version,
                    reason=rest.value,
                    given_back=given_back,
                )
            return given_back

    def _heed_guard(self) -> None:
        """Take note of what became of the files that what serves now is mapped from."""
        guard = None if self._copy is None else self._copy.guard
        if guard is None:
            return
        if guard.lost:
            self._take_out(guard.lost)
        elif guard.kept:
            self._trouble = guard.kept
            self._on_change()

    def _take_out(self, why: str) -> None:
        """Serve no more, and give back what is loaded once no request uses it: its files are about to change."""
        copy, self._copy = self._copy, None
        now = self._clock()
        self.gate.close(why, self._again_in_s)
        if self.state in (State.LOADING, State.WARMING):  # what it depends on is back, and it is proven once more
            self._cancellation.cancel()
        elif self.state is State.FAILED:
            self._lifecycle.to(State.LOADING, now)
        if self.state is not State.DRAINING:
            if self._on_request:
                self._again_at = now + FIRST_AGAIN_S
            self._warmth = dict.fromkeys(self._warmth, 0.0)
            self.start_s = None
            self._lifecycle.to(State.FAILED, now, why)
            self.gate.close(why, self._again_in_s)
        if copy is not None:
            self._retire(copy)

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
        kept = await close(copy)
        if kept:
            self._note_kept(kept)

    def _note_kept(self, why: str) -> None:
        """Say that an engine did not give back what it had of a model, which nobody uses any more."""
        self.not_given_back = f"its engine failed to give back what it held: {why}"[:500]
        self._news.not_given_back += 1
        if self.state is State.WARM:
            self._trouble = self._trouble or f"its old content is unloaded, but {self.not_given_back}"
            self._on_change()
        self._log.error(
            "model.not_given_back",
            model=self.name,
            version=self.version,
            error=why,
            remedy="what it held is free when the worker ends: restart it, and have the engine's unload() mended",
        )

    async def retired(self, timeout_s: float) -> bool:
        """Wait until copies that were swapped or unloaded are closed.

        Returns:
            Whether all they held is given back: none still runs, and :attr:`not_given_back` is empty.
        """
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=timeout_s)
        return not self._retiring and not self.not_given_back

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
            copy.retire(lambda: self._end(copy))
        if self.state is State.DRAINING:
            self._lifecycle.to(State.COLD, self._clock())

    def _end(self, copy: LoadedCopy) -> None:
        kept = give_back(copy)
        if kept:
            self._note_kept(kept)


def _unnoticed(*_: object) -> None:
    """A copy that is made beside the one that serves changes nothing that is reported."""
