from __future__ import annotations

import pytest

from worker.stages import Stage, Stages


class Clock:
    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


def test_stages_are_summed_and_stand_in_the_order_of_a_start() -> None:
    clock = Clock()
    stages = Stages(clock)
    for stage, took_s in ((Stage.WARM_UP, 2.0), (Stage.OPEN, 0.5), (Stage.WARM_UP, 1.0)):
        with stages.measure(stage):
            clock.now += took_s
    stages.add(Stage.IMPORTS, 0.25)
    assert list(stages.seconds().items()) == [(Stage.IMPORTS, 0.25), (Stage.OPEN, 0.5), (Stage.WARM_UP, 3.0)]


def test_a_stage_that_fails_is_measured_too() -> None:
    clock = Clock()
    stages = Stages(clock)

    def fail() -> None:
        with stages.measure(Stage.CREATE):
            clock.now += 1.5
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert stages.seconds() == {Stage.CREATE: 1.5}
