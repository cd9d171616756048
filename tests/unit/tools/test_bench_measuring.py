from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.tools.test_bench_results import SAMPLE
from tools.bench.contenders import OURS
from tools.bench.measuring import Bench, Wanted
from tools.bench.processes import BenchError, Contender, Missing
from tools.bench.profiles import PROFILES

if TYPE_CHECKING:
    from tools.bench.load import Sample
    from tools.bench.profiles import Profile

POST = PROFILES["post"]


class Load:
    """Counts its turns, and fails for ``name`` at its ``turn``."""

    def __init__(self, name: str = "", turn: int = 0) -> None:
        self.asked: list[str] = []
        self._fails = (name, turn)

    def measure(self, proxy: Contender, profile: Profile, seconds: float, tag: str) -> Sample:
        self.asked.append(proxy.name)
        if (proxy.name, self.asked.count(proxy.name)) == self._fails:
            raise BenchError(f"{proxy.name}: an answer is not 200:\nits log")
        return SAMPLE


def bench(load: Load, *, named: bool = False) -> tuple[Bench, list[str]]:
    said: list[str] = []
    wanted = Wanted(("nginx", "envoy", OURS), ("post",), rounds=3, seconds=1.0, named=named)
    made = Bench(wanted, said.append)
    made._load = load  # type: ignore[assignment]
    return made, said


def measured(made: Bench) -> dict[str, int]:
    made._profile(POST, [Contender(name, 1, 0, "") for name in ("nginx", "envoy", OURS)])
    return {name: len(rounds) for name, rounds in made.run.samples["post"].items()}


def test_rounds_turn() -> None:
    made, _ = bench(load := Load())
    assert measured(made) == {"nginx": 3, "envoy": 3, OURS: 3}
    assert [load.asked[start] for start in (3, 6, 9)] == ["nginx", "envoy", OURS]  # after one turn to warm up


@pytest.mark.parametrize("turn", [1, 2, 4])
def test_a_run_goes_on_without_one_that_fails(turn: int) -> None:
    made, said = bench(load := Load("envoy", turn))
    assert measured(made) == {"nginx": 3, OURS: 3}
    assert made.run.skipped == {"envoy in post": "envoy: an answer is not 200"}
    assert load.asked.count("envoy") == turn
    assert "without envoy in post: envoy: an answer is not 200:\nits log" in said


def test_ours_may_not_fail_but_a_build_may_be_missing() -> None:
    made, _ = bench(Load(OURS, 2))
    with pytest.raises(BenchError, match="warmroute: an answer"):
        measured(made)
    made._without("warmroute-compiled", "warmroute-compiled", Missing("make compiled"))
    assert made.run.skipped == {"warmroute-compiled": "make compiled"}


def test_one_asked_for_by_name_may_not_fail() -> None:
    made, _ = bench(Load("nginx", 3), named=True)
    with pytest.raises(BenchError, match="nginx"):
        measured(made)
