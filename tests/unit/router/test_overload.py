"""The levels of overload: a table."""

from __future__ import annotations

import pytest

from router.overload import Level, level_after

N, S, H = Level.NORMAL, Level.SOFT, Level.HARD


@pytest.mark.parametrize(
    ("used", "from_normal", "from_soft", "from_hard"),
    [
        (0.0, N, N, N),
        (0.79, N, N, N),
        (0.80, N, S, S),  # five points below the mark it ends, and no sooner
        (0.84, N, S, S),
        (0.85, S, S, S),
        (0.89, S, S, S),
        (0.90, S, S, H),
        (0.94, S, S, H),
        (0.95, H, H, H),
        (7.0, H, H, H),
    ],
)
def test_levels_begin_at_their_marks_and_end_below_them(
    used: float, from_normal: Level, from_soft: Level, from_hard: Level
) -> None:
    found = tuple(level_after(before, used, 0.85, 0.95) for before in (N, S, H))
    assert found == (from_normal, from_soft, from_hard)


def test_a_wobble_around_a_mark_is_one_change() -> None:
    level, changes = N, 0
    for used in (0.84, 0.86, 0.84, 0.86, 0.82, 0.85, 0.81):
        after = level_after(level, used, 0.85, 0.95)
        changes += after is not level
        level = after
    assert (level, changes) == (S, 1)
