"""The data path on real sockets in one loop: scripted origins, a plane with its cluster, raw clients, a metrics page.

``@on_data_path(origin, ...)`` turns ``async def test(path)`` into a test: it runs on uvloop, bounded in time, and when
the scenario is over everything must have come to rest (see :meth:`DataPath.rest`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec

import uvloop

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Event, Replica, Tick
from router.outcomes import AttemptResult, Outcome
from router.policy import ModelPolicy, Policies, QuarantinePolicy, RetryPolicy
from sidecar.faults.injector import Injector
from sidecar.faults.rules import FaultRule
from sidecar.http1.caller import ANY_LISTENER
from sidecar.http1.classifying import shape_step
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.forwarding import ListenerRules
from sidecar.http1.ladders import Ladders
from sidecar.http1.plane import Plane
from sidecar.http1.versions import version_step
from sidecar.settings import Admission, Limits, Model, ModelTimeouts, Timeouts
from sidecar.telemetry.page import BUCKETS_S, MODEL_OUTCOMES, Page, Scalar, create
from tests.support.fleet import first_only
from tests.support.loops import turns
from tests.support.wires import STEP_S, Client, Message, OriginConnection, answer

P = ParamSpec("P")
SCENARIO_S = 15.0
SWEEP_S = 0.01
EARLY_S = 0.002
"""What a timer of an event loop may be early: it counts whole milliseconds, as does what it is set to."""
BEAT_S = 0.01
GONE_BEATS = 10
"""Within a tenth of a second (see :attr:`DataPath.beats`) a worker must know that nobody waits for it any more."""
POLICIES = Policies(
    retry=RetryPolicy(backoff_min_ms=1.0, backoff_max_ms=2.0),
    quarantine=QuarantinePolicy(base_s=60.0, max_s=60.0, jitter_ratio=0.0),
)
"""A quarantine outlasts the test: on a busy machine a shorter one ends in its midst, and who failed is tried again."""
BRIEF = replace(POLICIES, quarantine=QuarantinePolicy(base_s=0.05, max_s=0.05, jitter_ratio=0.0))
"""For tests that wait for a quarantine's end."""


class First(random.Random):
    """Always 0: the shortest back-off. The first endpoint by id is drawn anyway (``first_only``)."""

    def random(self) -> float:
        return 0.0


Script = Callable[[OriginConnection], Awaitable[None]]


async def echo(origin: OriginConnection) -> None:
    """Answer every request with its body."""
    while True:
        await origin.send(answer((await origin.request()).body))


def says(*answers: bytes, close: bool = False) -> Script:
    """Answer request after request with ``answers``, the last one again and again; or close after one."""

    async def script(origin: OriginConnection) -> None:
        turn = 0
        while True:
            await origin.request()
            await origin.send(answers[min(turn, len(answers) - 1)])
            turn += 1
            if close:
                return

    return script


async def resets(origin: OriginConnection) -> None:
    """Read a request, then reset."""
    await origin.request()
    origin.reset()


async def silent(origin: OriginConnection) -> None:
    """Take everything, answer nothing."""
    await origin.reader.read()


async def deaf(origin: OriginConnection) -> None:
    """Read nothing."""
    await asyncio.sleep(SCENARIO_S)


class Origin:
    """A worker played by a script per connection; it closes when its script returns."""

    def __init__(self, script: Script, path: str = "", *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.path = path
        self.tls = tls
        self.connections: list[OriginConnection] = []
        self.ended: list[float] = []  # when connections ended, loop time
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address = ""

    async def start(self) -> None:
        if self.path:
            self._server = await asyncio.start_unix_server(self._serve, self.path, limit=32768)
            self.address = f"unix:{self.path}"
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=32768, ssl=self.tls)
            scheme = "http" if self.tls is None else "https"
            self.address = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def requests(self) -> list[Message]:
        return [message for connection in self.connections for message in connection.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = OriginConnection(reader, writer)
        self.connections.append(connection)
        try:
            await self.script(connection)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.ended.append(asyncio.get_running_loop().time())
            writer.close()
            self._tasks.discard(task)

    async def stop(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        async with asyncio.timeout(STEP_S):
            await asyncio.gather(*tasks, return_exceptions=True)


class Refusing(Origin):
    """A port that refuses."""

    def __init__(self) -> None:
        super().__init__(silent)
        self._socket = socket.socket()

    async def start(self) -> None:
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def stop(self) -> None:
        self._socket.close()


class Full(Refusing):
    """A port whose accept queue is full: connecting neither succeeds nor fails."""

    async def start(self) -> None:
        await super().start()
        self._socket.listen(0)
        self._fillers = [socket.socket() for _ in range(4)]
        for filler in self._fillers:
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(self._socket.getsockname())

    async def stop(self) -> None:
        for filler in self._fillers:
            filler.close()
        await super().stop()


@dataclass
class DataPath:
    """What a scenario works with. Endpoints are ``o0``, ``o1``, … in the order of the origins; all hold model ``m``.

    ``beats``: how many hundredths of a second have gone by in its loop, where however long a busy machine holds that up
    is one.
    """

    plane: Plane
    origins: list[Origin]
    port: int
    errors: list[dict[str, Any]]
    shared: list[Event]
    clients: list[Client] = field(default_factory=list)
    beats: int = 0

    @property
    def origin(self) -> Origin:
        return self.origins[0]

    @property
    def cluster(self) -> Cluster:
        return self.plane.cluster

    async def connect(self, *, receive_buffer: int = 0) -> Client:
        """Open a caller's connection; ``receive_buffer`` bounds what its kernel takes unread."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=sock, limit=4 << 20 if not receive_buffer else 4096))
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], Any], what: str, within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}; {self.outcomes} {self.results}"
            await asyncio.sleep(0.002)

    def inject(self, *rules: FaultRule) -> Injector:
        """Have faults in force, these and no others."""
        injector = self.plane.faults = self.plane.faults or Injector(self.plane)
        injector.put(rules)
        return injector

    # --- what was counted ---------------------------------------------------------------------------------------

    def scalar(self, member: Scalar) -> int:
        return int(self.plane.words[Page.scalar(member)])

    @property
    def outcomes(self) -> dict[str, int]:
        """How requests ended, over all models, without zeros."""
        self.plane.settle(time.monotonic())
        counted: Counter[str] = Counter()
        for _, row in self.plane.page.models():
            for index, outcome in enumerate(Outcome):
                counted[outcome.value] += int(self.plane.words[row + index])
        return dict(+counted)

    @property
    def results(self) -> dict[str, int]:
        """How attempts ended, over all endpoints, without zeros."""
        self.plane.settle(time.monotonic())
        counted: Counter[str] = Counter()
        for _, row in self.plane.page.endpoints():
            for index, result in enumerate(AttemptResult):
                counted[result.value] += int(self.plane.words[row + index])
        return dict(+counted)

    def timed_requests(self) -> int:
        """Return how many requests the duration histograms hold."""
        self.plane.settle(time.monotonic())
        first, last = MODEL_OUTCOMES, MODEL_OUTCOMES + len(BUCKETS_S) + 1
        return sum(sum(self.plane.words[row + first : row + last]) for _, row in self.plane.page.models())

    @property
    def in_flight(self) -> int:
        return sum(endpoint.in_flight for endpoint in self.cluster.endpoints.values())

    def pool(self, index: int = 0) -> Any:
        """Return the pool of endpoint ``index``."""
        return self.cluster.endpoints[f"o{index}"].shell

    async def rest(self) -> None:
        """Everything came to rest: nobody is connected, nothing is in flight, all that was counted once adds up."""
        for client in self.clients:
            client.close()
        await self.until(lambda: not self.plane.connections, "callers' connections gone")
        await self.until(lambda: not self.in_flight, "attempts in flight")
        assert not any(endpoint.in_flight for endpoint in self.cluster.departed)
        pools = [e.shell for e in self.cluster.endpoints.values() if e.shell is not None]
        await self.until(lambda: not any(pool._tasks for pool in pools), "connects under way")
        assert self.timed_requests() == sum(self.outcomes.values())
        for pool in pools:
            assert all(connection.exchange is None for connection in pool.open_connections)
            assert len(pool.idle) == len(pool.open_connections)
            pool.close()
        await self.until(lambda: not any(pool.open_connections for pool in pools), "pools closed")
        assert self.errors == [], self.errors


def hold(path: DataPath, index: int, *replicas: Replica) -> None:
    """Have endpoint ``index`` hold other replicas than it did."""
    record = replace(path.cluster.endpoints[f"o{index}"].record, replicas=replicas)
    now = path.plane.clock()
    path.cluster.apply(EndpointSeen(record, now), now)


@contextlib.asynccontextmanager
async def data_path(
    origins: list[Origin],
    *,
    limits: Limits,
    timeouts: Timeouts,
    policies: Policies,
    models: tuple[ModelPolicy, ...],
    replicas: tuple[Replica, ...],
    rules: ListenerRules,
    model_timeouts: ModelTimeouts | None,
    admission: Admission,
    configured: tuple[Model, ...],
    sweep: bool,
    ladders: tuple[Model, ...],
    held: tuple[tuple[Replica, ...], ...],
) -> AsyncIterator[DataPath]:
    """Run a plane behind a listener in front of ``origins``."""
    loop = asyncio.get_running_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    fd = create("test")
    page = Page(fd)
    page.begin(os.getpid(), time.monotonic())
    cluster = Cluster(policies, models, time.monotonic(), picker=first_only)
    shared: list[Event] = []
    degrading = Ladders(ladders, policies.ladder, page, time.monotonic(), Admission())
    plane = Plane(
        cluster=cluster,
        page=page,
        loop=loop,
        clock=time.monotonic,
        rng=First(1),
        limits=limits,
        timeouts=timeouts,
        share=shared.extend,
        model_timeouts={} if model_timeouts is None else {model.name: model_timeouts for model in models},
        step_makers=(version_step, shape_step, degrading.maker),
    )
    plane.ladders = degrading

    plane.admission.configure(admission, configured)

    async def tick() -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            cluster.apply(Tick(), time.monotonic())
            plane.admission.tick(time.monotonic())
            plane.hangups.look()
            plane.sweep(time.monotonic())

    ticker = loop.create_task(tick(), name="tick") if sweep else None
    server = await loop.create_server(lambda: DownstreamConnection(plane, rules), "127.0.0.1", 0)
    for index, origin in enumerate(origins):
        await origin.start()
        here = held[index] if held else replicas
        record = EndpointRecord(f"o{index}", origin.address, replicas=here, static=True)
        cluster.apply(EndpointSeen(record, time.monotonic()), time.monotonic())
    path = DataPath(plane, origins, server.sockets[0].getsockname()[1], errors, shared)

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            path.beats += 1

    beating = loop.create_task(beat(), name="beat")
    try:
        yield path
        await path.rest()
    finally:
        server.close()
        beating.cancel()
        if ticker is not None:
            ticker.cancel()
        for client in path.clients:
            client.writer.transport.abort()
        for origin in origins:
            await origin.stop()
        await turns(1)
        page.close()
        os.close(fd)


def on_data_path(
    *scripts: Script | Origin | type[Refusing],
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    policies: Policies = POLICIES,
    idempotent: bool = False,
    default: bool = True,
    models: tuple[ModelPolicy, ...] | None = None,
    replicas: tuple[Replica, ...] = (Replica("m"),),
    rules: ListenerRules = ANY_LISTENER,
    model_timeouts: ModelTimeouts | None = None,
    admission: Admission | None = None,
    configured: tuple[Model, ...] = (),
    sweep: bool = True,
    ladders: tuple[Model, ...] = (),
    held: tuple[tuple[Replica, ...], ...] = (),
) -> Callable[[Callable[Concatenate[DataPath, P], Awaitable[None]]], Callable[P, None]]:
    """Make a test of a scenario. ``scripts``: an origin each, by its script, its class or itself.

    ``ladders`` is what configuration says of models that degrade, ``held`` what each origin holds where it is not the
    same ``replicas``.
    ``configured`` is what the queue goes by of models; what the cluster does stands in ``models``.
    """

    def decorate(scenario: Callable[Concatenate[DataPath, P], Awaitable[None]]) -> Callable[P, None]:
        async def run(*args: P.args, **kwargs: P.kwargs) -> None:
            origins = [_origin(script) for script in scripts]
            async with (
                asyncio.timeout(SCENARIO_S),
                data_path(
                    origins,
                    limits=limits or Limits(),
                    timeouts=timeouts or Timeouts(),
                    policies=policies,
                    models=models or (ModelPolicy("m", idempotent=idempotent, default=default),),
                    replicas=replicas,
                    rules=rules,
                    model_timeouts=model_timeouts,
                    admission=admission or Admission(),
                    configured=configured,
                    sweep=sweep,
                    ladders=ladders,
                    held=held,
                ) as path,
            ):
                await scenario(path, *args, **kwargs)

        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run(*args, **kwargs))

        signature = inspect.signature(scenario)
        test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
        test.__qualname__ = scenario.__qualname__
        parameters = [value for name, value in signature.parameters.items() if name != "path"]
        test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return test

    return decorate


def _origin(given: Script | Origin | type[Refusing]) -> Origin:
    if isinstance(given, Origin):
        return given
    return given() if isinstance(given, type) else Origin(given)
