"""Holds loading back where it would leave too little memory, on the host or on the device: pure, but for the asking."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from worker.memory import Memory

MARK_RATIO: Final = 0.95
"""The share of memory that may be in use once a model is loaded."""
WAIT_S: Final = 30.0
"""How long a load is held back before it fails."""


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere models take memory: ``name`` is ``host`` or ``device``; ``read`` says how much there is."""

    name: str
    read: Callable[[], Memory | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a load should not begin now. ``passes``: only for loads that are under way, which end by themselves."""

    why: str
    passes: bool


def refusal(place: str, need_bytes: int, memory: Memory, mark_ratio: float, reserved_bytes: int = 0) -> str:
    """Say why ``need_bytes`` more would be too much for a place; empty where they would not.

    ``reserved_bytes``: what loads under way are going to take.
    """
    used_bytes = memory.total_bytes - memory.free_bytes + reserved_bytes + need_bytes
    most_bytes = int(memory.total_bytes * mark_ratio)
    if used_bytes <= most_bytes:
        return ""
    reserved = f", {reserved_bytes} of them for loads under way" if reserved_bytes else ""
    return (
        f"{place} memory: a load takes about {need_bytes} bytes, {memory.free_bytes} of {memory.total_bytes} are free"
        f"{reserved}; that is {used_bytes - most_bytes} over the mark of {mark_ratio:g} (--memory-mark)"
    )


class Governor:
    """Asked before each load, and keeps what it allows for as long as the load takes. Counts what it held back.

    Usable from any thread. What a load has taken already counts twice until it ends: as taken, and as reserved.
    """

    def __init__(self, places: Sequence[Place], mark_ratio: float = MARK_RATIO, wait_s: float = WAIT_S) -> None:
        """``mark_ratio`` of 1 or more: nothing is ever refused. ``wait_s``: how long a load is held back at most."""
        self._places = tuple(places)
        self._mark_ratio = mark_ratio
        self.wait_s = wait_s
        self._lock = threading.Lock()
        self._reserved: dict[Hashable, int] = {}
        self.held_back = 0
        """Loads that were held back since the start."""
        self.last = ""
        """Why the last of them was."""

    def refuses(self, need_bytes: int) -> Refusal | None:
        """Say why a load that takes ``need_bytes`` should not begin now; None where it may."""
        return self._refuses(need_bytes, sum(self._reserved.values()))

    def _refuses(self, need_bytes: int, reserved_bytes: int) -> Refusal | None:
        if self._mark_ratio >= 1:
            return None
        passes = None
        for place in self._places:
            memory = place.read()
            if memory is None:
                continue
            why = refusal(place.name, need_bytes, memory, self._mark_ratio, reserved_bytes)
            if why and refusal(place.name, need_bytes, memory, self._mark_ratio):
                return Refusal(why, passes=False)
            if why:
                passes = passes or Refusal(why, passes=True)
        return passes

    @contextmanager
    def reserved(self, load: Hashable, need_bytes: int) -> Iterator[bool]:
        """Look whether ``load`` may begin and, in the same step, keep its memory from others until the block's end.

        False where it may not; nothing is kept then.
        """
        with self._lock:
            allowed = self.refuses(need_bytes) is None
            if allowed:
                self._reserved[load] = need_bytes
        try:
            yield allowed
        finally:
            if allowed:
                with self._lock:
                    del self._reserved[load]

    def reserve_instead(self, load: Hashable, need_bytes: int) -> Refusal | None:
        """Keep ``need_bytes`` for a load under way instead of what was kept; where there are not, say why."""
        with self._lock:
            others_bytes = sum(kept for other, kept in self._reserved.items() if other != load)
            refused = self._refuses(need_bytes, others_bytes)
            if refused is None:
                self._reserved[load] = need_bytes
            return refused

    def note(self, why: str) -> None:
        """Count a load that is held back."""
        self.held_back += 1
        self.last = why
