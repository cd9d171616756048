"""What tests on an event loop share: a loop of their own, its turns, and waiting for what must come in time."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING

from sidecar.tasks import end_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Have a test run on a loop of its own."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have work that never ends by itself go on while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task
    finally:
        await end_all([task])


async def turns(count: int = 10) -> None:
    """Let the loop go round ``count`` times, so that whoever can go on does so.

    A turn of the loop is no time: how long one takes changes nothing, and who waits for a timer or a socket stays
    where he is. So tests below tests/integration may let tasks run without sleeping.
    """
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], what: str, within_s: float = 20.0) -> float:
    """Wait for what the store, a socket or a thread brings about; return how many seconds that took.

    :raises AssertionError: with ``what``, where it does not come in time
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"{what}: not within {within_s} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - began
