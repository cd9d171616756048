"""The data path by hand: both connection classes on fake transports, a loop that runs when told, time that stands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Event, Replica
from router.outcomes import AttemptResult, Outcome
from router.policy import HedgingPolicy, ModelPolicy, Policies
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.forwarding import VIA
from sidecar.http1.plane import Plane
from sidecar.http1.steps import StepMaker
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Page
from sidecar.upstreams.connection import UpstreamConnection
from sidecar.upstreams.pool import Upstream
from tests.support.fake_transport import FakeTransport
from tests.support.pages import begun_page


class HandLoop:
    """The few things that the data path asks of a loop, done when the test says so. Connections stand at once.

    The next ``refusals`` of them are refused.
    """

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.errors: list[dict[str, Any]] = []
        self.connected: list[FakeTransport] = []
        self.refusals = 0
        self._tasks = asyncio.new_event_loop()  # for nothing but coroutines that never wait

    def close(self) -> None:
        self._tasks.close()

    def create_task(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(coroutine, name=name)
        self._tasks.run_until_complete(task)
        return task

    async def create_connection(
        self, new: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[FakeTransport, asyncio.Protocol]:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionRefusedError
        transport, protocol = FakeTransport(), new()
        self.connected.append(transport)
        protocol.connection_made(transport)
        return transport, protocol

    async def getaddrinfo(self, host: str, port: int | None, **_: object) -> list[tuple[Any, ...]]:
        return [(None, None, 0, "", (host, port))]

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> HandTimer:
        timer = HandTimer(callback, arguments)
        self.soon.append((timer.fire, ()))
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run(self) -> None:
        while self.soon:
            callback, arguments = self.soon.pop(0)
            callback(*arguments)


class HandTimer:
    """No more than what every loop's timer can do: uvloop's with no delay has no ``when()``."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback(*self._arguments)


SMALL = Limits(head_bytes=1024, target_bytes=64, fields=8, body_bytes=64, replay_bytes=16, pipelined=4096)


class Bench:
    """One caller's connection in front of two workers, all by hand.

    ``bounded``: requests are hedged (whenever the loop runs), tries have a time, and each worker takes one connection.
    """

    def __init__(
        self,
        page: Page,
        limits: Limits = SMALL,
        *,
        idempotent: bool = True,
        bounded: bool = False,
        step_makers: Sequence[StepMaker] = (),
    ) -> None:
        self.loop = HandLoop()
        self.now = 0.0
        policies = Policies(hedging=HedgingPolicy(minimum_samples=1))
        models = (ModelPolicy("m", idempotent=idempotent, default=True, hedge=bounded), ModelPolicy("n"))
        self.cluster = Cluster(policies, models, 0.0)
        route = self.cluster.route("m")
        if route is not None and route.hedging is not None:
            route.hedging.sample(0.1)
            route.hedging.settle(0.0)
        timeouts = Timeouts()
        if bounded:
            limits = msgspec.structs.replace(limits, connections_per_endpoint=1)
            timeouts = Timeouts(try_s=15.0, total_s=60.0)
        shared: list[Event] = []
        self.plane = Plane(
            cluster=self.cluster,
            page=page,
            loop=self.loop,  # type: ignore[arg-type]
            clock=lambda: self.now,
            rng=random.Random(1),
            limits=limits,
            timeouts=timeouts,
            share=shared.extend,
            step_makers=step_makers,
        )
        for name in ("o0", "o1"):
            record = EndpointRecord(name, "http://a.test:1", replicas=(Replica("m"),), static=True)
            self.cluster.apply(EndpointSeen(record, 0.0), 0.0)
            endpoint = self.cluster.endpoints[name]
            endpoint.shell = Upstream(
                name,
                endpoint.address,
                loop=self.loop,  # type: ignore[arg-type]
                clock=lambda: self.now,
                page=page,
                limits=self.plane.limits,
                timeouts=self.plane.timeouts,
                shapes=self.plane.shapes,
            )
        self.transport = FakeTransport()
        self.connection = DownstreamConnection(self.plane)
        self.connection.connection_made(self.transport)

    @property
    def attempts(self) -> int:
        """Request heads that went to a worker: each has our ``via`` once, and no caller of these tests says it."""
        return sum((transport.written + transport.late).count(VIA) for transport in self.loop.connected)

    @property
    def busy(self) -> list[UpstreamConnection]:
        """Upstream connections that a request waits on."""
        pools = [endpoint.shell for endpoint in self.cluster.endpoints.values()]
        return [one for pool in pools for one in pool.open_connections if one.exchange is not None]

    def outcomes(self) -> int:
        self.plane.settle(self.now)
        return sum(int(self.plane.words[row + i]) for _, row in self.plane.page.models() for i in range(len(Outcome)))

    def results(self) -> int:
        self.plane.settle(self.now)
        rows = [endpoint.shell.row for endpoint in self.cluster.endpoints.values()]
        return sum(int(self.plane.words[row + i]) for row in rows for i in range(len(AttemptResult)))

    def check_rest(self) -> None:
        """Nobody is in flight, all transports were left alone once closed, and nothing crashed."""
        self.loop.run()
        assert self.loop.errors == []
        assert self.transport.late == b""
        assert self.busy == []
        assert sum(endpoint.in_flight for endpoint in self.cluster.endpoints.values()) == 0
        assert not self.plane.connections


@contextmanager
def bench(
    limits: Limits = SMALL, *, idempotent: bool = True, bounded: bool = False, step_makers: Sequence[StepMaker] = ()
) -> Iterator[Bench]:
    with begun_page() as page:
        made = Bench(page, limits, idempotent=idempotent, bounded=bounded, step_makers=step_makers)
        try:
            yield made
        finally:
            made.loop.close()
