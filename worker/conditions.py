"""What must hold before a model version is loaded, and while it serves: its dependencies, its deadline, and memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from worker import dependencies
from worker.dependencies import CHECK_S, MISSES
from worker.gate import STEPS, Step
from worker.governor import Governor
from worker.loading import LoadError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from worker.dependencies import Dependency
    from worker.engines import Cancellation
    from worker.log import EventLog
    from worker.replica import HeldReplica
    from worker.store import ModelFiles

    Amiss = Callable[[Sequence[Dependency]], Awaitable[str]]


class Conditions:
    """Asked before each load, and follows models that depend on something for as long as they are loaded."""

    def __init__(
        self,
        log: EventLog,
        clock: Callable[[], float],
        governor: Governor | None = None,
        *,
        amiss: Amiss = dependencies.amiss,
        every_s: float = CHECK_S,
    ) -> None:
        """``clock``: monotonic seconds. ``amiss`` says what is wrong with the first dependency that is not well."""
        self.governor = Governor(()) if governor is None else governor
        self._log = log
        self._clock = clock
        self._amiss = amiss
        self._every_s = every_s

    async def until_healthy(self, replica: HeldReplica, files: ModelFiles, given_up: Callable[[], bool]) -> bool:
        """Wait for what ``files`` depend on; False where that was given up, or the deadline has passed.

        Meanwhile the replica says what it waits for; after its ``deadline_s`` it is failed.
        """
        began, told = self._clock(), ""
        while not given_up():
            why = await self._amiss(files.depends_on) if files.depends_on else ""
            if STEPS[False, not why] is Step.TRIGGER:
                return True
            if files.deadline_s and self._clock() - began >= files.deadline_s:
                replica.not_begun(f"its dependencies were not there within {files.deadline_s:g} s: {why}")
                return False
            if why != told:
                self._log.warning("model.waits", model=files.name, version=files.version, reason=why)
                replica.hold_back(f"it waits for what it depends on: {why}")
                replica.put_off()
                told = why
            await asyncio.sleep(self._every_s)
        replica.wait_no_more()
        return False

    async def healthy(self, files: ModelFiles) -> bool:
        """Return whether what ``files`` depend on is well now."""
        return not (files.depends_on and await self._amiss(files.depends_on))

    @asynccontextmanager
    async def memory(self, files: ModelFiles) -> AsyncIterator[bool]:
        """Keep memory for ``files`` until the end of the ``with`` block; False where they may not be loaded now."""
        need_bytes = await asyncio.to_thread(size_bytes, files)
        with self.governor.reserved(_key(files), need_bytes) as got:
            yield got

    def fetched(self, files: ModelFiles, cancellation: Cancellation) -> None:
        """Keep memory for ``files``, which are here only now, as long as their load goes on. Blocks until there is.

        Raises:
            LoadError: that took too long.
            GivenUpError: ``cancellation`` said so.
        """
        began, told = self._clock(), False
        while (refused := self.governor.reserve_instead(_key(files), size_bytes(files))) is not None:
            if not told:
                self._note(files, refused.why)
                told = True
            if refused.passes:
                began = self._clock()
            elif self._clock() - began >= self.governor.wait_s:
                raise LoadError(self._too_late(refused.why))
            cancellation.wait(self._every_s)

    def _note(self, files: ModelFiles, why: str) -> None:
        self.governor.note(why)
        self._log.warning("model.held_back", model=files.name, version=files.version, reason=why)

    def _too_late(self, why: str) -> str:
        return f"there was no memory for it within {self.governor.wait_s:g} s: {why}"

    async def until_memory(self, replica: HeldReplica, files: ModelFiles, given_up: Callable[[], bool]) -> bool:
        """Wait until there is memory for ``files``; False where that was given up, or took too long.

        The time that loads under way take does not count: they end by themselves, as those in whose turn it waits.
        """
        began, told = self._clock(), False
        while not given_up():
            refused = self.governor.refuses(await asyncio.to_thread(size_bytes, files))
            if refused is None:
                return True
            if not told:
                self._note(files, refused.why)
                replica.hold_back(f"it is held back: {refused.why}")
                told = True
            if refused.passes:
                began = self._clock()
            elif self._clock() - began >= self.governor.wait_s:
                replica.not_begun(self._too_late(refused.why))
                return False
            await asyncio.sleep(self._every_s)
        replica.wait_no_more()
        return False

    async def follow(self, replica: HeldReplica, given_up: Callable[[], bool]) -> None:
        """Take the replica out while what it depends on is amiss, and prove it again after; ends when given up."""
        misses = 0
        while not given_up():
            await asyncio.sleep(self._every_s)
            depends_on = replica.files.depends_on
            why = await self._amiss(depends_on) if depends_on else ""
            if given_up():
                return
            misses = misses + 1 if why else 0
            step = STEPS[replica.model is not None, misses < MISSES]
            if step is Step.WAIT and replica.serves:
                replica.lose(f"what it depends on is amiss: {why}")
            elif step is Step.IDLE and not why and replica.lost:
                await replica.regain()


def _key(files: ModelFiles) -> tuple[str, str]:
    return files.name, files.version


def size_bytes(files: ModelFiles) -> int:
    """Return the bytes of what is loaded: about what a session that keeps its own copy of the weights takes.

    Of a shard, its slices; of packed files, what they take packed.
    """
    if files.directory is None:
        return 0
    if files.shard is not None:
        from worker.sharding import ShardError
        from worker.sharding.manifest import read_manifest, shard_bytes

        try:
            return shard_bytes(read_manifest(files.directory, files=False), files.shard.index)
        except ShardError:  # its load says so
            return 0
    total = 0
    for folder, _, names in os.walk(files.directory):  # which passes over what is gone or may not be looked at
        for name in names:
            with contextlib.suppress(OSError):
                status = (Path(folder) / name).stat()
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
