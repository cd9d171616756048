"""How the control process ends what it runs."""

from __future__ import annotations

import asyncio

import pytest

from sidecar import tasks
from tests.support.loops import turns


async def _swallows_one() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


async def _obeys() -> None:
    await asyncio.Event().wait()


def test_a_task_that_swallows_a_cancellation_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_S", 0.0)

    async def main() -> None:
        running = [asyncio.create_task(one()) for one in (_swallows_one, _obeys)]
        await turns(1)
        await asyncio.wait_for(tasks.end_all(running), 5)
        assert all(task.cancelled() for task in running)

    asyncio.run(main())
