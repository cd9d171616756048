"""Holds loading back where it would leave too little memory, on the host or on the device: pure, but for the asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def refusal(place: str, need_bytes: int, memory: Memory, mark_ratio: float) -> str:
    """Say why ``need_bytes`` more would be too much for a place; empty where they would not."""
    used_bytes = memory.total_bytes - memory.free_bytes + need_bytes
    most_bytes = int(memory.total_bytes * mark_ratio)
    if used_bytes <= most_bytes:
        return ""
    return (
        f"{place} memory: a load takes about {need_bytes} bytes, {memory.free_bytes} of {memory.total_bytes} are free; "
        f"that is {used_bytes - most_bytes} over the mark of {mark_ratio:g} (--memory-mark)"
    )


class Governor:
    """Asked before each load. Counts what it held back."""

    def __init__(self, places: Sequence[Place], mark_ratio: float = MARK_RATIO, wait_s: float = WAIT_S) -> None:
        """``mark_ratio`` of 1 or more: nothing is ever refused. ``wait_s``: how long a load is held back at most."""
        self._places = tuple(places)
        self._mark_ratio = mark_ratio
        self.wait_s = wait_s
        self.held_back = 0
        """Loads that were held back since the start."""
        self.last = ""
        """Why the last of them was."""

    def refuses(self, need_bytes: int) -> str:
        """Say why a load that takes ``need_bytes`` should not begin now; empty where it may."""
        if self._mark_ratio >= 1:
            return ""
        for place in self._places:
            memory = place.read()
            why = "" if memory is None else refusal(place.name, need_bytes, memory, self._mark_ratio)
            if why:
                return why
        return ""

    def note(self, why: str) -> None:
        """Count a load that is held back."""
        self.held_back += 1
        self.last = why
