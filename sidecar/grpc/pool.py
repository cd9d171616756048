"""HTTP/2 connections to workers: one pool per endpoint, many calls on each connection."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult
from sidecar.grpc.upstream import WorkerConnection
from sidecar.telemetry.page import Scalar
from sidecar.tls.material import HTTP2
from sidecar.upstreams.pool import OUR_FAULT, lifetime_s, split_address

if TYPE_CHECKING:
    from sidecar.faults.call_link import CallLink
    from sidecar.grpc.call import Call
    from sidecar.grpc.mirrors import CallCopy
    from sidecar.grpc.plane import GrpcPlane
    from sidecar.settings import Limits, Timeouts
    from sidecar.tls.client import UpstreamGate

MOST_CONNECTIONS: Final = 64
"""Connections of one pool, fewer where ``limits.connections_per_endpoint`` says so. Calls beyond what they take
wait, at most so many:"""
MOST_QUEUED: Final = 1024
SECURE: Final = "grpcs://"


class WorkerPool:
    """One endpoint's connections. Lives in the endpoint's ``shell`` slot, as an HTTP endpoint's pool does."""

    def __init__(self, plane: GrpcPlane, id: str, address: str) -> None:  # noqa: A002
        self.id = id
        self._address = address
        self.authority = (address.partition("://")[2].rstrip("/") or "localhost").encode()
        self._plane = plane
        self.loop = plane.shared.loop
        self.clock = plane.clock
        self.flusher = plane.flusher
        self.connections: list[WorkerConnection] = []
        self.lingering: dict[WorkerConnection, float] = {}
        self.queue: deque[Call | CallCopy | CallLink] = deque()
        self._opening = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.row = plane.shared.page.endpoint_row(id)
        self.closed = False
        self.sent_bytes = 0  # always: what callers get is counted at their connections
        self.head_bytes: int
        self.fields: int
        self.calls_each: int
        self.configure(plane.limits, plane.shared.timeouts)

    # --- what the plane counts ---------------------------------------------------------------------------------------

    @property
    def pooled(self) -> int:
        """Idle connections."""
        return sum(not connection.streams for connection in self.connections)

    @property
    def open_connections(self) -> list[WorkerConnection]:
        """All of them."""
        return self.connections

    # --- calls -------------------------------------------------------------------------------------------------------

    def submit(self, call: Call | CallCopy | CallLink, now: float) -> None:
        """Send a call on a connection that has room, or have one made and let it wait."""
        if not self.queue:
            for connection in self.connections:
                if connection.room(self.calls_each):
                    call.attached(connection)
                    return
        if len(self.queue) >= MOST_QUEUED:
            call.attempt_failed(AttemptResult.CANCELLED, f"{MOST_QUEUED} calls wait for a connection")
            return
        call.wanted = True
        self.queue.append(call)
        self.grow()

    def withdraw(self, call: Call | CallCopy | CallLink) -> None:
        """A call waits no longer."""
        call.wanted = False
        self.queue.remove(call)

    def serve(self) -> None:
        """Send waiting calls on connections that have room."""
        for connection in self.connections:
            while self.queue and connection.room(self.calls_each):
                call = self.queue.popleft()
                call.wanted = False
                try:
                    call.attached(connection)
                except Exception as error:  # noqa: BLE001  one call's end
                    call.crashed(error)

    def grow(self) -> None:
        """Open connections for the calls that wait, as many as they need."""
        usable = sum(not (c.going or c.ended) for c in self.connections)
        unready = self._opening
        if unready * self.calls_each < len(self.queue) and usable + unready < self._most_connections:
            self._opening += 1
            task = self.loop.create_task(self._open(), name=f"connect {self.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        """Open a connection, and wait for the worker's settings: then it is one."""
        plane = self._plane
        connect_s = plane.shared.timeouts.connect_s

        def new() -> WorkerConnection:
            made.append(WorkerConnection(self))
            return made[-1]

        made: list[WorkerConnection] = []  # whatever becomes of it: its end may be told to nobody
        connection: WorkerConnection | None = None
        gate: UpstreamGate | None = None
        result, detail, crashed = AttemptResult.CONNECT_REFUSED, "", False
        try:
            host, port, path = split_address(self._address)
            async with asyncio.timeout(connect_s):
                if path is not None:
                    _, connection = await self.loop.create_unix_connection(new, path)
                elif self._address.startswith(SECURE):
                    if plane.shared.upstream_tls is None:
                        raise ValueError("there is no TLS to workers here")
                    gate = plane.shared.upstream_tls(HTTP2)
                    connection = await gate.connect(self.id, new, host, port, plane.shared.names.connect)
                else:
                    _, connection = await plane.shared.names.connect(new, host, port)
                while not connection.ready and not connection.ended:
                    await connection.settled.wait()
            plane.shared.count(Scalar.UPSTREAM_CONNECTIONS_TOTAL)
            if not connection.ready or (connection.ended and connection.why):  # it went in the turn in which it came
                detail = connection.why or "closed as soon as it was made"
                if gate is not None and connection.cut and not connection.ready:  # servers speak first
                    gate.failed(self.id, f"{detail}: a worker that refuses our certificate may do so without a word")
        except TimeoutError:
            result, detail = AttemptResult.CONNECT_TIMEOUT, f"no connection with its settings in {connect_s} s"
        except (OSError, ValueError) as error:  # ValueError: what a store told us is no address, or no name
            ours = isinstance(error, OSError) and error.errno in OUR_FAULT
            result = AttemptResult.CANCELLED if ours else AttemptResult.CONNECT_REFUSED
            detail = str(getattr(error, "strerror", None) or error)
        except Exception as error:  # noqa: BLE001  the end of what waits here; a task would keep it to itself
            self.loop.call_exception_handler({"message": "connecting to a worker crashed", "exception": error})
            result, detail, crashed = AttemptResult.CANCELLED, "an error of warmroute's own", True
        finally:
            self._opening -= 1
        if not detail:
            self.serve()
            if connection is not None:
                if self.closed:
                    connection.close()
                if self.queue and (connection.streams or connection.going):
                    self.grow()
            return
        if connection is not None:
            connection.going = True
            connection.transport.abort()
        for one in made:
            if one in self.connections:
                self.connections.remove(one)
        self._fail_waiting(result, detail, crashed=crashed)

    def _fail_waiting(self, result: AttemptResult, detail: str, *, crashed: bool) -> None:
        """No connection was made: what waits for one is told, unless another one still serves."""
        if self._opening or any(c.ready and not c.going for c in self.connections):
            return
        waiting, self.queue = self.queue, deque()
        for call in waiting:
            call.wanted = False
            try:
                if crashed:
                    call.broken()
                    continue
                call.attempt_failed(result, detail)
            except Exception as error:  # noqa: BLE001
                call.crashed(error)

    # --- connections -------------------------------------------------------------------------------------------------

    def retire_at(self) -> float:
        """Return when a connection made now is too old."""
        shared = self._plane.shared
        return self.clock() + lifetime_s(shared.timeouts.upstream_connection_age_s, shared.rng)

    def became_ready(self, connection: WorkerConnection) -> None:
        """A new connection's settings came, or will never."""
        connection.settled.set()

    def forget(self, connection: WorkerConnection, why: str) -> None:
        """A connection is of no use any more."""
        if connection in self.connections:
            self.connections.remove(connection)
        if not connection.ready:
            connection.why = why
            connection.settled.set()
        if self.queue:
            self.grow()

    def sweep(self, now: float, seconds: float) -> None:
        """Close what has been idle for too long, cut off what lingers."""
        idle_s = self._plane.shared.timeouts.upstream_keep_alive_s
        for connection in list(self.connections):
            connection.quieten(seconds, now)
            connection.look_for_life(now)
            idle = connection.ready and not connection.streams and now - connection.idle_since > idle_s
            if idle or now >= connection.retire_at:
                connection.close()
        for connection, until in list(self.lingering.items()):
            if now >= until or connection.transport.is_closing():
                del self.lingering[connection]
                connection.transport.abort()

    def at_rest(self) -> bool:
        """Return whether nothing is left here that a sweep would have to look at."""
        return not (self.connections or self.lingering or self.queue or self._opening)

    def configure(self, limits: Limits, timeouts: Timeouts) -> None:
        """Go by these limits from the next connection on; the times are read where they are needed."""
        self.head_bytes, self.fields = limits.head_bytes, limits.fields
        self.calls_each = limits.calls_per_connection
        self._most_connections = min(MOST_CONNECTIONS, limits.connections_per_endpoint or MOST_CONNECTIONS)

    def expire(self, now: float) -> None:
        """Nothing: the sweep does it."""

    def shed(self) -> None:
        """Close the idle connections: calls share those that are left."""
        for connection in list(self.connections):
            if connection.ready and not connection.streams:
                connection.close()

    def close(self) -> None:
        """Close idle connections; busy ones end with their calls, and are looked after until then."""
        self.closed = True
        self._plane.departed.add(self)
        for connection in list(self.connections):
            connection.close()
