"""Whose turn it is to load in one worker: one model that is here and, beside it, one that is fetched.

Two at once would take each other's disk and cores; a fetch takes neither for most of its time. A preload whose own turn
is over goes on beside the next, so that it holds up no other model.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from worker.store import ModelFiles

MOST_BESIDE: Final = 2
"""Preloads of one worker that go on beside those whose turn it is; more keep their turn until they are done."""


class LoadingTurns:
    """The turns of one worker. Used on the event loop only."""

    def __init__(self, memory: Callable[[ModelFiles], AbstractAsyncContextManager[bool]]) -> None:
        """``memory``: keeps memory for what is loaded, until its load has ended; False where there is none."""
        self._memory = memory
        self._turn = asyncio.Lock()
        self._fetch_turn = asyncio.Lock()
        self._beside = 0

    async def load(
        self, files: ModelFiles, load: Callable[[], Coroutine[Any, Any, bool]], over: asyncio.Event | None = None
    ) -> bool:
        """Wait for a turn and load in it; False where there was no memory for it then, and it was not done.

        ``over``: once it is set, the next has its turn while this load goes on.
        """
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._fetch_turn if await is_fetched(files) else self._turn)
            async with self._memory(files) as got:
                if got and over is not None:
                    await self._load(load, over, turn)
                elif got:
                    await load()
                return got

    async def _load(
        self, load: Callable[[], Coroutine[Any, Any, bool]], over: asyncio.Event, turn: AsyncExitStack
    ) -> None:
        loading = asyncio.ensure_future(load())
        await ended_or(loading, over)
        if not loading.done() and self._beside < MOST_BESIDE:
            self._beside += 1
            loading.add_done_callback(self._no_longer_beside)
            await turn.aclose()
        await loading

    def _no_longer_beside(self, _: object) -> None:
        self._beside -= 1


async def ended_or(task: asyncio.Task[Any], over: asyncio.Event) -> None:
    """Wait for the end of ``task``, and raise what it did; where ``over`` is set before that, let it go on."""
    waiting = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if task.done():
        await task


async def is_fetched(files: ModelFiles) -> bool:
    """Whether loading it mostly waits for the network, for which those that are here need not wait."""
    if not files.load.fetches:
        return False
    from worker.loading.fetching import to_be_fetched

    try:
        return await asyncio.to_thread(to_be_fetched, files)
    except OSError:
        return False  # its load says what is wrong
