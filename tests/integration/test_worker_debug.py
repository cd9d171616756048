"""The worker's /debug pages over real sockets: what they show, and what they cost at most."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from tests.support.sidecars import until as wait_until
from tests.support.worker_process import WorkerProcess
from tests.support.worker_surface import until
from worker.alarms import Alarms
from worker.debug import DebugPages

Ask = Callable[..., Coroutine[Any, Any, tuple[int, str]]]


def asked(check: Callable[[Ask], Awaitable[None]], pages: DebugPages | None = None) -> None:
    async def scenario() -> None:
        server = TestServer((pages or DebugPages(Alarms())).application(), host="127.0.0.1")
        await server.start_server()
        try:
            async with ClientSession() as session:

                async def ask(path: str, host: str | None = None) -> tuple[int, str]:
                    named = {} if host is None else {"Host": host}
                    async with session.get(server.make_url(path), headers=named) as answer:
                        return answer.status, await answer.text()

                await asyncio.wait_for(check(ask), 20)
        finally:
            await server.close()

    asyncio.run(scenario())


async def waits_for_ever() -> None:
    await asyncio.sleep(60)


def test_tasks_by_kind_and_where_they_wait() -> None:
    async def check(ask: Ask) -> None:
        waiting = [asyncio.create_task(waits_for_ever(), name=f"0-{number}") for number in range(5)]
        status, text = await ask("/debug/tasks?rows=2")
        said = json.loads(text)
        assert status == 200
        assert (said["alarms"], said["kinds"]["waits_for_ever"]) == ([], 5)
        assert said["tasks"] >= 6
        assert [row["name"] for row in said["listed"]] == ["0-0", "0-1"]
        assert "waits_for_ever" in said["listed"][0]["stack"][-1]
        for task in waiting:
            task.cancel()

    asked(check)


def test_memory_and_what_is_allocated_meanwhile() -> None:
    async def check(ask: Ask) -> None:
        status, text = await ask("/debug/memory?rows=3")
        said = json.loads(text)
        assert status == 200
        assert said["heap_bytes"] > 0
        assert len(said["kinds"]) == 3
        assert "allocated" not in said
        asking = asyncio.create_task(ask("/debug/memory?seconds=0.3&rows=1000"))
        kept = []
        while not asking.done():
            kept.append(bytes(10_000))
            await asyncio.sleep(0.005)
        status, text = await asking
        assert status == 200
        rows: list[dict[str, Any]] = json.loads(text)["allocated"]
        (row,) = [row for row in rows if row["where"].startswith(__file__) and row["bytes"] >= 10_000]
        assert row["bytes"] <= 11_000 * len(kept)

    asked(check)


def test_a_profile_names_what_runs() -> None:
    async def check(ask: Ask) -> None:
        end = threading.Event()

        def spin() -> None:
            while not end.is_set():
                sum(range(100))

        thread = threading.Thread(target=spin, name="the spinner")
        thread.start()
        try:
            status, text = await ask("/debug/profile?seconds=0.3&hz=200")
        finally:
            end.set()
            thread.join()
        assert status == 200
        (line,) = [line for line in text.splitlines() if line.startswith("the_spinner;") and "spin" in line][:1]
        stack, _, count = line.rpartition(" ")
        assert stack.split(";")[0] == "the_spinner"
        assert int(count) > 0

    asked(check)


def test_one_measurement_at_a_time_and_one_that_nobody_waits_for_ends() -> None:
    pages = DebugPages(Alarms())

    async def check(ask: Ask) -> None:
        first = asyncio.create_task(ask("/debug/profile?seconds=15"))
        await until(lambda: pages._measuring)
        conflict = (409, "another measurement runs; one at a time\n")
        assert await ask("/debug/profile?seconds=0.1") == conflict
        assert await ask("/debug/memory?seconds=0.1") == conflict
        assert (await ask("/debug/memory"))[0] == 200, "what only looks is not one"
        first.cancel()
        await asyncio.wait({first})
        began = time.monotonic()
        while (await ask("/debug/profile?seconds=0.02"))[0] != 200:
            assert time.monotonic() - began < 5
            await asyncio.sleep(0.02)

    asked(check, pages)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/debug/profile?seconds=61", "seconds=61: expected a number from 0.01 to 60\n"),
        ("/debug/profile?hz=0", "hz=0: expected a number from 1 to 1000\n"),
        ("/debug/profile?seconds=nan", "seconds=nan: expected a number from 0.01 to 60\n"),
        ("/debug/memory?seconds=x", "seconds=x: expected a number from 0 to 60\n"),
        ("/debug/tasks?rows=1001", "rows=1001: expected a number from 0 to 1000\n"),
    ],
)
def test_bounds(path: str, error: str) -> None:
    async def check(ask: Ask) -> None:
        assert await ask(path) == (400, error)

    asked(check)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "[::1]evil.example", "10.0.0.1", "127.0.0.1.evil.example", "[::2]:1", ""],
)
def test_a_page_of_the_web_that_points_its_name_here_gets_nothing(host: str) -> None:
    async def check(ask: Ask) -> None:
        text = "the Host header must name a loopback address: 127.0.0.1, [::1] or localhost\n"
        assert await ask("/debug/tasks", host) == (403, text)

    asked(check)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:9201", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:80", "::1"]
)
def test_loopback_by_any_name(host: str) -> None:
    async def check(ask: Ask) -> None:
        assert (await ask("/debug/tasks", host))[0] == 200

    asked(check)


def test_they_are_on_an_address_of_their_own_and_nowhere_else() -> None:
    with WorkerProcess("--engine", "deterministic", "--model", "m", "--debug-listen", "127.0.0.1:0") as worker:
        worker.listening()
        assert worker.ask("/debug/tasks")[0] == 404
        assert worker.ask("/stats")[1]["alarms"] == []
        worker.address = worker.event("worker.listening")["debug"]
        worker.warm("m")
        assert worker.ask("/debug/tasks")[0] == 200
        wait_until(lambda: "AlarmWatch.run" in worker.ask("/debug/tasks")[1]["kinds"], "the watch runs")
        worker.terminate()
        assert worker.wait() == 0
