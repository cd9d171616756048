"""The second tier of kept answers, as a data process sees it: it speaks to the control process, and waits for nobody.

Fills are sent and forgotten. A question has a few milliseconds; then, or where the channel takes nothing, the request
goes on as if there were no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from sidecar.cache.keeping import Kept
from sidecar.cache.terms import Refused
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from sidecar.cache.terms import Terms
    from sidecar.settings import SharedCache

MOST_WAITING: Final = 256
"""Questions at once; over it nobody is asked."""
FILLS_PER_S: Final = 100
"""Fills that one process sends; more are dropped: what is popular comes again."""


class Reader(Protocol):
    """Holds an answer that somebody else kept to all that one of our own is held to (``sidecar.cache``)."""

    def __call__(
        self, head: bytes, body: bytes, age_s: int, since: float, now: float, terms: Terms, most_bytes: int
    ) -> Kept | Refused:
        """Return it, or why it is not told."""


class _Question:
    __slots__ = ("most_bytes", "read", "terms", "then", "timer")

    def __init__(
        self, terms: Terms, most_bytes: int, then: Callable[[Kept | Refused | None], None], read: Reader
    ) -> None:
        self.terms: Final = terms
        self.most_bytes: Final = most_bytes
        self.then: Final = then
        self.read: Final = read
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

    def ask(
        self,
        policy: SharedCache,
        terms: Terms,
        key: bytes,
        then: Callable[[Kept | Refused | None], None],
        read: Reader,
    ) -> bool:
        """Ask for an answer; False where that cannot be.

        ``then`` hears of it once: None where there is none, and why not where ``read``, which knows the protocol that
        it was kept in, does not let it be told by ``terms``.
        """
        if len(self._questions) >= MOST_WAITING:
            return False
        self._number = number = self._number + 1
        if not self._send(AnswerAsked(number, key)):
            return False
        self._questions[number] = question = _Question(terms, policy.max_entry_bytes, then, read)
        question.timer = self._loop.call_later(policy.wait_ms / 1000, self._late, number)
        return True

    def found(self, answer: AnswerFound) -> None:
        """Take what the control process says, and hold it to the terms: others can write to the store."""
        question = self._questions.get(answer.number)
        if question is None:  # too late
            return
        found: Kept | Refused | None = None
        if answer.bad:
            found = Refused.ANSWER_CONTROL
        elif answer.head:
            now = self._clock()
            since = now - answer.kept_ms / 1000
            found = question.read(
                answer.head, answer.body, answer.age_s, since, now, question.terms, question.most_bytes
            )
        del self._questions[answer.number]  # its timer stands until it is sure that there is something to tell
        if question.timer is not None:
            question.timer.cancel()
        question.then(found)

    def _late(self, number: int) -> None:
        question = self._questions.pop(number, None)
        if question is not None:
            question.then(None)
