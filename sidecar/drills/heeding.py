"""The signals that end a drill, and who hears them: its loop while it runs, somebody else once it has ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed(loop: asyncio.AbstractEventLoop, told: Callable[[signal.Signals], Any]) -> None:
    """Have each of them call ``told`` in ``loop``, in place of what it did before."""
    for signum in SIGNALS:
        loop.add_signal_handler(signum, told, signum)


def hand_over(loop: asyncio.AbstractEventLoop, to: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    """Have them call ``to`` from now on, also once ``loop`` is closed, which would give them their default effect."""
    for signum in SIGNALS:
        loop.remove_signal_handler(signum)
        signal.signal(signum, to)


def ignore() -> None:
    """Let none do anything any more: one would end what is ending, with a code that tells of no verdict."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
