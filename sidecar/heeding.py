"""The signals that end a command, and who hears them: its loop while it runs, somebody else once it has ended.

Once a loop is closed they would have their default effect, in the middle of what is yet to be written down.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed(
    loop: asyncio.AbstractEventLoop,
    told: Callable[[signal.Signals], Any],
    signals: Sequence[signal.Signals] = SIGNALS,
) -> None:
    """Have each of them call ``told`` in ``loop``, in place of what it did before."""
    for signum in signals:
        loop.add_signal_handler(signum, told, signum)


def hand_over(
    loop: asyncio.AbstractEventLoop,
    to: Callable[[int, FrameType | None], Any] | signal.Handlers,
    signals: Sequence[signal.Signals] = SIGNALS,
) -> None:
    """Have them call ``to`` from now on, also once ``loop`` is closed, which would give them their default effect."""
    for signum in signals:
        loop.remove_signal_handler(signum)
        signal.signal(signum, to)


def ignore() -> None:
    """Let none do anything any more: one would end what is ending, with a code that tells of no verdict."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
