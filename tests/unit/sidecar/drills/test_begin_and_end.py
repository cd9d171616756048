"""What a drill waits for before it begins, and what it does not wait for when it ends."""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.drills import run
from sidecar.drills.aside import aside
from sidecar.drills.faults import Faults
from sidecar.drills.place import PlaceError
from sidecar.drills.reading import parse_drill
from sidecar.drills.run import Running
from sidecar.drills.show import Show

FLEET = """\
version: 1
name: one
title: One
start: {up: {workers: 2, ready_s: 5, config: {models: [{name: drill}, {name: chat}]}}, streams: {model: chat, count: 1}}
phases:
  - {name: load, load: {path: /x, rate_per_s: 1}}
objectives:
  - {measure: error_ratio, at_most: 0}
"""
CHANGES = FLEET.replace("{name: load,", "{name: slow, fault: {kind: delay, delay_ms: 5}}\n  - {name: load,")
WATCHES = """\
version: 1
name: watcher
title: Looks on
phases:
  - {name: looks, wait: {for_s: 0.001}}
objectives:
  - {measure: error_ratio, at_most: 0}
"""
DELAY = {"kind": "delay", "delay_ms": 5.0, "for_s": 60.0}


class Place:
    """Stands for a sidecar that hears of its workers one by one."""

    def __init__(self, *knows: list[str]) -> None:
        self.knows = list(knows)

    async def endpoints(self) -> list[str]:
        return self.knows.pop(0) if len(self.knows) > 1 else self.knows[0]

    async def models(self) -> list[str]:
        return ["chat", "drill"]

    async def take(self, name: str, ends_in_s: float) -> None:
        raise PlaceError("all it needs is there")


class Taken:
    """Stands for a sidecar with a fault of a drill that was killed; it counts how often it was had and let go."""

    target = "127.0.0.1:1"

    def __init__(self) -> None:
        self.held: list[str] = []

    async def endpoints(self) -> list[str]:
        return ["stream-1", "worker-1", "worker-2"]

    async def models(self) -> list[str]:
        return ["chat", "drill"]

    async def faults(self) -> list[Any]:
        return [SimpleNamespace(id="drill-other-slow"), SimpleNamespace(id="by-hand")]

    async def take(self, name: str, ends_in_s: float) -> None:
        self.held.append("taken")

    async def release(self) -> None:
        self.held.append("released")

    async def look(self, at: float, *, with_ready: bool) -> Any:
        raise PlaceError("not to be seen")

    async def scrape(self, at: float) -> Any:
        raise PlaceError("not to be seen")


def refusal(place: Any, fleet: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a drill says that does not begin; each look at its clock is a second later."""
    monkeypatch.setattr(run, "LOOK_S", 0)
    seconds = count(0.0)
    running = Running(parse_drill(CHANGES.encode(), "d.yaml"), place, Show(), fleet, clock=lambda: next(seconds))
    with pytest.raises(PlaceError) as caught:
        asyncio.run(running.run())
    return str(caught.value)


class Fleet:
    """Stands for a fleet that is never asked."""

    def places(self) -> None:
        raise AssertionError


def test_a_fleet_is_waited_for_until_its_sidecar_knows_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(["stream-1"], ["stream-1", "worker-2"], ["stream-1", "worker-1", "worker-2"])
    assert refusal(place, Fleet(), monkeypatch) == "all it needs is there"
    never = Place(["stream-1", "worker-1"])
    assert refusal(never, Fleet(), monkeypatch) == (
        'start: the sidecar knows no "worker-2"; it knows: stream-1, worker-1'
    )


def test_a_fault_of_another_drill_is_in_the_way_of_who_changes_something_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Taken()
    assert refusal(changes, Fleet(), monkeypatch) == (
        "another drill has faults in force (drill-other-slow): wait for its end, or remove them"
    )
    assert changes.held == ["taken", "released"]
    watches: Any = Taken()
    record = asyncio.run(Running(parse_drill(WATCHES.encode(), "d.yaml"), watches, Show()).run())
    assert (record.cut_short, record.left_behind, [span.name for span in record.spans]) == ("", (), ["looks"])
    assert watches.held == []


class Hanging:
    """Stands for a sidecar that puts faults in force, and answers no end of one before it was asked for two."""

    def __init__(self, *, answers: bool) -> None:
        self.asked: list[str] = []
        self.both = asyncio.Event()
        self.answers = answers

    async def put_fault(self, rule: dict[str, Any]) -> None:
        pass

    async def remove_fault(self, id_: str) -> None:
        self.asked.append(id_)
        if len(self.asked) == 2:
            self.both.set()
        await (self.both.wait() if self.answers else asyncio.Event().wait())


async def ended(*, answers: bool) -> Faults:
    place: Any = Hanging(answers=answers)
    faults = Faults(place, "one", lambda: 1.0, None)
    for name in ("a", "b"):
        await faults.begin(DELAY | {"id": name})
    ending = asyncio.ensure_future(faults.end_all())
    await asyncio.wait_for(place.both.wait(), 30)
    if answers:
        await asyncio.wait_for(ending, 30)
    else:
        ending.cancel()
        await asyncio.wait({ending})
    faults.give_up()
    return faults


def test_faults_end_together() -> None:
    faults = asyncio.run(ended(answers=True))
    assert (faults.left, faults.in_force) == ([], [])


def test_what_is_not_waited_for_is_named_and_has_an_end() -> None:
    faults = asyncio.run(ended(answers=False))
    assert faults.in_force == []
    assert faults.left == [
        f"fault {name}: nobody said in time that it is ended; it ends by itself within 10 s" for name in "ab"
    ]


def test_a_call_aside_is_left_to_itself_when_it_is_given_up() -> None:
    go_on, done = threading.Event(), threading.Event()

    def call() -> None:
        go_on.wait(30)
        done.set()

    async def give_up() -> None:
        aside(call).cancel()

    asyncio.run(give_up())  # ends, though the call has not
    assert not done.is_set()
    go_on.set()
    assert done.wait(30)


def test_a_call_aside_gives_what_it_returns_or_raises() -> None:
    async def both() -> int:
        with pytest.raises(ValueError, match="none"):
            await aside(_raise, ValueError("none"))
        return await aside(int, "12")

    assert asyncio.run(both()) == 12


def _raise(error: Exception) -> None:
    raise error
