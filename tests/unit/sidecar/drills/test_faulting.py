"""What a sidecar is told of a drill's faults, and what a drill tells whose reader has gone."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, cast

from sidecar.drills.faults import MAX_ID, Faults
from sidecar.drills.show import Show

if TYPE_CHECKING:
    from sidecar.drills.place import Place


class Told:
    """Stands for a sidecar: remembers the rules that it is told."""

    def __init__(self) -> None:
        self.rules: list[dict[str, Any]] = []

    async def put_fault(self, rule: dict[str, Any]) -> None:
        self.rules.append(rule)


def ids(drill: str, *names: str) -> list[str]:
    told = Told()
    faults = Faults(cast("Place", told), drill, lambda: 0.0, None)

    async def begin() -> None:
        for name in names:
            await faults.begin({"id": name, "kind": "delay", "delay_ms": 5, "for_s": 60})

    asyncio.run(begin())
    return [str(rule["id"]) for rule in told.rules]


def test_a_fault_has_the_name_of_its_drill_in_front() -> None:
    assert ids("surge", "slow") == ["drill-surge-slow"]


def test_however_long_names_are_each_fault_has_its_own() -> None:
    made = ids("n" * 64, "a" * 64, "a" * 63 + "b", "short")
    assert len(set(made)) == 3
    assert all(len(one) == MAX_ID and one.startswith("drill-nnn") for one in made)
    assert ids("n" * 64, "short") == made[2:]  # the same when it is prolonged, and ended


class Deaf(io.StringIO):
    """Stands for a pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_drill_whose_reader_has_gone_goes_on() -> None:
    show = Show(Deaf())
    show.line("text")
    show.note("ending: faults, load")
