"""What a worker holds follows its model repository: at the start, when told to, or whenever something changed there.

What is there is looked at by :mod:`worker.looks`, and models are changed by :mod:`worker.changes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.model import State
from worker.changes import Changes, is_to_come
from worker.conditions import Conditions
from worker.control import Control
from worker.engines import Cancellation
from worker.loading_turns import ended_or, is_fetched
from worker.looks import Looks
from worker.models import UnknownModelError
from worker.served import Rest
from worker.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from worker.control import Behaviour, Source
    from worker.log import EventLog
    from worker.models import Models
    from worker.replica import HeldReplica
    from worker.store import ModelFiles
    from worker.turns import Turns

LEAST_CHECK_S, MOST_CHECK_S = 0.05, 5.0


class RefusedError(Exception):
    """What was asked for is not done here; the text says what to do instead."""


class StillInUseError(Exception):
    """A model is unloaded, and something that it held is still used; the text says what to do."""


class NotGivenBackError(Exception):
    """A model is unloaded, and its engine failed to give back what it held; the text has each version's reason."""


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
        self._behaviour = behaviour
        self._log = log
        self._prefetch = prefetch
        self._looks = Looks(source, models, log)
        conditions = Conditions(log, time.monotonic) if conditions is None else conditions
        self._changes = Changes(behaviour, models, make, log, conditions, turns)
        self._given_up = Cancellation()
        self.brought_up = asyncio.Event()
        """Set once every load of the start has ended, warm or failed."""
        models.on_wanted = self._wanted

    # --- its life -----------------------------------------------------------------------------------------------------

    def add(self, found: Iterable[ModelFiles]) -> None:
        """Put what was found at the start into the table, to be brought up by :meth:`run`."""
        startup = self._behaviour.startup
        for files in found:
            replica = self._changes.put(files)
            if self.control is Control.EXPLICIT and "*" not in startup and files.name not in startup:
                replica.lay_to_rest(Rest.UNLOADED, _unloaded(files.name))
            elif replica.rest is None:
                replica.start()

    async def find(self) -> None:
        """Add what the repository holds; a model that is not as it should be is told of and passed over.

        Raises:
            StoreError: the repository as a whole cannot be looked at.
        """
        listed = await self._looks.names()
        missing = next((name for name in self._behaviour.startup if name not in ("*", *listed)), None)
        if missing is not None:
            raise StoreError(f"--load-model {missing}: no such model in {self._looks.root}")
        for name in listed:
            with contextlib.suppress(StoreError):
                found = await self._looks.model(name)
                self.add(files for files in found if not self._changes.held(name, files.version))
                if not found:
                    self._log.warning("model.refused", model=name, reason="it is not in the repository")

    async def run(self) -> None:
        """Bring up what is not at rest, the newest version of each model first, and follow changes until stopped."""
        late, loads = await self._preload_all()
        watches = [self._until_brought_up(loads)]
        if self.control is Control.POLL:
            watches.append(self._poll())
        if self._prefetch is not None:
            watches.append(self._prefetch_cold(self._prefetch, late))
        if self._may_idle():
            watches.append(self._watch_idle())
        await asyncio.gather(*watches, *late)

    async def _preload_all(self) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        """Bring up what is not at rest; returns what goes on after its turn, and all loads."""
        late: list[asyncio.Task[None]] = []
        loads: list[asyncio.Task[None]] = []
        beside: set[str] = set()
        ranked = [(rank, replica) for name in self.models.names for rank, replica in enumerate(self.models.of(name))]
        for _, replica in sorted(ranked, key=lambda row: row[0]):
            if self._changes.is_stopped:
                break
            if not is_to_come(replica):
                continue
            over = asyncio.Event()
            task = self._changes.start(self._changes.preload(replica, over), f"load {replica.name}@{replica.version}")
            loads.append(task)
            if replica.name in beside or await _waits_for_others(replica.files):
                beside.add(replica.name)
                continue
            await ended_or(task, over)
            if not task.done():
                beside.add(replica.name)
                late.append(task)
        return late, loads

    async def _until_brought_up(self, loads: list[asyncio.Task[None]]) -> None:
        if loads:
            await asyncio.wait(loads)
        self.brought_up.set()

    async def _prefetch_cold(
        self, prefetch: Callable[[ModelFiles, Cancellation], None], late: list[asyncio.Task[None]]
    ) -> None:
        """Have the files of what is not loaded read ahead, once everything else is up."""
        if late:
            await asyncio.wait(late)
        for replica in self.models:
            if replica.state is State.COLD and not self._changes.is_stopped:
                await asyncio.to_thread(prefetch, replica.files, self._given_up)

    def _may_idle(self) -> bool:
        """Whether anything here may ever be unloaded for idleness; what is found later may say so itself."""
        return self.control is not Control.NONE or any(self._idle_unload_s(replica) for replica in self.models)

    def drain(self) -> None:
        """Follow nothing any more, and say of every model that no more requests should come: the process ends."""
        self._changes.stop()
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
        await self._changes.apart(self._load(name), f"load {name}")

    async def _load(self, name: str) -> None:
        self._changes.want(name)
        if self._changes.is_waiting(name):
            with contextlib.suppress(StoreError):
                self._changes.outdate(name, await self._looks.model(name))
        async with self._changes.changing(name):
            try:
                chosen = await self._looks.model(name)
            except StoreError as error:
                raise LoadFailedError(f"model {name!r} was not loaded: {error}") from None
            if not chosen:
                self._forget_unloaded(name)
                raise UnknownModelError(f"model {name[:128]!r} is not in the repository")
            await self._changes.apply(name, chosen, again=True)
            if self._changes.is_stopped or self._changes.is_unwanted(name):
                raise LoadFailedError(f"model {name!r} was not loaded: it was unloaded meanwhile")
            if self._changes.is_outdated(name):
                raise LoadFailedError(f"model {name!r} was not loaded: its files changed while it waited")
            failed = [why for files in chosen if (why := self._not_as_said(files)) is not None]
            if failed:
                raise LoadFailedError(f"model {name!r} was not loaded: {'; '.join(failed)}")

    def _forget_unloaded(self, name: str) -> None:
        """Let go of what is not loaded of a model that is not in the repository; what serves may outlive its files."""
        if self.control is Control.EXPLICIT:
            for replica in self.models.of(name):
                if replica.model is None and replica.state in (State.COLD, State.FAILED):
                    self._changes.remove(replica)
        if not self.models.of(name):
            self._looks.forget(name)
            self._changes.forget(name)

    def _not_as_said(self, files: ModelFiles) -> str | None:
        replica = self._changes.held(files.name, files.version)
        if replica is not None and replica.state is State.WARM and replica.files.signature == files.signature:
            return None
        return f"version {files.version}: {'' if replica is None else replica.reason or replica.state.value}"

    async def unload(self, name: str) -> None:
        """Have all versions of a model unloaded, and a load of it that is under way end.

        Raises:
            RefusedError: the worker follows something else.
            UnknownModelError: there is no such model.
            StillInUseError: it is unloaded, and not everything that it held is given back yet.
            NotGivenBackError: it is unloaded, and not everything that it held is given back ever.
        """
        if self.control is not Control.EXPLICIT:
            raise RefusedError(
                f"model {name[:128]!r}: loading and unloading by request is off; "
                f"start the worker with --model-control {Control.EXPLICIT.value}"
            )
        if not self.models.of(name):
            raise UnknownModelError(f"model {name[:128]!r} is not in the repository")
        await self._changes.apart(self._unload(name), f"unload {name}")

    async def _unload(self, name: str) -> None:
        self._changes.give_up(name)
        held = self.models.of(name)
        given_back = await asyncio.gather(
            *(self._changes.rest(replica, Rest.UNLOADED, _unloaded(name)) for replica in held)
        )
        kept = [f"version {replica.version}: {replica.not_given_back}" for replica in held if replica.not_given_back]
        if kept:
            raise NotGivenBackError(
                f"model {name!r} is unloaded, but {'; '.join(kept)}; that is free when the worker ends: restart it"
            )
        if not all(given_back) and not self._changes.is_stopped:
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
        for name, why in self.models.refused.items():
            shown = name.encode("utf-8", "backslashreplace").decode()  # a directory may be called anything
            entries.append(Entry(shown, "", "UNAVAILABLE", why))
        return [entry for entry in entries if not ready_only or entry.state == "READY"]

    async def _follow_names(self) -> None:
        """Put models that are new in the repository into the table, at rest; take out what left it and is cold."""
        listed = await self._looks.listed()
        if listed is None:
            return
        for name in {*listed, *self.models.names, *self.models.refused}:
            if self._changes.lock(name).locked() or any(
                replica.state is not State.COLD for replica in self.models.of(name)
            ):
                continue
            async with self._changes.lock(name):
                try:
                    chosen = await self._looks.model(name)
                except StoreError:
                    continue
                for replica in self.models.of(name):
                    if replica.version not in {files.version for files in chosen}:
                        self.models.remove(replica)
                for files in chosen:
                    known = self._changes.held(name, files.version)
                    if known is None:
                        self._changes.put(files).lay_to_rest(Rest.UNLOADED, _unloaded(name))
                    else:
                        known.files = files

    def _wanted(self, replica: HeldReplica) -> None:
        """Load a replica that rested until a request came for it, or try again what failed for an earlier one."""
        replica.want()
        self._log.info("model.wanted", model=replica.name, version=replica.version)
        self._changes.start(self._changes.bring_up_alone(replica), f"load {replica.name}@{replica.version}")

    # --- following the repository -------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while not await self._changes.stopped(self._behaviour.poll_s):
            await self.look_again()

    async def look_again(self) -> None:
        """Follow what has changed in the repository, and was the same at the last two looks: it may be half there."""
        listed = await self._looks.listed()
        if listed is None:
            return
        for name in dict.fromkeys((*self.models.names, *listed, *self.models.refused)):
            if self._changes.is_stopped:
                return
            if self._changes.lock(name).locked():  # it is being changed
                found = await self._looks.still(name) if self._changes.is_waiting(name) else None
                if found is not None:
                    self._changes.outdate(name, found)
                continue
            async with self._changes.changing(name):
                chosen = await self._looks.still(name)
                if chosen is None:
                    continue
                if any([await _waits_for_others(files) for files in chosen]):
                    self._changes.start(self._changes.apply_alone(name, chosen), f"follow {name}")
                elif chosen:
                    await self._changes.apply(name, chosen, again=False)
                else:
                    self._looks.forget(name)
                    await self._changes.clear(name)

    # --- idleness -----------------------------------------------------------------------------------------------------

    async def _watch_idle(self) -> None:
        while True:
            limits = [limit for replica in self.models if (limit := self._idle_unload_s(replica))]
            if await self._changes.stopped(
                min(MOST_CHECK_S, max(LEAST_CHECK_S, min(limits, default=MOST_CHECK_S) / 10))
            ):
                return
            self.unload_idle()

    def unload_idle(self) -> None:
        """Begin to unload what was not asked for as long as it may."""
        for replica in self.models:
            limit_s = self._idle_unload_s(replica)
            if self._changes.lock(replica.name).locked():
                continue  # it is being changed
            if limit_s and replica.state is State.WARM and replica.idle_s() >= limit_s:
                why = f"it was idle for {limit_s:g} s; the next request has it loaded"
                self._changes.start(
                    self._changes.rest(replica, Rest.IDLE, why), f"unload {replica.name}@{replica.version}"
                )

    def _idle_unload_s(self, replica: HeldReplica) -> float:
        said = replica.files.idle_unload_s
        return self._behaviour.idle_unload_s if said is None else said

    def _may_rest(self, name: str) -> bool:
        """Whether a request for it would have it loaded, whenever it is cold."""
        held = self.models.of(name)
        return any(self._changes.is_lazy(replica.files) or self._idle_unload_s(replica) for replica in held)


async def _waits_for_others(files: ModelFiles) -> bool:
    """Whether loading it waits for servers that may be slow, for which no other model is to wait."""
    return bool(files.depends_on) or await is_fetched(files)


def _unloaded(name: str) -> str:
    return f"it is not loaded; POST /v2/repository/models/{name}/load loads it"


def _reason(replica: HeldReplica) -> str:
    return replica.reason or ("" if replica.rest is None else replica.rest.value)
