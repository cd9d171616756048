"""Turns to preload: who may have how many, and that they hold over processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worker_parts import ReadableLog
from worker.loading.private import own_root
from worker.turns import MOST_LOADS, Standing, TurnOptions, Turns, allowances, merged, weights

RATIOS = st.none() | st.floats(0, 1)
STANDINGS = st.builds(Standing, cpu_load=RATIOS, free_memory=RATIOS, bytes_to_load=st.integers(0, 1 << 40))


def test_the_weights_are_those_of_the_three_terms() -> None:
    found = weights(
        {
            "idle": Standing(cpu_load=0.0, free_memory=1.0, bytes_to_load=100),
            "busy": Standing(cpu_load=1.0, free_memory=0.0, bytes_to_load=50),
            "unknown": Standing(bytes_to_load=100),
        }
    )
    total = 1.0 + 0.125 + (0.2 + 0.175 + 0.25)
    assert found == pytest.approx({"idle": 1 / total, "busy": 0.125 / total, "unknown": 0.625 / total})
    assert allowances({"one": Standing()}) == {"one": 8}


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), STANDINGS, min_size=1, max_size=12))
def test_each_has_one_at_least_and_its_part_of_eight_at_most(standings: dict[str, Standing]) -> None:
    found = weights(standings)
    assert sum(found.values()) == pytest.approx(1.0)
    for name, allowed in allowances(standings).items():
        assert 1 <= allowed <= max(1, MOST_LOADS * found[name] + 1e-6)


def test_better_placed_instances_have_more() -> None:
    found = allowances(
        {
            "a": Standing(cpu_load=0.1, free_memory=0.9, bytes_to_load=10),
            "b": Standing(cpu_load=0.9, free_memory=0.1, bytes_to_load=1),
        }
    )
    assert found["a"] > found["b"] == 1


def test_workers_of_one_instance_are_counted_together() -> None:
    one = Standing(cpu_load=0.2, free_memory=0.5, bytes_to_load=10)
    other = Standing(cpu_load=0.4, bytes_to_load=5)
    (instance,) = merged([("a", one), ("a", other)]).values()
    assert instance.cpu_load == pytest.approx(0.3)
    assert (instance.free_memory, instance.bytes_to_load) == (0.5, 15)


# --- on this machine --------------------------------------------------------------------------------------------------


def turns(place: Path, most: int, wait_s: float = 0.0, instance: str = "i", log: ReadableLog | None = None) -> Turns:
    options = TurnOptions(most, instance, wait_s)
    loop_time = iter(range(1000))
    return Turns(options, place, "ns", Standing, log or ReadableLog(), lambda: float(next(loop_time)))


async def has_turn(turns: Turns) -> bool:
    async with turns.turn(lambda: False) as got:
        return got


def test_models_of_one_worker_have_turns_of_their_own(tmp_path: Path) -> None:
    log = ReadableLog()
    mine = turns(tmp_path, 2, log=log)

    async def scenario() -> list[bool]:
        async with mine.turn(lambda: False) as first, mine.turn(lambda: False) as second:
            third = await has_turn(mine)
            return [first, second, third]

    assert asyncio.run(scenario()) == [True, True, False]
    assert asyncio.run(has_turn(mine)), "they were given back"
    assert log.events() == []


HOLD = """
import asyncio, sys
from pathlib import Path
from worker.log import EventLog
from worker.turns import Standing, TurnOptions, Turns

async def main():
    options, log = TurnOptions(int(sys.argv[2]), sys.argv[3]), EventLog(sys.stderr)
    turns = Turns(options, Path(sys.argv[1]), "ns", Standing, log, lambda: 0.0)
    async with turns.turn(lambda: False) as got:
        print(got, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Holder:
    """Another process that has a turn until it is told to go on, or killed."""

    def __init__(self, place: Path, most: int, instance: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(place), str(most), instance],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "True\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_machine_has_so_many_turns_and_a_killed_process_gives_its_own_back(tmp_path: Path) -> None:
    holders = [Holder(tmp_path, 2, name) for name in ("a", "b")]
    try:
        mine = turns(tmp_path, 2)
        assert not asyncio.run(has_turn(mine))
        holders[0].kill()
        assert asyncio.run(has_turn(turns(tmp_path, 2)))
        assert asyncio.run(has_turn(turns(tmp_path, 2))), "it was given back"
    finally:
        for holder in holders:
            holder.kill()


def test_an_instance_has_no_more_than_its_part(tmp_path: Path) -> None:
    holders = [Holder(tmp_path, 2, "i"), Holder(tmp_path, 2, "other")]
    try:
        holders[1].kill()
        assert asyncio.run(has_turn(turns(tmp_path, 2))), "alone it may have both"
        holders[1] = Holder(tmp_path, 8, "other")
        assert not asyncio.run(has_turn(turns(tmp_path, 2))), "beside another it has one of two"
    finally:
        for holder in holders:
            holder.kill()


def test_files_of_the_dead_are_removed_and_names_are_as_documented(tmp_path: Path) -> None:
    holder = Holder(tmp_path, 2, "dead")
    place = own_root(tmp_path) / "preload.ns"
    state = f"preload:dead:state.{holder.process.pid}"
    assert {path.name for path in place.iterdir()} == {state, "preload:dead:load.0", "slot.0"}
    holder.kill()
    assert asyncio.run(has_turn(turns(tmp_path, 2)))
    assert state not in {path.name for path in place.iterdir()}


def test_without_a_limit_nothing_is_touched(tmp_path: Path) -> None:
    assert asyncio.run(has_turn(turns(tmp_path, 0)))
    assert not list(tmp_path.iterdir())


def test_where_the_place_cannot_be_used_everybody_has_a_turn_and_that_is_told_once(tmp_path: Path) -> None:
    log = ReadableLog()
    place = own_root(tmp_path) / "preload.ns"
    place.mkdir(parents=True)
    place.chmod(0o777)  # others may write there
    mine = turns(tmp_path, 1, log=log)
    assert asyncio.run(has_turn(mine))
    assert asyncio.run(has_turn(mine))
    assert len(log.events("preload.turns_off")) == 1
    assert list(place.iterdir()) == []


def test_waiting_can_be_given_up(tmp_path: Path) -> None:
    async def scenario() -> bool:
        async with turns(tmp_path, 1, 60.0).turn(lambda: True) as got:
            return got

    assert not asyncio.run(scenario())
