"""What a worker holds follows its model repository: at the start, when told to, or whenever something changed there.

One model is changed by one task at a time, and loaded in its turn (:mod:`worker.loading_turns`). Whatever goes wrong
with a model leaves what served before serving, and the others untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from router.model import State
from worker.conditions import Conditions
from worker.control import Control
from worker.engines import Cancellation
from worker.loading_turns import LoadingTurns, ended_or, is_fetched
from worker.models import UnknownModelError
from worker.replica import Rest
from worker.store import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
    from typing import Any

    from worker.control import Behaviour, Source
    from worker.log import EventLog
    from worker.models import Models
    from worker.replica import HeldReplica
    from worker.store import ModelFiles
    from worker.turns import Turns

T = TypeVar("T")
LEAST_CHECK_S, MOST_CHECK_S = 0.05, 5.0


class RefusedError(Exception):
    """What was asked for is not done here; the text says what to do instead."""


class StillInUseError(Exception):
    """A model is unloaded, and something that it held is still used; the text says what to do."""


class LoadFailedError(Exception):
    """A model was not loaded as it should be; the text names each version and why. What served before still does."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the repository's index. ``version`` is empty where the model as a whole could not be read."""

    name: str
    version: str
    state: str
    reason: str


_STATES = {
    State.COLD: "UNAVAILABLE",
    State.LOADING: "LOADING",
    State.WARMING: "LOADING",
    State.WARM: "READY",
    State.DRAINING: "UNLOADING",
    State.FAILED: "UNAVAILABLE",
}
"""As the protocol's model repository extension names them."""


class Repository:
    """Keeps a worker's table of models as it should be. Used on the event loop only."""

    def __init__(
        self,
        source: Source,
        behaviour: Behaviour,
        models: Models,
        make: Callable[[ModelFiles], HeldReplica],
        log: EventLog,
        prefetch: Callable[[ModelFiles, Cancellation], None] | None = None,
        conditions: Conditions | None = None,
        turns: Turns | None = None,
    ) -> None:
        """``make`` makes a replica, cold, of a version. ``prefetch`` blocks, and is called for what is left cold.

        ``conditions``: what must hold before a version is loaded. ``turns``: whose turn it is to preload.
        """
        self.models = models
        self.control = behaviour.control
        self._source = source
        self._behaviour = behaviour
        self._make = make
        self._log = log
        self._prefetch = prefetch
        self._conditions = Conditions(log, time.monotonic) if conditions is None else conditions
        self._locks: dict[str, asyncio.Lock] = {}
        self._own_turns = LoadingTurns(self._conditions.memory)
        self._tried: dict[tuple[str, str], str] = {}
        self._seen: dict[str, object] = {}
        self._unreadable = ""
        self._unwanted: set[str] = set()
        self._waiting: dict[str, object] = {}
        """What is to become of models whose change waits for what they depend on."""
        self._outdated: set[str] = set()
        """Of them, those of which the repository has something else by now."""
        self._applied: dict[str, object] = {}
        """What the change under way makes of a model, where it follows the repository."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self._given_up = Cancellation()
        self._turns = turns
        self._followed: set[HeldReplica] = set()
        models.on_wanted = self._wanted

    # --- its life -----------------------------------------------------------------------------------------------------

    def add(self, found: Iterable[ModelFiles]) -> None:
        """Put what was found at the start into the table, to be brought up by :meth:`run`."""
        startup = self._behaviour.startup
        for files in found:
            replica = self._put(files)
            if self.control is Control.EXPLICIT and "*" not in startup and files.name not in startup:
                replica.lay_to_rest(Rest.UNLOADED, _unloaded(files.name))

    async def find(self) -> None:
        """Add what the repository holds; a model that is not as it should be is told of and passed over.

        Raises:
            StoreError: the repository as a whole cannot be looked at.
        """
        listed = await asyncio.to_thread(self._source.listed)
        missing = next((name for name in self._behaviour.startup if name not in ("*", *listed)), None)
        if missing is not None:
            raise StoreError(f"--load-model {missing}: no such model in {self._source.root}")
        for name in listed:
            with contextlib.suppress(StoreError):
                found = await self._look(name)
                self.add(files for files in found if not self._held(name, files.version))
                if not found:
                    self._log.warning("model.refused", model=name, reason="it is not in the repository")

    async def run(self) -> None:
        """Bring up what is not at rest, the newest version of each model first, and follow changes until stopped."""
        late = await self._preload_all()
        watches = [self._poll()] if self.control is Control.POLL else []
        if self._prefetch is not None:
            watches.append(self._prefetch_cold(self._prefetch, late))
        if self._may_idle():
            watches.append(self._watch_idle())
        await asyncio.gather(*watches, *late)

    async def _preload_all(self) -> list[asyncio.Task[None]]:
        """Bring up what is not at rest; returns what goes on after its turn."""
        late = []
        beside: set[str] = set()
        ranked = [(rank, replica) for name in self.models.names for rank, replica in enumerate(self.models.of(name))]
        for _, replica in sorted(ranked, key=lambda row: row[0]):
            if self._stop.is_set():
                break
            if not self._is_to_come(replica):
                continue
            over = asyncio.Event()
            task = self._start(self._preload(replica, over), f"load {replica.name}@{replica.version}")
            if replica.name in beside or await _waits_for_others(replica.files):
                beside.add(replica.name)
                continue
            await ended_or(task, over)
            if not task.done():
                beside.add(replica.name)
                late.append(task)
        return late

    @staticmethod
    def _is_to_come(replica: HeldReplica) -> bool:
        return replica.rest is None and replica.state is State.COLD

    async def _prefetch_cold(
        self, prefetch: Callable[[ModelFiles, Cancellation], None], late: list[asyncio.Task[None]]
    ) -> None:
        """Have the files of what is not loaded read ahead, once everything else is up."""
        if late:
            await asyncio.wait(late)
        for replica in self.models:
            if replica.state is State.COLD and not self._stop.is_set():
                await asyncio.to_thread(prefetch, replica.files, self._given_up)

    def _may_idle(self) -> bool:
        """Whether anything here may ever be unloaded for idleness; what is found later may say so itself."""
        return self.control is not Control.NONE or any(self._idle_unload_s(replica) for replica in self.models)

    def drain(self) -> None:
        """Follow nothing any more, and say of every model that no more requests should come: the process ends."""
        self._stop.set()
        self._given_up.cancel()
        for replica in self.models:
            replica.drain()

    def take_down(self) -> None:
        """Give back what the models hold. Nothing runs any more."""
        for replica in self.models:
            replica.take_down()

    # --- what is asked for --------------------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Have a model's chosen versions loaded as they are on disk now; what is loaded and unchanged stays.

        It goes on where whoever asked goes away.

        Raises:
            RefusedError: the worker follows something else.
            UnknownModelError: there is no such model.
            LoadFailedError: a version was not loaded, or not as it is on disk.
        """
        if self.control is not Control.EXPLICIT and not self._may_rest(name):
            raise RefusedError(
                f"model {name[:128]!r}: loading and unloading by request is off; "
                f"start the worker with --model-control {Control.EXPLICIT.value}"
            )
        await self._apart(self._load(name), f"load {name}")

    async def _load(self, name: str) -> None:
        self._unwanted.discard(name)
        if name in self._waiting:
            with contextlib.suppress(StoreError):
                self._outdate(name, await self._look(name))
        async with self._changing(name):
            try:
                chosen = await self._look(name)
            except StoreError as error:
                raise LoadFailedError(f"model {name!r} was not loaded: {error}") from None
            if not chosen:
                self._forget_unloaded(name)
                raise UnknownModelError(f"model {name[:128]!r} is not in the repository")
            await self._apply(name, chosen, again=True)
            if self._stop.is_set() or name in self._unwanted:
                raise LoadFailedError(f"model {name!r} was not loaded: it was unloaded meanwhile")
            if name in self._outdated:
                raise LoadFailedError(f"model {name!r} was not loaded: its files changed while it waited")
            failed = [why for files in chosen if (why := self._not_as_said(files)) is not None]
            if failed:
                raise LoadFailedError(f"model {name!r} was not loaded: {'; '.join(failed)}")

    def _forget_unloaded(self, name: str) -> None:
        """Let go of what is not loaded of a model that is not in the repository; what serves may outlive its files."""
        if self.control is Control.EXPLICIT:
            for replica in self.models.of(name):
                if replica.model is None and replica.state in (State.COLD, State.FAILED):
                    self._remove(replica)
        if not self.models.of(name):
            self._seen.pop(name, None)
            self._locks.pop(name, None)  # whoever asks for what is not there leaves nothing behind

    def _not_as_said(self, files: ModelFiles) -> str | None:
        replica = self._held(files.name, files.version)
        if replica is not None and replica.state is State.WARM and replica.files.signature == files.signature:
            return None
        return f"version {files.version}: {'' if replica is None else replica.reason or replica.state.value}"

    async def unload(self, name: str) -> None:
        """Have all versions of a model unloaded, and a load of it that is under way end.

        Raises:
            RefusedError: the worker follows something else.
            UnknownModelError: there is no such model.
            StillInUseError: it is unloaded, and not everything that it held is given back yet.
        """
        if self.control is not Control.EXPLICIT:
            raise RefusedError(
                f"model {name[:128]!r}: loading and unloading by request is off; "
                f"start the worker with --model-control {Control.EXPLICIT.value}"
            )
        if not self.models.of(name):
            raise UnknownModelError(f"model {name[:128]!r} is not in the repository")
        await self._apart(self._unload(name), f"unload {name}")

    async def _unload(self, name: str) -> None:
        self._unwanted.add(name)
        held = self.models.of(name)
        given_back = await asyncio.gather(*(self._rest(replica, Rest.UNLOADED, _unloaded(name)) for replica in held))
        if not all(given_back) and not self._stop.is_set():
            raise StillInUseError(
                f"model {name!r} is unloaded, but requests still run on it after {self._behaviour.drain_s:g} s "
                f"(--drain-s); what they use is given back when they end: ask again"
            )

    async def index(self, *, ready_only: bool = False) -> list[Entry]:
        """Return what there is, model by model, the newest version first; ``ready_only``: only what answers.

        Under explicit control the repository is looked at for what is new there.
        """
        if self.control is Control.EXPLICIT:
            await self._follow_names()
        entries = [
            Entry(replica.name, replica.version, _STATES[replica.state], _reason(replica)) for replica in self.models
        ]
        entries += [Entry(name, "", "UNAVAILABLE", why) for name, why in self.models.refused.items()]
        return [entry for entry in entries if not ready_only or entry.state == "READY"]

    async def _follow_names(self) -> None:
        """Put models that are new in the repository into the table, at rest; take out what left it and is cold."""
        listed = await self._listed()
        if listed is None:
            return
        for name in {*listed, *self.models.names, *self.models.refused}:
            if self._lock(name).locked() or any(replica.state is not State.COLD for replica in self.models.of(name)):
                continue
            async with self._lock(name):
                try:
                    chosen = await self._look(name)
                except StoreError:
                    continue
                for replica in self.models.of(name):
                    if replica.version not in {files.version for files in chosen}:
                        self.models.remove(replica)
                for files in chosen:
                    known = self._held(name, files.version)
                    if known is None:
                        self._put(files).lay_to_rest(Rest.UNLOADED, _unloaded(name))
                    else:
                        known.files = files

    def _wanted(self, replica: HeldReplica) -> None:
        """Load a replica that rested until a request came for it, or try again what failed for an earlier one."""
        replica.want()
        self._log.info("model.wanted", model=replica.name, version=replica.version)
        self._start(self._bring_up_alone(replica), f"load {replica.name}@{replica.version}")

    # --- following the repository -------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while not await self._stopped(self._behaviour.poll_s):
            await self.look_again()

    async def look_again(self) -> None:
        """Follow what has changed in the repository, and was the same at the last two looks: it may be half there."""
        listed = await self._listed()
        if listed is None:
            return
        for name in dict.fromkeys((*self.models.names, *listed, *self.models.refused)):
            if self._stop.is_set():
                return
            if self._lock(name).locked():  # it is being changed
                found = await self._stands_still(name) if name in self._waiting else None
                if found is not None:
                    self._outdate(name, found)
                continue
            async with self._changing(name):
                chosen = await self._stands_still(name)
                if chosen is None:
                    continue
                if any([await _waits_for_others(files) for files in chosen]):
                    self._start(self._apply_alone(name, chosen), f"follow {name}")
                elif chosen:
                    await self._apply(name, chosen, again=False)
                else:
                    await self._clear(name)

    async def _stands_still(self, name: str) -> list[ModelFiles] | None:
        """Look at one model; None where it cannot be read, or is not what it was at the last look."""
        try:
            chosen = await self._look(name)
        except StoreError:
            return None
        before, self._seen[name] = self._seen.get(name, _NEVER), _content(chosen)
        return chosen if before == self._seen[name] else None

    async def _apply_alone(self, name: str, chosen: list[ModelFiles]) -> None:
        async with self._changing(name):
            await self._apply(name, chosen, again=False)

    def _outdate(self, name: str, found: list[ModelFiles]) -> None:
        """Have a change that waits for what a model depends on end, where the repository has something else by now."""
        if name in self._waiting and self._waiting[name] != _content(found):
            self._outdated.add(name)

    async def _listed(self) -> list[str] | None:
        """Return what there is, or None where the repository cannot be looked at, which is told once."""
        try:
            listed = await asyncio.to_thread(self._source.listed)
        except StoreError as error:
            if self._unreadable != str(error):
                self._log.warning("repository.unreadable", error=str(error))
            self._unreadable = str(error)
            return None
        self._unreadable = ""
        return listed

    async def _look(self, name: str) -> list[ModelFiles]:
        """Look at one model; what is wrong with it is told once, and in the index for as long as it lasts.

        Raises:
            StoreError: something is.
        """
        try:
            chosen = await asyncio.to_thread(self._source.choose, name)
        except StoreError as error:
            if self.models.refused.get(name) != str(error):
                self._log.error("model.refused", model=name, reason=str(error))
            self.models.refused[name] = str(error)
            self._note_unread(name, str(error))
            raise
        self.models.refused.pop(name, None)
        self._note_unread(name, "")
        return chosen

    def _note_unread(self, name: str, why: str) -> None:
        for replica in self.models.of(name):
            replica.note_unread(why)

    async def _apply(self, name: str, chosen: list[ModelFiles], *, again: bool) -> None:
        """Make a model's versions what was ``chosen``. ``again``: also what rests, and what has failed as it is."""
        versions = {files.version for files in chosen}
        # A model that answers now is to answer on, also where its new versions would rest until they are asked for.
        again = again or any(
            replica.state is State.WARM and replica.version not in versions for replica in self.models.of(name)
        )
        self._applied[name] = _content(chosen)
        for files in chosen:
            if self._is_given_up(name):
                return
            replica = self._held(name, files.version) or self._put(files)
            was_lazy = self._lazy(replica.files)
            if (replica.files.lazy, replica.files.idle_unload_s) != (files.lazy, files.idle_unload_s):
                # When it is loaded and unloaded is no part of its content: that holds whatever becomes of the content.
                replica.files = replace(replica.files, lazy=files.lazy, idle_unload_s=files.idle_unload_s)
            if replica.rest is Rest.LAZY and was_lazy and not self._lazy(files):
                await self._bring_up(replica, files)
            elif again or self._tried.get((name, files.version)) != files.signature:
                await self._make_good(replica, files, again=again)
        kept = [replica for replica in self.models.of(name) if replica.version in versions]
        answers = any(replica.state is State.WARM or replica.rest is not None for replica in kept)
        for replica in self.models.of(name):
            if replica not in kept and (answers or replica.state is not State.WARM):
                await self._rest(replica, Rest.UNLOADED, "it is not to be served any more")
                self._remove(replica)

    async def _make_good(self, replica: HeldReplica, files: ModelFiles, *, again: bool) -> None:
        """Have a replica loaded as ``files`` say, where it is not."""
        if replica.lost:
            if replica.files.signature == files.signature or not await self._conditions.healthy(files):
                return  # once what it depends on is back, it serves again, and the next look takes over what is new
            await self._rest(replica, Rest.UNLOADED, "its files changed while what it depends on was amiss")
            await self._bring_up(replica, files)
        elif replica.state is State.WARM:
            if replica.files.signature != files.signature:
                await self._when_allowed(replica, files, lambda: replica.swap(files))
                if not self._is_given_up(replica.name):
                    self._note(files, failed=replica.files is not files and bool(replica.reason))
                self._follow_if_needed(replica)
                await replica.retired(self._behaviour.drain_s)
        elif replica.rest is not None and not again:
            replica.files = files
        elif replica.state in (State.COLD, State.FAILED):
            await self._bring_up(replica, files)

    async def _preload(self, replica: HeldReplica, over: asyncio.Event) -> None:
        """Bring up a replica in this machine's turn; where none comes in time, its first request does.

        A load that takes longer than a turn goes on without, and brings in no more than it must; ``over`` is set then.
        """
        if self._turns is None:
            await self._bring_up_alone(replica)
            return
        async with self._changing(replica.name):  # what it waits for is waited for before it has the turn of others
            if not self._is_to_come(replica):
                return
            if not await self._until_healthy(replica, replica.files):
                self._brought_up(replica, replica.files)
                return
        async with self._turns.turn(self._stop.is_set) as got:
            if not got:
                if not self._stop.is_set() and self._is_to_come(replica):
                    replica.lay_to_rest(Rest.LAZY, "its turn to be preloaded did not come; a request has it loaded")
                    self._log.warning("preload.no_turn", model=replica.name, version=replica.version)
                return
            work = self._bring_up_alone(replica, over)
            load = self._start(work, f"load {replica.name}@{replica.version} in its turn")
            await asyncio.wait({load}, timeout=self._turns.turn_s)
            if not load.done():
                replica.fall_back(self._turns.turn_s or 0.0)
                over.set()
        await load

    async def _bring_up_alone(self, replica: HeldReplica, over: asyncio.Event | None = None) -> None:
        async with self._changing(replica.name):
            await self._bring_up(replica, replica.files, over)

    async def _bring_up(self, replica: HeldReplica, files: ModelFiles, over: asyncio.Event | None = None) -> None:
        await self._when_allowed(replica, files, lambda: replica.bring_up(files), over)
        self._brought_up(replica, files)

    def _brought_up(self, replica: HeldReplica, files: ModelFiles) -> None:
        """A load has ended, or was not begun."""
        if not self._is_given_up(replica.name):
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
            return self._is_given_up(replica.name)

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
            self._waiting[name] = self._applied.get(name) or _content(one.files for one in self.models.of(name))
        try:
            return await self._conditions.until_healthy(replica, files, lambda: self._is_given_up(name))
        finally:
            self._waiting.pop(name, None)

    def _is_given_up(self, name: str) -> bool:
        """Whether the change of a model that is under way is not to go on."""
        return self._stop.is_set() or name in self._unwanted or name in self._outdated

    def _follow_if_needed(self, replica: HeldReplica) -> None:
        """Watch what a replica depends on, where it does, for as long as it is loaded."""
        copies = self._followed
        if replica in copies or not replica.files.depends_on or not replica.serves:
            return
        copies.add(replica)
        follow = self._conditions.follow(replica, lambda: self._stop.is_set() or replica.model is None)
        task = self._start(follow, f"dependencies of {replica.name}@{replica.version}")
        task.add_done_callback(lambda _: copies.discard(replica))

    def _note(self, files: ModelFiles, *, failed: bool) -> None:
        """Remember what has failed, so that polling does not try it again as it is."""
        if failed:
            self._tried[(files.name, files.version)] = files.signature
        else:
            self._tried.pop((files.name, files.version), None)

    async def _clear(self, name: str) -> None:
        """Let go of a model that is not in the repository any more."""
        self._seen.pop(name, None)
        for replica in self.models.of(name):
            await self._rest(replica, Rest.UNLOADED, "it is not in the repository any more")
            self._remove(replica)

    def _put(self, files: ModelFiles) -> HeldReplica:
        replica = self._make(files)
        if self._lazy(files):
            replica.lay_to_rest(Rest.LAZY, "it is loaded when a request comes for it")
        self.models.put(replica)
        return replica

    def _remove(self, replica: HeldReplica) -> None:
        self._tried.pop((replica.name, replica.version), None)
        self.models.remove(replica)

    # --- idleness -----------------------------------------------------------------------------------------------------

    async def _watch_idle(self) -> None:
        while True:
            limits = [limit for replica in self.models if (limit := self._idle_unload_s(replica))]
            if await self._stopped(min(MOST_CHECK_S, max(LEAST_CHECK_S, min(limits, default=MOST_CHECK_S) / 10))):
                return
            self.unload_idle()

    def unload_idle(self) -> None:
        """Begin to unload what was not asked for as long as it may."""
        for replica in self.models:
            limit_s = self._idle_unload_s(replica)
            if self._lock(replica.name).locked():
                continue  # it is being changed
            if limit_s and replica.state is State.WARM and replica.idle_s() >= limit_s:
                why = f"it was idle for {limit_s:g} s; the next request has it loaded"
                self._start(self._rest(replica, Rest.IDLE, why), f"unload {replica.name}@{replica.version}")

    def _idle_unload_s(self, replica: HeldReplica) -> float:
        said = replica.files.idle_unload_s
        return self._behaviour.idle_unload_s if said is None else said

    def _lazy(self, files: ModelFiles) -> bool:
        return self._behaviour.lazy if files.lazy is None else files.lazy

    def _may_rest(self, name: str) -> bool:
        """Whether a request for it would have it loaded, whenever it is cold."""
        held = self.models.of(name)
        return any(self._lazy(replica.files) or self._idle_unload_s(replica) for replica in held)

    # --- the parts ----------------------------------------------------------------------------------------------------

    async def _rest(self, replica: HeldReplica, rest: Rest, why: str) -> bool:
        return await replica.unload(rest, why, self._behaviour.settle_s, self._behaviour.drain_s)

    def _held(self, name: str, version: str) -> HeldReplica | None:
        return next((replica for replica in self.models.of(name) if replica.version == version), None)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[None]:
        """Change a model, alone: what was found before does not end this change."""
        async with self._lock(name):
            self._outdated.discard(name)
            try:
                yield
            finally:
                self._applied.pop(name, None)

    async def _stopped(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._stop.wait()
        return self._stop.is_set()

    def _start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _apart(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Wait for ``work``, which goes on where whoever waits goes away."""
        task = self._start(work, name)
        task.add_done_callback(_looked_at)  # where nobody waits any more, nobody is to be told
        await asyncio.shield(task)


_NEVER = object()


def _looked_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _content(chosen: Iterable[ModelFiles]) -> object:
    """Return what is equal as long as nothing is to be done about a model's chosen versions."""
    return [
        (files.version, files.signature, files.config_revision, files.lazy, files.idle_unload_s) for files in chosen
    ]


async def _waits_for_others(files: ModelFiles) -> bool:
    """Whether loading it waits for servers that may be slow, for which no other model is to wait."""
    return bool(files.depends_on) or await is_fetched(files)


def _unloaded(name: str) -> str:
    return f"it is not loaded; POST /v2/repository/models/{name}/load loads it"


def _reason(replica: HeldReplica) -> str:
    return replica.reason or ("" if replica.rest is None else replica.rest.value)
