"""Connections to workers: one pool per endpoint, kept alive, last in first out."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from router.outcomes import AttemptResult
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.connection import APART, OLD, UpstreamConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.faults.link import Link
    from sidecar.http1.shapes import Shapes
    from sidecar.settings import Limits, Timeouts
    from sidecar.telemetry.page import Page
    from sidecar.tls.client import UpstreamGate
    from sidecar.upstreams.exchanging import Exchange
    from sidecar.upstreams.names import Connect

_NEVER: Final = float("inf")
OUR_FAULT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Connect errors that say nothing of the endpoint: this process or host is out of something."""
CLOSE_STALL_S: Final = 30.0
"""How long a tunnel's worker may take for what was sent before its end."""

MANY: Final = 1 << 62
"""No limit."""

SECURE: Final = "https://"
_PORTS: Final = {"http": "80", "https": "443", "grpc": "80", "grpcs": "443"}


class Upstream:
    """One endpoint's pool. Lives in the endpoint's ``shell`` slot."""

    __slots__ = (
        "_address",
        "_age_s",
        "_connect_s",
        "_connect_to",
        "_connecting",
        "_idle_s",
        "_loop",
        "_max_connections",
        "_page",
        "_rng",
        "_tasks",
        "_tls",
        "clock",
        "closed",
        "id",
        "idle",
        "max_head_bytes",
        "max_idle",
        "open_connections",
        "row",
        "sent_bytes",
        "shapes",
        "taken",
    )

    def __init__(
        self,
        id: str,  # noqa: A002
        address: str,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        page: Page,
        limits: Limits,
        timeouts: Timeouts,
        shapes: Shapes,
        rng: Callable[[], float] | None = None,
        tls: UpstreamGate | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.id = id
        self._connect_to = connect
        self._address = address
        self._loop = loop
        self.clock = clock
        self._page = page
        self.shapes = shapes
        self._rng = rng
        self._tls = tls
        self.idle: list[UpstreamConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: set[UpstreamConnection] = set()
        self.open_connections: set[UpstreamConnection] = set()
        self.row = page.endpoint_row(id)
        self.closed = False
        self.sent_bytes = 0  # of answers, downstream; the plane takes it away once a second
        self.configure(limits, timeouts)

    def configure(self, limits: Limits, timeouts: Timeouts) -> None:
        """Go by these limits and times from now on; idle connections over the new number of them are closed."""
        self._connect_s = timeouts.connect_s
        self._age_s = timeouts.upstream_connection_age_s
        self._idle_s = timeouts.upstream_keep_alive_s
        self.max_idle = limits.pooled_per_endpoint
        self._max_connections = limits.connections_per_endpoint or MANY
        self.max_head_bytes = limits.head_bytes
        while len(self.idle) > self.max_idle:
            self.idle.pop(0).drop()

    @property
    def pooled(self) -> int:
        """Idle connections."""
        return len(self.idle)

    @property
    def full(self) -> bool:
        """True where no further connection may be made: those that stand and those under way are as many as may be."""
        return len(self.open_connections) + len(self._connecting) >= self._max_connections

    def checkout(self, now: float) -> UpstreamConnection | None:
        """Return an idle connection that is fit for a request, or None: then connect.

        One on which anything waits unread, were it an end of file, is not: the loop may not have come to it yet. Asking
        the kernel costs less than half a microsecond (poll(2), no wait).
        """
        idle = self.idle
        since = now - self._idle_s
        while idle:
            connection = idle.pop()
            if (
                connection.idle_since >= since
                and not connection.transport.is_closing()
                and not connection.readable.poll(0)
                and (connection.tls is None or not connection.tls.unread)
            ):
                return connection
            self._count(Scalar.UPSTREAM_STALE_TOTAL)
            connection.drop()
        return None

    @property
    def has_room(self) -> bool:
        """True where a further connection may be made, perhaps in place of an idle one (:meth:`make_room`)."""
        return bool(self.idle) or not self.full

    def make_room(self) -> None:
        """Close an idle connection where no further one may be made."""
        if self.full and self.idle:
            self.idle.pop(0).drop()

    def connect(
        self,
        exchange: Exchange,
        wanted: Callable[[], bool],
        links: Callable[[UpstreamConnection], Link] | None = None,
    ) -> None:
        """Open a connection and attach it to ``exchange``, or pool it where ``wanted`` no longer says so.

        ``links`` makes what is to stand between it and the worker: it is for this request alone then.
        """
        connection = UpstreamConnection(self)
        link: Link | None = None
        if links is not None:
            link = links(connection)
            connection.unfit = APART
        self._connecting.add(connection)
        task = self._loop.create_task(self._open(connection, exchange, wanted, link), name=f"connect {self.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def opened(self, connection: UpstreamConnection) -> None:
        """The connection stands."""
        self._connecting.discard(connection)
        self.open_connections.add(connection)

    def _lost(self, connection: UpstreamConnection) -> None:
        """A connection was not made, or not in time: it may have stood for an instant, and nobody is told its end."""
        self._connecting.discard(connection)
        self.open_connections.discard(connection)

    async def _open(
        self, connection: UpstreamConnection, exchange: Exchange, wanted: Callable[[], bool], link: Link | None
    ) -> None:
        try:
            await self._try_to_open(connection, exchange, wanted, link)
        except Exception as error:  # noqa: BLE001  one request's end; a task would keep it to itself
            exchange.crashed(error)
        finally:
            self._connecting.discard(connection)
            if link is not None:
                link.give_up()

    async def _try_to_open(
        self, connection: UpstreamConnection, exchange: Exchange, wanted: Callable[[], bool], link: Link | None
    ) -> None:
        made: Callable[[], asyncio.Protocol] = connection.itself if link is None else link.itself
        try:
            host, port, path = split_address(self._address)
            async with asyncio.timeout(self._connect_s):
                if link is not None and link.nowhere:
                    link.begin()
                elif path is not None:
                    await self._loop.create_unix_connection(made, path)
                elif self._address.startswith(SECURE):
                    if self._tls is None:
                        raise ValueError("there is no TLS to workers here")
                    await self._tls.connect(self.id, made, host, port, self._connect_to)
                else:
                    await (self._connect_to or self._loop.create_connection)(made, host, port)
        except TimeoutError:
            self._lost(connection)
            if wanted():
                exchange.attempt_failed(
                    AttemptResult.CONNECT_TIMEOUT, f"{self.id}: no connection in {self._connect_s} s"
                )
            return
        except (OSError, ValueError) as error:  # ValueError: what a store told us is no address, or no name
            self._lost(connection)
            if wanted():
                ours = isinstance(error, OSError) and error.errno in OUR_FAULT
                result = AttemptResult.CANCELLED if ours else AttemptResult.CONNECT_REFUSED
                exchange.attempt_failed(result, f"{self.id}: {getattr(error, 'strerror', None) or error}")
            return
        if link is None or not link.nowhere:
            self._count(Scalar.UPSTREAM_CONNECTIONS_TOTAL)
        if not wanted():
            if connection.transport.is_closing() or connection.unfit:
                connection.drop()
            else:
                self.release(connection, self.clock())
        elif connection.transport.is_closing():
            exchange.attempt_failed(AttemptResult.CONNECT_REFUSED, f"{self.id}: closed as soon as it was made")
        else:
            exchange.attached(connection)

    def release(self, connection: UpstreamConnection, now: float) -> None:
        """Take a connection back whose last answer ended cleanly, and which is not closing."""
        idle = self.idle
        if self.closed or len(idle) >= self.max_idle:
            connection.drop()
            return
        if connection.paused:
            connection.resume_reading()
        connection.idle_since = now
        idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is gone."""
        self.open_connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def poisoned(self, connection: UpstreamConnection) -> None:
        """An idle connection said something unasked."""
        self._count(Scalar.UPSTREAM_POISONED_TOTAL)
        self.forget(connection)

    def shed(self) -> None:
        """Close half of the idle connections, the longest idle first."""
        for _ in range((len(self.idle) + 1) // 2):
            self.idle.pop(0).drop()

    def retire_at(self) -> float:
        """Return when a connection made now is too old."""
        return self.clock() + lifetime_s(self._age_s, self._rng)

    def expire(self, now: float) -> None:
        """Close what has been idle for too long (the oldest stand first), and what is too old once it is not in use."""
        idle = self.idle
        while idle and now - idle[0].idle_since > self._idle_s:
            idle.pop(0).drop()
        if self._age_s is None:
            return
        for connection in [one for one in self.open_connections if now >= one.retire_at]:
            if connection in idle:
                idle.remove(connection)
                connection.drop()
            else:
                connection.unfit |= OLD

    def abort_later(self, transport: asyncio.Transport) -> None:
        """Give a closing connection some time for what it still has to send, then end it (no matter where it is)."""
        self._loop.call_later(CLOSE_STALL_S, transport.abort)

    def close(self) -> None:
        """Close the idle connections; busy ones end with their answers. No new one is pooled."""
        self.closed = True
        while self.idle:
            self.idle.pop().drop()

    def _count(self, member: Scalar) -> None:
        self._page.words[self._page.scalar(member)] += 1


def lifetime_s(age_s: float | None, rng: Callable[[], float] | None) -> float:
    """Return how old a connection may become, seconds: up to a tenth less than set, so that not all go at once."""
    return _NEVER if age_s is None else age_s * (1.0 - 0.1 * (rng() if rng is not None else 0.0))


def split_address(address: str) -> tuple[str, int, str | None]:
    """Return (host, port, None) of ``SCHEME://HOST:PORT``; ("", 0, path) of a Unix socket's address.

    Schemes are http, https, grpc and grpcs; those of Unix sockets ``unix:/PATH`` and ``grpc+unix:/PATH``.

    Raises:
        ValueError: none of them.
    """
    if address.startswith(("unix:", "grpc+unix:")):
        return "", 0, address.partition(":")[2]
    scheme, separator, rest = address.partition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in _PORTS or not separator:
        raise ValueError(f"endpoint address {address!r}: {_FORMS}")
    if not colon or (host.startswith("[") and not host.endswith("]")):
        host, port = rest.rstrip("/"), _PORTS[scheme]
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or not host:
        raise ValueError(f"endpoint address {address!r}: {_FORMS}")
    return host.strip("[]"), int(port), None


_FORMS: Final = "must be HOST:PORT after http://, https://, grpc:// or grpcs://, or unix:/PATH or grpc+unix:/PATH"
