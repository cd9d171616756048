"""Work done in turns: a generator that stops after every few steps, so that its caller may do other things between.

A fleet of a thousand endpoints has tens of thousands of replicas. What goes through all of them is such a generator,
and its caller decides: an event loop gets its turn at every stop, and :func:`at_once` goes on without any.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

Turns = Generator[None, None, T]
"""Stops with None as often as it likes, and returns its result."""

LOOKS: Final = 64
"""Replicas that are looked at in one turn."""
ROWS: Final = 16
"""Rows that are made of them in one turn: each costs several times as much."""
KEYS: Final = 512
"""Names that are put in order in one turn."""


def at_once(turns: Turns[T]) -> T:
    """Do it without a stop, and return the result."""
    while True:
        try:
            next(turns)
        except StopIteration as done:
            result: T = done.value
            return result


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> Iterator[T | None]:
    """Yield ``items`` in order of ``key``, and None where a turn is over. They are taken in before the first stop."""
    given = list(items)
    runs: list[list[T]] = []
    for start in range(0, len(given), KEYS):
        runs.append(sorted(given[start : start + KEYS], key=key))
        yield None
    for count, item in enumerate(merge(*runs, key=key), 1):
        yield item
        if count % KEYS == 0:
            yield None
