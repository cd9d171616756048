"""Ending tasks for sure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CANCEL_AGAIN_S = 0.5


async def end_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until each has ended: a client that just connects may take a cancellation for its own timeout."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
