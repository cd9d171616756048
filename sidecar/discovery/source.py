"""The interface of everything that finds endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from router.model import EndpointGone, EndpointSeen, EndpointsHeard, StoreChanged

Found = EndpointSeen | EndpointsHeard | EndpointGone | StoreChanged
"""What a source may say. Only the source that is the shared state itself says ``StoreChanged``."""

Emit = Callable[[Found], None]
"""Takes one event at once; never blocks and never raises."""


class DiscoverySource(Protocol):
    """Finds endpoints and says what becomes of them.

    Each source owns the endpoints that it named: it alone says that they are gone. Where two sources name the same
    endpoint id, the one that was given first in the composition keeps it.
    """

    name: str

    @property
    def tried(self) -> bool:
        """True once the first attempt to learn everything is over: a new process need not wait any longer for it."""

    @property
    def complete(self) -> bool:
        """True once all that there is has been emitted: what a running process knows beyond that is gone."""

    async def run(self, emit: Emit) -> None:
        """Emit events until cancelled. Failures of the outside world are the source's own to log and to retry."""
