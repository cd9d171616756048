"""What is played, and who plays it. Each contender of a profile gets the same requests to workers that are the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tools.restart.play import Plan, roll
from tools.restart.setups import SETUPS, Setup, warmroute

if TYPE_CHECKING:
    from tools.restart.play import Script, Workers

NEVER = 1_000_000
"""Calls that a breaker needs which is never to open."""
OFF = {
    "breaker": {"minimum_calls": NEVER, "hinted_minimum_calls": NEVER, "surge": False},
    "retry": {"attempts": 0},
    "outlier": {"enabled": False},
}
_SHIPPED = {setup.name: setup for setup in SETUPS}


@dataclass(frozen=True)
class Contender:
    """One of those that are compared: the letter that tables and plots have for it, and what it is."""

    key: str
    about: str
    setup: Setup


@dataclass(frozen=True)
class Profile:
    """One comparison. The last contender is the one that is judged, beside the others.

    ``counted_from_s``: of requests before it only a plot tells. ``told``: the quantile that the plot has over time.
    """

    name: str
    title: str
    plan: Plan
    contenders: tuple[Contender, ...]
    script: Script
    bands: tuple[tuple[float, float], ...]
    counted_from_s: float = 0.0
    told: float = 0.99

    def sized(self, period_s: float) -> Profile:
        """Return the same with another time between two restarts."""
        return PROFILES[self.name](replace(self.plan, period_s=period_s))


async def break_last(workers: Workers, plan: Plan) -> None:
    """Have the last worker be broken from the end of the lead on."""
    await asyncio.sleep(plan.lead_s)
    workers.fail(workers.ports[-1])
    await asyncio.sleep(plan.duration_s - plan.lead_s)


def coldstart(plan: Plan) -> Profile:
    """Each worker is killed and started again in turn, then one is taken away for a while and added cold."""
    return Profile(
        "coldstart",
        "Cold starts under load",
        plan,
        (
            Contender(
                "a", "HAProxy, round robin, knows nothing of the workers' warmth", _SHIPPED["HAProxy, roundrobin"]
            ),
            Contender("b", "HAProxy, round robin, active health checks", _SHIPPED["HAProxy, roundrobin, checks"]),
            Contender("c", "warmroute, preloading and warm routing", _SHIPPED["warmroute"]),
        ),
        roll,
        tuple((one.at_s, one.at_s + one.down_s + plan.load_s) for one in plan.restarts),
    )


def dependency(plan: Plan) -> Profile:
    """One worker is broken from a moment on: errors, slow answers, and a readiness that says nothing of it."""
    bare = Setup("warmroute, bare", checks=True, argv=warmroute(warmup=True, policies=OFF))
    return Profile(
        "dependency",
        "One failing dependency",
        plan,
        (
            Contender("a", "HAProxy, round robin, active health checks", _SHIPPED["HAProxy, roundrobin, checks"]),
            Contender("b", "warmroute without breaker, retry and outliers", bare),
            Contender("c", "warmroute as shipped", _SHIPPED["warmroute"]),
        ),
        break_last,
        ((plan.lead_s, plan.duration_s),),
        counted_from_s=plan.lead_s,
        told=0.95,
    )


PROFILES = {"coldstart": coldstart, "dependency": dependency}
WHOLE = (
    coldstart(Plan(period_s=9.5, absent_s=4.0, spread=0.5)),
    dependency(Plan(load_s=0.2, lead_s=4.0, period_s=3.0, spread=0.5)),
)
"""What ``make headline`` plays."""
ROUNDS = 2
