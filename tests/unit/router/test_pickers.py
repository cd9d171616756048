from __future__ import annotations

import random

import pytest

from router.pickers import AliasPicker


def exact(picker: AliasPicker, size: int, steps: int = 20_000) -> list[float]:
    """Integrate over the random number instead of drawing."""
    counts = [0] * size
    for step in range(steps):
        counts[picker.draw(lambda: (step + 0.5) / steps)] += 1  # noqa: B023
    return [count / steps for count in counts]


@pytest.mark.parametrize(
    "weights",
    [[1.0], [1.0, 1.0], [0.0, 1.0], [3.0, 1.0, 0.5], [1e-9, 1e9], [0.1] * 7 + [5.0], [float(w) for w in range(50)]],
)
def test_draws_follow_the_weights(weights: list[float]) -> None:
    total = sum(weights)
    expected = [weight / total for weight in weights]
    assert exact(AliasPicker(weights), len(weights)) == pytest.approx(expected, abs=len(weights) / 20_000 + 1e-6)


def test_no_weight_at_all_draws_evenly() -> None:
    assert exact(AliasPicker([0.0] * 4), 4) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000, 4096])
def test_the_ends_of_the_random_number_stay_inside(size: int) -> None:
    picker = AliasPicker([1.0] * size)
    assert picker.draw(lambda: 0.0) == 0
    assert picker.draw(lambda: 1 - 2**-53) == size - 1


def test_the_same_seed_draws_the_same() -> None:
    picker = AliasPicker([1.0, 2.0, 3.0])
    first, second = random.Random(5), random.Random(5)
    assert [picker.draw(first.random) for _ in range(50)] == [picker.draw(second.random) for _ in range(50)]
