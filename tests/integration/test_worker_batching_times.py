"""Batches and time that really goes by: when the most impatient request has one begin."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.support.worker_parts import DoublingModel
from worker.execution import Ticket

if TYPE_CHECKING:
    from worker.engines import Array


from tests.support.batch_rig import PATIENT, Rig, asked, batched


def test_one_with_less_time_than_the_delay_begins_while_it_can_still_be_answered() -> None:
    async def check(rig: Rig) -> None:
        assert await rig.ask(1.0, timeout=400_000) == [2.0]
        tasks = await asked(rig.ask(2.0), rig.ask(3.0, ticket=Ticket(deadline=rig.executor.now + 0.4)))
        assert await asyncio.gather(*tasks) == [[4.0], [6.0]]
        assert rig.ran == [[1.0], [2.0, 3.0]]

    batched(check, batching=PATIENT, ticking=True)


class SlowModel(DoublingModel):
    def compute(self, values: Array) -> Array:
        time.sleep(0.3)
        return super().compute(values)


def test_how_long_runs_take_says_when_one_must_begin() -> None:
    async def check(rig: Rig) -> None:
        await asyncio.gather(*await asked(*(rig.ask(float(number)) for number in range(4))))
        assert await rig.ask(5.0, timeout=1_000_000) == [10.0]  # begins after 450 ms; without the runs after 750
        assert rig.statistics()["execution_count"] == 2

    batched(check, model=SlowModel(), batching=PATIENT, ticking=True)
