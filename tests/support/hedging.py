"""A model whose requests are hedged on the data path: a first try goes to the first origin, its hedge to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from router.policy import HedgingPolicy, ModelPolicy, Policies
from sidecar.settings import Limits, ModelTimeouts, Timeouts
from sidecar.telemetry.page import Scalar
from tests.support.data_path import POLICIES, DataPath, Origin, Refusing, Script, on_data_path, says
from tests.support.held_origin import held
from tests.support.wires import Client, Message, OriginConnection, answer, post

DELAY_S = 0.05
LONG_S = 1.0
"""A delay within which a worker that answers at once has answered, however busy this machine is."""

HEDGING = Policies(
    retry=POLICIES.retry,
    quarantine=POLICIES.quarantine,
    hedging=HedgingPolicy(min_delay_ms=DELAY_S * 1000, minimum_samples=1),
)

UNHURRIED = replace(HEDGING, hedging=HedgingPolicy(min_delay_ms=LONG_S * 1000, minimum_samples=1))
MODELS = (ModelPolicy("m", idempotent=True, default=True, hedge=True),)

Scenario = Callable[[DataPath, Client], Awaitable[None]]


def hedged(
    *scripts: Script | Origin | type[Refusing],
    policies: Policies = HEDGING,
    timeouts: Timeouts | None = None,
    limits: Limits | None = None,
    model_timeouts: ModelTimeouts | None = None,
) -> Callable[[Scenario], Callable[[], None]]:
    """Make a test of a scenario on a model that is hedged after ``DELAY_S``; the first try goes to the first origin."""

    def decorate(scenario: Scenario) -> Callable[[], None]:
        @on_data_path(
            *scripts,
            policies=policies,
            models=MODELS,
            timeouts=timeouts,
            limits=limits,
            model_timeouts=model_timeouts,
        )
        async def test(path: DataPath) -> None:
            measured(path)
            await scenario(path, await path.connect())

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


def measured(path: DataPath) -> None:
    """Have the route measured, so that its delay is the least."""
    route = path.cluster.route("m")
    assert route is not None
    assert route.hedging is not None
    path.cluster.waited(route, 0.001)
    route.hedging.settle(time.monotonic())
    assert route.hedging.delay_s == path.cluster.policies.hedging.min_delay_ms / 1000


async def answered(path: DataPath, client: Client, first: str, index: int = 0) -> Message:
    """Return what a caller gets whose one try has ended as ``first`` says before the other, ``index``, may answer."""
    await path.until(lambda: path.results == {first: 1}, f"the other try ended: {first}")
    held(path, index).allowed.release()
    return await client.answer()


def hedges(path: DataPath) -> tuple[int, int, int]:
    """Return how many were sent, won, denied."""
    members = (Scalar.HEDGES_TOTAL, Scalar.HEDGES_WON_TOTAL, Scalar.HEDGES_DENIED_TOTAL)
    sent, won, denied = (path.scalar(member) for member in members)
    return sent, won, denied


def after(delay_s: float, *pieces: bytes) -> Script:
    """Answer each request after ``delay_s``, the pieces one by one."""

    async def script(origin: OriginConnection) -> None:
        while True:
            await origin.request()
            await asyncio.sleep(delay_s)
            for piece in pieces:
                await origin.send(piece)
                await asyncio.sleep(0.005)

    return script


FAST = says(answer(b"fast"))


async def waits_then_resets(origin: OriginConnection) -> None:
    """Take a request, and reset its connection once a hedge has been sent."""
    await origin.request()
    await asyncio.sleep(2 * DELAY_S)
    origin.reset()


async def both_asked(path: DataPath, client: Client) -> None:
    """Make a request, and wait until both tries have been sent."""
    await client.send(post(b"hello"))
    await path.until(lambda: path.in_flight == 2, "both in flight")
    await path.until(
        lambda: all(any(one.exchange for one in path.pool(index).open_connections) for index in (0, 1)), "both asked"
    )
