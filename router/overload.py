"""How near a process is to the end of what it has, and what that means: a pure table with hysteresis."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class Resource(StrEnum):
    """What a process can run out of. Their order is the metrics layout."""

    MEMORY = "memory"
    DESCRIPTORS = "descriptors"
    LOOP = "loop"  # the event loop's time: how late it is


class Level(IntEnum):
    """How far it has come. SOFT: grow no further, give back what is idle. HARD: refuse new work, finish what runs."""

    NORMAL = 0
    SOFT = 1
    HARD = 2


RELEASE_RATIO: Final = 0.05
"""How far below its mark a resource must fall before a level ends, so that it does not flap."""


def level_after(before: Level, used_ratio: float, soft_ratio: float, hard_ratio: float) -> Level:
    """Return the level of a resource of which ``used_ratio`` is used, after it was at ``before``.

    A level begins at its mark (inclusive) and ends below the mark less ``RELEASE_RATIO``.
    """
    if used_ratio >= hard_ratio or (before is Level.HARD and used_ratio >= hard_ratio - RELEASE_RATIO):
        return Level.HARD
    if used_ratio >= soft_ratio or (before is not Level.NORMAL and used_ratio >= soft_ratio - RELEASE_RATIO):
        return Level.SOFT
    return Level.NORMAL
