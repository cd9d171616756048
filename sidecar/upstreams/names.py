"""The hosts of endpoints' addresses, looked up apart from connecting: remembered, looked up again, last good kept.

What is known is used at once and looked up again beside that once it is older than ``timeouts.name_refresh_s``: a
request waits for a lookup only where nothing is known yet. A lookup that fails leaves what was known before.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sidecar.telemetry.logs import Throttle, get_log
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable

Made = TypeVar("Made", bound=asyncio.BaseProtocol)


class Connect(Protocol):
    """Connects to a host and port, as ``loop.create_connection`` does."""

    async def __call__(
        self, protocol_factory: Callable[[], Made], host: str, port: int, /
    ) -> tuple[asyncio.BaseTransport, Made]:
        """Return what was made."""


MOST_ADDRESSES: Final = 16
"""Of one name; what a resolver says beyond that is passed over."""
MOST_NAMES: Final = 4096
"""That are remembered; beyond that the one that was looked up first is forgotten."""

_log = get_log("names")


class Known:
    """What one name stands for: addresses in the resolver's order, when that was asked last, and how that failed."""

    __slots__ = ("addresses", "at", "failure", "lookup")

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.at = float("-inf")
        self.failure = ""
        self.lookup: asyncio.Task[None] | None = None


class Names:
    """Connects to hosts by name. ``clock`` gives monotonic seconds; ``count`` takes what lookups came to.

    Args:
        refresh_s: how old what is known may be before it is looked up again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        count: Callable[[Scalar, int], None],
        refresh_s: float,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._count = count
        self._known: dict[str, Known] = {}
        self._throttle = Throttle(10.0)
        self.refresh_s = refresh_s

    async def connect(self, new: Callable[[], Made], host: str, port: int) -> tuple[asyncio.BaseTransport, Made]:
        """Connect to the first address of ``host`` that accepts. Time is the caller's to bound.

        Raises:
            OSError: there is no address, or none that accepts; the last one's error.
        """
        failed: OSError | None = None
        for address in await self.addresses(host):
            try:
                return await self._loop.create_connection(new, address, port)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{host}: no address")

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host, at least one.

        Raises:
            OSError: it is not known, nor was it before.
        """
        if is_address(host):
            return (host,)
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= MOST_NAMES:
                del self._known[next(iter(self._known))]
            known = self._known[host] = Known()
        idle = known.lookup is None or known.lookup.done()
        if idle and (not known.addresses or self._clock() - known.at >= self.refresh_s):
            known.lookup = self._loop.create_task(self._look_up(host, known), name=f"look up {host}")
        if not known.addresses and known.lookup is not None:
            await asyncio.shield(known.lookup)  # others may wait for it too
        if not known.addresses:
            raise OSError(f"{host}: {known.failure}")
        return known.addresses

    async def _look_up(self, host: str, known: Known) -> None:
        began = self._clock()
        try:
            found = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # ValueError: no name that can be asked for
            known.failure = getattr(error, "strerror", None) or str(error)
            self._count(Scalar.NAME_LOOKUPS_FAILED_TOTAL, 1)
            held_back = self._throttle.admit(began)
            if held_back is not None:
                kept = list(known.addresses)
                _log.warning("name.not_found", name=host, why=known.failure, kept=kept, held_back=held_back)
        else:
            known.addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))[:MOST_ADDRESSES]
        known.at = began
        self._count(Scalar.NAME_LOOKUPS_TOTAL, 1)
        self._count(Scalar.NAME_LOOKUP_US_TOTAL, int((self._clock() - began) * 1e6))


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, with or without a scope, and so needs no lookup."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
