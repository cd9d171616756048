"""The listening sockets of one data process: servers on them, and what makes the protocol of a connection."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.channel import Listening
from sidecar.http1.downstream import DownstreamConnection
from sidecar.http1.forwarding import ListenerRules
from sidecar.settings import Protocol
from sidecar.sockets import granted
from sidecar.tls.material import HTTP1, HTTP2

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from sidecar.boot import DataPlan, ListenerFd
    from sidecar.grpc.plane import GrpcPlane
    from sidecar.http1.plane import Plane
    from sidecar.tls.process import ProcessTls

MAX_QUEUED = 65536
"""Most connections taken from an accept queue while closing (the largest backlog there is)."""

_ALPN = {Protocol.HTTP: HTTP1, Protocol.GRPC: HTTP2}


@dataclass(slots=True)
class _Entrance:
    """One listening socket, the server on it, and what makes the protocol of a connection that it accepts."""

    sock: socket.socket
    server: asyncio.Server
    factory: Callable[[], asyncio.Protocol]
    held: ListenerFd
    name: str
    listening: bool


class Entrances:
    """Opens the listeners of a plan, and closes them without losing who waits in their queues.

    ``accepting`` is true from when they are open until they are closed, ``grpc`` the gRPC side of this process, which
    only one with such a listener has.
    """

    def __init__(self, plane: Plane, tls: ProcessTls) -> None:
        self.accepting = False
        self.grpc: GrpcPlane | None = None
        self._plane = plane
        self._loop = plane.loop
        self._tls = tls
        self._entrances: list[_Entrance] = []

    async def open(self, plan: DataPlan, opened: list[ListenerRules]) -> None:
        """Accept connections by a plan's listeners, whose rules are added to ``opened``, in its order."""
        for held in plan.listeners:
            listener = plan.settings.listeners[held.listener]
            sock = socket.socket(fileno=held.fd)
            sock.setblocking(False)
            name = listener.name or held.address
            rules = ListenerRules(
                listener.default_model,
                trusted_networks=listener.trusted_networks,
                model_header=listener.model_header,
            )
            opened.append(rules)
            factory = self._tls.guard(
                held.listener, name, _ALPN[listener.protocol], self._factory(rules, listener.protocol)
            )
            make = self._loop.create_unix_server if sock.family == socket.AF_UNIX else self._loop.create_server
            server = await make(
                factory, sock=sock, backlog=held.backlog or listener.backlog, start_serving=not held.later
            )
            self._entrances.append(_Entrance(sock, server, factory, held, name, not held.later))
        self.accepting = True

    async def listen_later(self) -> None:
        """Listen on what was opened without."""
        for entrance in self._entrances:
            if not entrance.listening:
                entrance.listening = True
                await entrance.server.start_serving()

    def listening(self, plan: DataPlan) -> Iterator[Listening]:
        """Yield what the kernel grants each listener that listens, as the control process is told."""
        for entrance in self._entrances:
            if entrance.listening:
                listener = plan.settings.listeners[entrance.held.listener]
                grant = granted(entrance.sock, listener.backlog, listener.fastopen_queue)
                yield Listening(plan.index, entrance.name, entrance.held.address, grant.backlog, grant.fastopen_queue)

    async def close(self) -> int:
        """Close the listeners, but first take what already waits in their queues: those callers were accepted.

        Returns how many.
        """
        waiting: list[tuple[socket.socket, Callable[[], asyncio.Protocol]]] = []
        for entrance in self._entrances:
            for _ in range(MAX_QUEUED):
                try:
                    connection, _ = entrance.sock.accept()
                except OSError:  # nobody waits, or no descriptor is left
                    break
                connection.setblocking(False)
                waiting.append((connection, entrance.factory))
        for entrance in self._entrances:
            entrance.server.close()
        taken = 0
        for connection, factory in waiting:
            try:
                await self._loop.connect_accepted_socket(factory, connection)
                taken += 1
            except OSError:  # that caller has gone meanwhile
                connection.close()
        self.accepting = False
        return taken

    def _factory(self, rules: ListenerRules, protocol: Protocol) -> Callable[[], asyncio.Protocol]:
        if protocol is Protocol.GRPC:
            from sidecar.grpc.downstream import CallerConnection

            grpc = self._with_grpc()
            return lambda: CallerConnection(grpc, rules)
        return lambda: DownstreamConnection(self._plane, rules)

    def _with_grpc(self) -> GrpcPlane:
        """Return the gRPC side of this process, made with its first such listener."""
        if self.grpc is None:
            from sidecar.grpc.plane import GrpcPlane

            self.grpc = GrpcPlane(self._plane)
        return self.grpc
