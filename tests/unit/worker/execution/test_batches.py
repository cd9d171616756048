"""The way of requests to a model that asks for batching, from the surface's door to the answer."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from tests.support.loops import turns
from tests.support.worker_parts import DoublingModel
from worker.engines import Cancellation, Parameters
from worker.execution import Order, Ticket
from worker.served import Rest
from worker.serving.errors import RequestError
from worker.store import Batching, ModelFiles

if TYPE_CHECKING:
    from worker.engines import Array


from tests.support.batch_rig import PATIENT, Rig, asked, batched


def test_requests_that_wait_run_together_and_each_gets_its_own() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0, 3.0), rig.ask(4.0), rig.ask(5.0))
        assert (rig.executor.in_flight, rig.executor.queue_depth) == (5, 4)
        rig.go()
        assert await first == [-2.0]
        assert await asyncio.gather(*tasks) == [[2.0], [4.0, 6.0], [8.0], [10.0]]
        assert rig.ran == [[-1.0], [1.0, 2.0, 3.0, 4.0], [5.0]]
        shown = rig.statistics()
        assert (shown["inference_count"], shown["execution_count"]) == (5, 3)
        assert [(one["batch_size"], one["compute_infer"]["count"]) for one in shown["batch_stats"]] == [(1, 2), (3, 1)]
        assert rig.replica.counts.executed == 3

    batched(check, held=True)


def test_what_differs_in_kind_runs_apart() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(
            rig.ask(1.0), rig.ask(2.0, p=1), rig.ask(3.0), rig.ask(4.0, p=1), rig.ask(5.0, sequence_id=1), rig.ask(6.0)
        )
        rig.go()
        await asyncio.gather(first, *tasks)
        assert rig.ran == [[-1.0], [1.0, 3.0, 6.0], [2.0, 4.0], [5.0]]
        assert rig.model.parameters[-3:] == [{}, {"p": 1}, {"sequence_id": 1}]

    batched(check, held=True)


def test_one_that_is_larger_than_a_batch_runs_alone() -> None:
    async def check(rig: Rig) -> None:
        assert await rig.ask(*[1.0] * 9) == [2.0] * 9
        assert [len(one) for one in rig.ran] == [9]

    batched(check)


def test_an_idle_worker_does_not_wait_for_others_where_there_is_no_delay() -> None:
    async def check(rig: Rig) -> None:
        assert await rig.ask(1.0) == [2.0]
        assert rig.ran == [[1.0]]

    batched(check)


def test_with_a_delay_the_first_waits_for_others_until_they_are_enough() -> None:
    async def check(rig: Rig) -> None:
        tasks = await asked(rig.ask(1.0), rig.ask(2.0), rig.ask(3.0))
        assert rig.ran == []
        tasks += await asked(rig.ask(4.0))
        await asyncio.gather(*tasks)
        assert rig.ran == [[1.0, 2.0, 3.0, 4.0]]

    batched(check, batching=PATIENT)


def test_a_batch_that_fails_is_run_again_one_by_one() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(13.0), rig.ask(99.0), rig.ask(66.0))
        rig.go()
        await first
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[0] == [2.0]
        assert [(str(one), one.status) for one in results if isinstance(one, RequestError)] == [
            ("model 'm': 13 is refused", 400),
            ("model 'm': 99 is too much", 500),
            ("model 'm': the engine raised SystemExit: 3, which would have ended the worker", 500),
        ]
        assert rig.ran == [[-1.0], [1.0, 13.0, 99.0, 66.0], [1.0], [13.0], [99.0], [66.0]]
        shown = rig.statistics()
        assert (shown["inference_count"], shown["execution_count"]) == (2, 2)
        assert shown["inference_stats"]["fail"]["count"] == 3

    batched(check, held=True)


def test_an_answer_that_cannot_be_written_takes_nobody_along() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(7.0), rig.ask(2.0))
        rig.go()
        await first
        bad, good = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(bad, ValueError)
        assert good == [4.0]
        assert rig.ran == [[-1.0], [7.0, 2.0]]

    batched(check, held=True)


def test_one_that_cannot_be_read_never_joins() -> None:
    async def check(rig: Rig) -> None:
        for quick in (True, False):
            with pytest.raises(RequestError, match=r"^no rows$"):
                await rig.ask(quick=quick)
        assert await rig.ask(1.0, quick=False) == [2.0]

    batched(check)


def test_a_caller_that_leaves_takes_its_rows_out_of_the_batch() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0), rig.ask(3.0))
        tasks[1].cancel()
        await asyncio.wait({tasks[1]})
        assert (rig.executor.in_flight, rig.executor.queue_depth) == (3, 2)
        rig.go()
        await asyncio.gather(first, tasks[0], tasks[2])
        assert rig.ran == [[-1.0], [1.0, 3.0]]
        assert rig.replica.counts.cancelled == 1

    batched(check, held=True)


def test_a_batch_that_everybody_left_never_runs() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert rig.executor.in_flight == 1
        again = await asked(rig.ask(3.0))
        rig.go()
        await asyncio.gather(first, *again)
        assert rig.ran == [[-1.0], [3.0]]

    batched(check, held=True)


def test_what_runs_goes_on_until_the_last_caller_left() -> None:
    async def check(rig: Rig) -> None:
        tasks = await asked(*(rig.ask(float(number)) for number in range(1, 5)))
        while not rig.model.ran:
            await turns(1)
        for task in tasks[:3]:
            task.cancel()
        await asyncio.wait(tasks[:3])
        assert rig.model.cancelled == 0
        assert rig.executor.in_flight == 4, "the thread still works on all of them"
        tasks[3].cancel()
        await asyncio.wait(tasks)
        while rig.executor.in_flight:
            await turns(1)
        assert rig.model.cancelled == 1

    batched(check, held=True, batching=PATIENT)


def test_one_who_waits_to_be_joined_may_leave() -> None:
    async def check(rig: Rig) -> None:
        (gone,) = await asked(rig.ask(1.0))
        gone.cancel()
        await asyncio.wait({gone})
        assert rig.executor.in_flight == 0
        await asyncio.gather(*await asked(*(rig.ask(float(number)) for number in range(2, 6))))
        assert rig.ran == [[2.0, 3.0, 4.0, 5.0]]

    batched(check, batching=PATIENT)


def test_what_is_over_its_time_is_dropped_before_it_runs() -> None:
    async def check(rig: Rig) -> None:
        with pytest.raises(RequestError) as late:
            await rig.ask(9.0, ticket=Ticket(deadline=rig.now))
        assert (str(late.value), late.value.status, late.value.retry_after_s) == (
            "model 'm': its time was over before it could begin",
            503,
            1,
        )
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0, ticket=Ticket(deadline=rig.now + 3600)), rig.ask(3.0))
        rig.now += 7200  # the timer has not noticed; the thread does
        rig.go()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert [str(one) for one in results if isinstance(one, Exception)] == [
            "model 'm': its time was over before it could begin"
        ]
        assert rig.ran == [[-1.0], [1.0, 3.0]]
        assert rig.executor.overdue == 2

    batched(check, held=True)


def test_one_that_is_over_its_time_while_it_runs_is_told_so_and_the_others_are_answered() -> None:
    async def check(rig: Rig) -> None:
        tasks = await asked(
            rig.ask(1.0, timeout=500_000), rig.ask(2.0), rig.ask(3.0), rig.ask(4.0)
        )  # microseconds of the loop's own clock
        with pytest.raises(RequestError) as late:
            await tasks[0]
        assert (str(late.value), late.value.status) == ("model 'm': its time was over while it ran", 504)
        assert late.value.overdue
        rig.go()
        assert await asyncio.gather(*tasks[1:]) == [[4.0], [6.0], [8.0]]
        counts = rig.statistics()
        assert (counts["inference_stats"]["success"]["count"], counts["inference_stats"]["fail"]["count"]) == (3, 1)
        assert rig.model.parameters[-1] == {}, "the engine does not see what is not for it"

    batched(check, held=True)


def test_a_copy_that_was_taken_down_is_kept_by_nobody() -> None:
    async def check(rig: Rig) -> None:
        await rig.ask(1.0)
        with rig.replica.hold() as copy:
            held = weakref.ref(copy)
        del copy
        await rig.replica.unload(Rest.UNLOADED, "asked for")
        while held() is not None:  # a thread may not have let go yet; the rig bounds the time
            gc.collect()
            await turns(1)

    batched(check)


def test_requests_of_other_ranks_are_not_joined() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0, priority=1), rig.ask(3.0), rig.ask(4.0, priority=1))
        rig.go()
        await asyncio.gather(first, *tasks)
        assert rig.ran == [[-1.0], [2.0, 4.0], [1.0, 3.0]]

    batched(check, held=True, order=Order.PRIORITY)


class ShrinkingModel(DoublingModel):
    """Gives a row for each but where there is a 5 among them: no model for batching, and the proof could not tell."""

    def compute(self, values: Array) -> Array:
        doubled = super().compute(values)
        return doubled[:1] if (values == 5).any() else doubled


def test_a_model_whose_rows_are_lost_is_joined_no_more() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(5.0), rig.ask(2.0))
        rig.go()
        await first
        assert await asyncio.gather(*tasks) == [[10.0], [4.0]]
        await asyncio.gather(*await asked(*(rig.ask(1.0) for _ in range(4))))
        assert rig.ran == [[-1.0], [5.0, 2.0], [5.0], [2.0], [1.0], [1.0], [1.0], [1.0]]
        (event,) = rig.log.events("model.batching_off")
        assert event["reason"] == "an output of shape [1, 2] for 2 rows"

    batched(check, model=ShrinkingModel(), held=True)


def test_closing_tells_all_that_wait_and_a_swap_does_not_disturb_them() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0))
        swapped = asyncio.create_task(rig.replica.swap(ModelFiles("m", "1", batching=Batching(max_size=2))))
        rig.go()
        assert await asyncio.gather(first, *tasks) == [[-2.0], [2.0], [4.0]]
        assert await swapped
        assert await rig.ask(3.0) == [6.0]
        rig.executor.close()
        with pytest.raises(RequestError, match=r"^model 'm': the worker stopped before this was done$"):
            await rig.ask(4.0)

    batched(check, held=True)


def test_requests_that_were_joined_run_to_their_end_though_the_model_is_unloaded() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.holding()
        tasks = await asked(rig.ask(1.0), rig.ask(2.0))
        assert not await rig.replica.unload(Rest.UNLOADED, "asked for", drain_s=0.01)
        rig.go()
        assert await asyncio.gather(first, *tasks) == [[-2.0], [2.0], [4.0]]
        assert await rig.replica.retired(5)

    batched(check, held=True)


class CountingModel(DoublingModel):
    """Doubles; notes how many runs there are at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def run(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], parameters: Parameters, cancellation: Cancellation
    ) -> list[Array]:
        with self.lock:
            self.ran.append(dict(inputs))
        return [self.compute(inputs["x"]) for _ in outputs]


def test_under_load_from_many_everyone_gets_the_right_answer() -> None:
    async def check(rig: Rig) -> None:
        async def caller(number: int) -> None:
            for turn in range(10):
                value = float(1000 * (number + 1) + turn)
                assert await rig.ask(*[value] * (1 + (number + turn) % 3)) == [2 * value] * (1 + (number + turn) % 3)

        await asyncio.gather(*(caller(number) for number in range(16)))
        assert sum(len(one) for one in rig.ran) == sum(1 + (n + t) % 3 for n in range(16) for t in range(10))
        assert max(len(one) for one in rig.ran) <= 8
        shown = rig.statistics()
        assert shown["inference_count"] == 160
        assert shown["execution_count"] == len(rig.ran) < 160

    batched(check, model=CountingModel(), batching=Batching(max_size=8, max_delay_ms=1), threads=3, ticking=True)
