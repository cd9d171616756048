"""Changes of a worker's models: one of each model at a time, in its turn, once what it depends on is well.

Whatever goes wrong with a model leaves what served before serving, and the others untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from router.model import State
from worker.loading_turns import LoadingTurns
from worker.looks import content
from worker.served import Rest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

    from worker.conditions import Conditions
    from worker.control import Behaviour
    from worker.log import EventLog
    from worker.models import Models
    from worker.replica import HeldReplica
    from worker.store import ModelFiles
    from worker.turns import Turns

T = TypeVar("T")


class Changes:
    """Makes models what they are to be. Used on the event loop only."""

    def __init__(
        self,
        behaviour: Behaviour,
        models: Models,
        make: Callable[[ModelFiles], HeldReplica],
        log: EventLog,
        conditions: Conditions,
        turns: Turns | None,
    ) -> None:
        """See :class:`worker.repository.Repository`."""
        self._behaviour = behaviour
        self._models = models
        self._make = make
        self._log = log
        self._conditions = conditions
        self._turns = turns
        self._own_turns = LoadingTurns(conditions.memory)
        self._locks: dict[str, asyncio.Lock] = {}
        self._tried: dict[tuple[str, str], str] = {}
        self._unwanted: set[str] = set()
        self._waiting: dict[str, object] = {}
        """What is to become of models whose change waits for what they depend on."""
        self._outdated: set[str] = set()
        """Of them, those of which the repository has something else by now."""
        self._applied: dict[str, object] = {}
        """What the change under way makes of a model, where it follows the repository."""
        self._followed: set[HeldReplica] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()

    # --- which are under way ------------------------------------------------------------------------------------------

    def lock(self, name: str) -> asyncio.Lock:
        """Return what whoever changes a model holds."""
        return self._locks.setdefault(name, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def changing(self, name: str) -> AsyncIterator[None]:
        """Change a model, alone: what was found before does not end this change."""
        async with self.lock(name):
            self._outdated.discard(name)
            try:
                yield
            finally:
                self._applied.pop(name, None)

    def is_waiting(self, name: str) -> bool:
        """Whether a model's change waits for what it depends on."""
        return name in self._waiting

    def is_outdated(self, name: str) -> bool:
        """Whether the change of a model that is under way ends because the repository has something else by now."""
        return name in self._outdated

    def is_unwanted(self, name: str) -> bool:
        """Whether loads of a model were given up."""
        return name in self._unwanted

    def want(self, name: str) -> None:
        """Have loads of a model go on again."""
        self._unwanted.discard(name)

    def give_up(self, name: str) -> None:
        """Have loads of a model that are under way end, and others not begin, until it is wanted again."""
        self._unwanted.add(name)

    def forget(self, name: str) -> None:
        """Keep nothing of a model that nobody has: whoever asks for what is not there leaves nothing behind."""
        self._locks.pop(name, None)

    def outdate(self, name: str, found: list[ModelFiles]) -> None:
        """Have a change that waits for what a model depends on end, where the repository has something else by now."""
        if name in self._waiting and self._waiting[name] != content(found):
            self._outdated.add(name)

    def is_given_up(self, name: str) -> bool:
        """Whether the change of a model that is under way is not to go on."""
        return self._stop.is_set() or name in self._unwanted or name in self._outdated

    # --- a model's versions -------------------------------------------------------------------------------------------

    async def apply(self, name: str, chosen: list[ModelFiles], *, again: bool) -> None:
        """Make a model's versions what was ``chosen``. ``again``: also what rests, and what has failed as it is."""
        versions = {files.version for files in chosen}
        # A model that answers now is to answer on, also where its new versions would rest until they are asked for.
        again = again or any(
            replica.state is State.WARM and replica.version not in versions for replica in self._models.of(name)
        )
        self._applied[name] = content(chosen)
        for files in chosen:
            if self.is_given_up(name):
                return
            replica = self.held(name, files.version) or self.put(files)
            was_lazy = self.is_lazy(replica.files)
            if (replica.files.lazy, replica.files.idle_unload_s) != (files.lazy, files.idle_unload_s):
                # When it is loaded and unloaded is no part of its content: that holds whatever becomes of the content.
                replica.files = replace(replica.files, lazy=files.lazy, idle_unload_s=files.idle_unload_s)
            if replica.rest is Rest.LAZY and was_lazy and not self.is_lazy(files):
                await self._bring_up(replica, files)
            elif again or self._tried.get((name, files.version)) != files.signature:
                await self._make_good(replica, files, again=again)
        kept = [replica for replica in self._models.of(name) if replica.version in versions]
        answers = any(replica.state is State.WARM or replica.rest is not None for replica in kept)
        for replica in self._models.of(name):
            if replica not in kept and (answers or replica.state is not State.WARM):
                await self.rest(replica, Rest.UNLOADED, "it is not to be served any more")
                self.remove(replica)

    async def apply_alone(self, name: str, chosen: list[ModelFiles]) -> None:
        """Make a model's versions what was ``chosen``, once no other change of it is under way."""
        async with self.changing(name):
            await self.apply(name, chosen, again=False)

    async def _make_good(self, replica: HeldReplica, files: ModelFiles, *, again: bool) -> None:
        """Have a replica loaded as ``files`` say, where it is not."""
        if replica.lost:
            if replica.files.signature == files.signature or not await self._conditions.healthy(files):
                return  # once what it depends on is back, it serves again, and the next look takes over what is new
            await self.rest(replica, Rest.UNLOADED, "its files changed while what it depends on was amiss")
            await self._bring_up(replica, files)
        elif replica.state is State.WARM:
            if replica.files.signature != files.signature:
                await self._when_allowed(replica, files, lambda: replica.swap(files))
                if not self.is_given_up(replica.name):
                    self._note(files, failed=replica.files is not files and bool(replica.reason))
                self._follow_if_needed(replica)
                await replica.retired(self._behaviour.drain_s)
        elif replica.rest is not None and not again:
            replica.files = files
        elif replica.state in (State.COLD, State.FAILED):
            await self._bring_up(replica, files)

    async def clear(self, name: str) -> None:
        """Let go of a model that is not in the repository any more."""
        for replica in self._models.of(name):
            await self.rest(replica, Rest.UNLOADED, "it is not in the repository any more")
            self.remove(replica)

    def put(self, files: ModelFiles) -> HeldReplica:
        """Put a version into the table, cold; returns it. It counts for readiness as the model's others do."""
        replica = self._make(files)
        replica.at_start = any(other.at_start for other in self._models.of(files.name))
        if self.is_lazy(files):
            replica.lay_to_rest(Rest.LAZY, "it is loaded when a request comes for it")
        self._models.put(replica)
        return replica

    def remove(self, replica: HeldReplica) -> None:
        """Take a version out of the table."""
        self._tried.pop((replica.name, replica.version), None)
        self._models.remove(replica)

    def held(self, name: str, version: str) -> HeldReplica | None:
        """Return a version of the table, or None."""
        return next((replica for replica in self._models.of(name) if replica.version == version), None)

    async def rest(self, replica: HeldReplica, rest: Rest, why: str) -> bool:
        """Unload a version; returns whether everything that it held is given back."""
        return await replica.unload(rest, why, self._behaviour.settle_s, self._behaviour.drain_s)

    def is_lazy(self, files: ModelFiles) -> bool:
        """Whether a version is loaded only when a request comes for it."""
        return self._behaviour.lazy if files.lazy is None else files.lazy

    # --- loads --------------------------------------------------------------------------------------------------------

    async def preload(self, replica: HeldReplica, over: asyncio.Event) -> None:
        """Bring up a replica in this machine's turn; where none comes in time, its first request does.

        A load that takes longer than a turn goes on without, and brings in no more than it must; ``over`` is set then.
        """
        if self._turns is None:
            await self.bring_up_alone(replica)
            return
        async with self.changing(replica.name):  # what it waits for is waited for before it has the turn of others
            if not is_to_come(replica):
                return
            if not await self._until_healthy(replica, replica.files):
                self._brought_up(replica, replica.files)
                return
        async with self._turns.turn(self._stop.is_set) as got:
            if not got:
                if not self._stop.is_set() and is_to_come(replica):
                    replica.lay_to_rest(Rest.LAZY, "its turn to be preloaded did not come; a request has it loaded")
                    self._log.warning("preload.no_turn", model=replica.name, version=replica.version)
                return
            work = self.bring_up_alone(replica, over)
            load = self.start(work, f"load {replica.name}@{replica.version} in its turn")
            await asyncio.wait({load}, timeout=self._turns.turn_s)
            if not load.done():
                replica.fall_back(self._turns.turn_s or 0.0)
                over.set()
        await load

    async def bring_up_alone(self, replica: HeldReplica, over: asyncio.Event | None = None) -> None:
        """Bring up a replica, once no other change of its model is under way; ``over``: see :meth:`preload`."""
        async with self.changing(replica.name):
            await self._bring_up(replica, replica.files, over)

    async def _bring_up(self, replica: HeldReplica, files: ModelFiles, over: asyncio.Event | None = None) -> None:
        await self._when_allowed(replica, files, lambda: replica.bring_up(files), over)
        self._brought_up(replica, files)

    def _brought_up(self, replica: HeldReplica, files: ModelFiles) -> None:
        """A load has ended, or was not begun."""
        if not self.is_given_up(replica.name):
            self._note(files, failed=replica.state is State.FAILED)
            self._follow_if_needed(replica)

    async def _when_allowed(
        self,
        replica: HeldReplica,
        files: ModelFiles,
        load: Callable[[], Coroutine[Any, Any, bool]],
        over: asyncio.Event | None = None,
    ) -> None:
        """Load once what ``files`` depend on is well, it is this model's turn, and there is memory.

        Once ``over`` is set the next model has its turn, whether this one is done or not.
        """

        def given_up() -> bool:
            return self.is_given_up(replica.name)

        async def load_if_wanted() -> bool:
            return not given_up() and await load()  # it may have been given up while it waited for its turn

        # What is waited for is waited for outside of the turn: others have memory enough, or depend on nothing.
        while await self._until_healthy(replica, files) and await self._conditions.until_memory(
            replica, files, given_up
        ):
            if await self._own_turns.load(files, load_if_wanted, over):
                return

    async def _until_healthy(self, replica: HeldReplica, files: ModelFiles) -> bool:
        """Wait for what ``files`` depend on; False where that was given up, or the deadline has passed."""
        name = replica.name
        if files.depends_on:
            self._waiting[name] = self._applied.get(name) or content(one.files for one in self._models.of(name))
        try:
            return await self._conditions.until_healthy(replica, files, lambda: self.is_given_up(name))
        finally:
            self._waiting.pop(name, None)

    def _follow_if_needed(self, replica: HeldReplica) -> None:
        """Watch what a replica depends on, where it does, for as long as it is loaded."""
        copies = self._followed
        if replica in copies or not replica.files.depends_on or not replica.serves:
            return
        copies.add(replica)
        follow = self._conditions.follow(replica, lambda: self._stop.is_set() or replica.model is None)
        task = self.start(follow, f"dependencies of {replica.name}@{replica.version}")
        task.add_done_callback(lambda _: copies.discard(replica))

    def _note(self, files: ModelFiles, *, failed: bool) -> None:
        """Remember what has failed, so that polling does not try it again as it is."""
        if failed:
            self._tried[(files.name, files.version)] = files.signature
        else:
            self._tried.pop((files.name, files.version), None)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Have what waits give up, and nothing begin any more."""
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stop.is_set()

    async def stopped(self, within_s: float) -> bool:
        """Wait for :meth:`stop`; returns whether it was called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._stop.wait()
        return self._stop.is_set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Have ``work`` go on by itself."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def apart(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Wait for ``work``, which goes on where whoever waits goes away."""
        task = self.start(work, name)
        task.add_done_callback(_looked_at)  # where nobody waits any more, nobody is to be told
        await asyncio.shield(task)


def is_to_come(replica: HeldReplica) -> bool:
    """Whether a replica is to be brought up as the worker starts."""
    return replica.rest is None and replica.state is State.COLD


def _looked_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
