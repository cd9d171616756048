"""A model version that joins requests, on an executor of its own, driven by tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.loops import turns
from tests.support.worker_parts import DoublingModel, EmptyLoader, FixedEngine, ReadableLog
from worker.engines import EngineError, InputError
from worker.execution import Executor, Order, Ticket
from worker.execution.queues import DEFAULT_TICKET
from worker.models import Models
from worker.replica import HeldReplica
from worker.serving.errors import RequestError
from worker.serving.fit import InferRequest, RequestedOutput
from worker.serving.inference import Inference
from worker.store import Batching, ModelFiles

if TYPE_CHECKING:
    from worker.engines import Array


FOUR = Batching(max_size=4)
PATIENT = Batching(max_size=4, max_delay_ms=10_000)


class PickyModel(DoublingModel):
    """Doubles; refuses rows of 13, raises where it is given a 99, and would end the process where it is given a 66."""

    def compute(self, values: Array) -> Array:
        if (values == 13).any():
            raise InputError("13 is refused")
        if (values == 99).any():
            raise EngineError("99 is too much")
        if (values == 66).any():
            raise SystemExit(3)
        return super().compute(values)


class Rig:
    def __init__(self, model: DoublingModel, batching: Batching, threads: int, order: Order) -> None:
        self.now = 100.0
        self.model = model
        self.log = ReadableLog()
        files = ModelFiles("m", "1", batching=batching)
        self.replica = HeldReplica(files, FixedEngine(model), EmptyLoader(), self.log, lambda: 0.0, lambda: None)
        self.read: Callable[[], float] = lambda: self.now
        self.executor = Executor(threads, 64, lambda: self.read(), order)
        self.inference = Inference(Models((self.replica,)), self.executor, lambda: self.read(), self.log)
        self.written: list[list[int]] = []

    async def ask(
        self, *values: float, ticket: Ticket = DEFAULT_TICKET, quick: bool = True, **parameters: int | float | str
    ) -> list[float]:
        """Ask with a row for each of ``values``; returns the first column of the answer."""

        def read(model: Any) -> InferRequest:
            if not values:
                raise RequestError("no rows")
            array = np.array([[value, 0.0] for value in values], np.float32)
            return InferRequest(None, {"x": array}, (RequestedOutput(model.outputs[0]),), dict(parameters))

        def write(files: ModelFiles, request: InferRequest, arrays: Sequence[Array]) -> list[float]:
            if values[0] == 7:
                raise ValueError("7 cannot be written")
            return [float(value) for value in arrays[0][:, 0]]

        with self.inference.admit("m", None, ticket) as admitted:
            return await admitted.run(read, write, parameters, quick=quick)

    @property
    def ran(self) -> list[list[float]]:
        return [[float(value) for value in one["x"][:, 0]] for one in self.model.ran]

    async def holding(self) -> asyncio.Task[list[float]]:
        """Have the one thread held by a request for -1, so that what comes after it waits."""
        task = asyncio.create_task(self.ask(-1.0))
        while len(self.model.ran) < 1:  # noqa: ASYNC110 - a thread brings it about
            await asyncio.sleep(0)
        return task

    def go(self) -> None:
        assert self.model.hold is not None
        self.model.hold.set()

    def statistics(self) -> dict[str, Any]:
        return self.replica.statistics.shown("m", "1")


def batched(
    check: Callable[[Rig], Awaitable[None]],
    *,
    model: DoublingModel | None = None,
    batching: Batching = FOUR,
    held: bool = False,
    threads: int = 1,
    order: Order = Order.FIFO,
    ticking: bool = False,
) -> None:
    """Run ``check`` on a model that is warm; ``held``: its runs wait for :meth:`Rig.go`.

    ``ticking``: time goes by; else it stands still where no check moves it.
    """

    async def scenario() -> None:
        rig = Rig(model or PickyModel(), batching, threads, order)
        if ticking:
            rig.read = time.monotonic
        assert await rig.replica.bring_up()
        rig.model.ran.clear()
        if held:
            rig.model.hold = threading.Event()
        try:
            await asyncio.wait_for(check(rig), 30)
            while rig.executor.busy:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await turns(3)
            assert rig.executor.in_flight == 0
        finally:
            rig.executor.close()

    asyncio.run(scenario())


async def asked(*asks: Awaitable[Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    await turns(2)
    return tasks
