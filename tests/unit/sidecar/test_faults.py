"""Injected faults: which rule strikes, and what it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.channel import FaultRule
from sidecar.faults import KINDS, Fault, FaultAction, strike

NOW = 100.0


def rule(**fields: object) -> FaultRule:
    return FaultRule(**({"id": "f", "kind": "abort", "ratio": 1.0, "until": 200.0} | fields))  # type: ignore[arg-type]


def never() -> float:
    raise AssertionError("no rule applies: nothing may be drawn")


def draws(*numbers: float) -> Callable[[], float]:
    return iter(numbers).__next__


@pytest.mark.parametrize(
    ("kind", "action"),
    [("abort", FaultAction(status=429)), ("delay", FaultAction(delay_s=0.25))],
    ids=["abort", "delay"],
)
def test_each_kind_does_one_thing(kind: str, action: FaultAction) -> None:
    assert strike((rule(kind=kind, status=429, delay_ms=250.0),), "m", "e", NOW, draws(0.0)) == action


def test_the_kinds_there_are() -> None:
    assert sorted(KINDS) == ["abort", "delay"]


@pytest.mark.parametrize(
    "fields", [{"until": NOW}, {"until": 1.0}, {"model": "other"}, {"endpoint": "other"}, {"kind": "unknown"}]
)
def test_a_rule_out_of_its_time_or_scope_draws_no_number(fields: dict[str, object]) -> None:
    assert strike((rule(**fields),), "m", "e", NOW, never) is None


def test_a_rule_strikes_where_the_number_is_under_its_ratio() -> None:
    half = (rule(ratio=0.5),)
    assert strike(half, "m", "e", NOW, draws(0.499)) is not None
    assert strike(half, "m", "e", NOW, draws(0.5)) is None
    assert strike((rule(ratio=0.0),), "m", "e", NOW, draws(0.0)) is None


def test_the_first_rule_that_strikes_decides() -> None:
    rules = (
        rule(until=1.0, status=1),
        rule(ratio=0.5, status=2),
        rule(model="m", endpoint="e", status=3),
        rule(status=4),
    )
    assert strike(rules, "m", "e", NOW, draws(0.9, 0.0)) == FaultAction(status=3)
    assert strike((), "m", "e", NOW, never) is None


def test_a_new_kind_is_one_class_and_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowAbort:
        """Waits, then answers."""

        def act(self, rule: FaultRule) -> FaultAction:
            return FaultAction(delay_s=rule.delay_ms / 1000, status=rule.status)

    fault: Fault = SlowAbort()
    monkeypatch.setitem(KINDS, "slow_abort", fault)
    struck = strike((rule(kind="slow_abort", delay_ms=10.0),), "m", "e", NOW, draws(0.0))
    assert struck == FaultAction(delay_s=0.01, status=503)
