"""The second tier of kept answers, as a data process sees it: it speaks to the control process, and waits for nobody.

Fills are sent and forgotten. A question has a few milliseconds; then, or where the channel takes nothing, the request
goes on as if there were no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.cache.keeping import Kept
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from sidecar.settings import SharedCache

MOST_WAITING: Final = 256
"""Questions at once; over it nobody is asked."""
FILLS_PER_S: Final = 100
"""Fills that one process sends; more are dropped: what is popular comes again."""


class _Question:
    __slots__ = ("then", "timer")

    def __init__(self, then: Callable[[Kept | None], None]) -> None:
        self.then: Final = then
        self.timer: asyncio.TimerHandle | None = None


class SharedTier:
    """What one process asks and sends. ``send`` is the channel's: False where it takes nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], send: Callable[[object], bool]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._send = send
        self._number = 0
        self._questions: dict[int, _Question] = {}
        self._second = 0
        self._sent = 0

    def fill(self, policy: SharedCache, key: bytes, kept: Kept) -> bool:
        """Offer an answer to the tier; False where it is too long for it, or there is no room on the way."""
        if len(kept.head) + len(kept.body) > policy.max_entry_bytes:
            return False
        second = int(self._clock())
        if second != self._second:
            self._second, self._sent = second, 0
        if self._sent >= FILLS_PER_S:
            return False
        self._sent += 1
        ttl_ms = int(kept.ttl_s * 1000)
        return ttl_ms > 0 and self._send(
            AnswerKept(key, kept.head, kept.body, ttl_ms, kept.age_s, policy.entries, policy.bytes)
        )

    def ask(self, policy: SharedCache, key: bytes, then: Callable[[Kept | None], None]) -> bool:
        """Ask for an answer; False where that cannot be. ``then`` hears of it once, with None where there is none."""
        if len(self._questions) >= MOST_WAITING:
            return False
        self._number = number = self._number + 1
        if not self._send(AnswerAsked(number, key)):
            return False
        self._questions[number] = question = _Question(then)
        question.timer = self._loop.call_later(policy.wait_ms / 1000, self._late, number)
        return True

    def found(self, answer: AnswerFound) -> None:
        """Take what the control process says."""
        question = self._questions.pop(answer.number, None)
        if question is None:  # too late
            return
        if question.timer is not None:
            question.timer.cancel()
        if not answer.head:
            question.then(None)
            return
        now = self._clock()
        question.then(Kept(answer.head, answer.body, now - answer.kept_ms / 1000, answer.ttl_ms / 1000, answer.age_s))

    def _late(self, number: int) -> None:
        question = self._questions.pop(number, None)
        if question is not None:
            question.then(None)
