"""How far the shared state can be trusted: one transition table, pure, with time passed in.

::

    live --lost, emptied, silent--> frozen --aged--> local <--observed / unobserved--> uniform
      ^                                |               |                                  |
      +----------- settled ------------+---------------+----------------------------------+

Losing the connection degrades at once; so does a connection over which nobody was heard for one TTL while endpoints are
known (where none is known, silence is what one expects). Coming back takes proof: the mode stays where it is until
every endpoint that was known has been heard again, or until the time that they get for that has passed. Until then
nothing ages and nothing expires, so a store that comes back empty takes no endpoint away from traffic.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

from router.model import StoreMode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from router.policy import FreshnessPolicy


_NOT_YET = inf


class Signal(StrEnum):
    """What may change the mode."""

    LOST = "lost"  # the connection is down or does not answer
    EMPTIED = "emptied"  # its content was lost under a connection that stayed up
    SILENT = "silent"  # connected, endpoints are known, and none was heard for one TTL
    AGED = "aged"  # degraded for local_after_s
    UNOBSERVED = "unobserved"  # no endpoint has a latency that this sidecar measured
    OBSERVED = "observed"
    SETTLED = "settled"  # messages arrive again, from all that were known or for long enough


TRANSITIONS: dict[tuple[StoreMode, Signal], StoreMode] = {
    (StoreMode.LIVE, Signal.LOST): StoreMode.FROZEN,
    (StoreMode.LIVE, Signal.EMPTIED): StoreMode.FROZEN,
    (StoreMode.LIVE, Signal.SILENT): StoreMode.FROZEN,
    (StoreMode.FROZEN, Signal.AGED): StoreMode.LOCAL,
    (StoreMode.FROZEN, Signal.SETTLED): StoreMode.LIVE,
    (StoreMode.LOCAL, Signal.UNOBSERVED): StoreMode.UNIFORM,
    (StoreMode.LOCAL, Signal.SETTLED): StoreMode.LIVE,
    (StoreMode.UNIFORM, Signal.OBSERVED): StoreMode.LOCAL,
    (StoreMode.UNIFORM, Signal.SETTLED): StoreMode.LIVE,
}
"""Every transition there is; any other pair leaves the mode as it is."""


class StoreModes:
    """The mode and what it needs to know. All times are monotonic seconds, passed in and never decreasing."""

    def __init__(self, policy: FreshnessPolicy, now: float) -> None:
        self._policy = policy
        self.mode = StoreMode.LIVE
        self.since = now
        self.changes = 0
        self._connected = False
        self._emptied = False
        self._failed = False  # the connection was lost, or the first one could not be made
        self._degraded_at = now
        self._heard_at = now
        self._awaited: set[str] = set()
        self._settle_by = now
        self._believed_from = now

    def configure(self, policy: FreshnessPolicy) -> None:
        """Go by another policy from now on."""
        self._policy = policy

    def connected(self, now: float, known: Iterable[str], *, emptied: bool = False) -> None:
        """The store answers. ``known`` endpoints get a TTL to be heard again; the longer grace where it was emptied."""
        self._connected, self._failed = True, False
        self._heard_at = now
        self._awaited = set(known)
        self._emptied = emptied and bool(self._awaited)
        self._settle_by = now + (self._policy.empty_store_grace_s if emptied else self._policy.ttl_s)
        self._believed_from = self._settle_by

    def lost(self) -> None:
        """The connection went down, does not answer, or could not be made."""
        self._connected, self._failed = False, True

    def heard(self, ids: Iterable[str], now: float) -> None:
        """Messages or newer records of these endpoints arrived."""
        self._heard_at = now
        self._awaited.difference_update(ids)
        if self._settle_by == _NOT_YET:
            self._settle_by = now + self._policy.ttl_s

    def left(self, id: str) -> None:  # noqa: A002
        """An endpoint said goodbye: it need not be waited for."""
        self._awaited.discard(id)

    def paused(self, for_s: float, now: float) -> None:
        """This process stood still for so long: what it did not hear meanwhile was not silent, or late, for it."""
        self._heard_at = min(now, self._heard_at + for_s)
        if now - for_s < self._settle_by < _NOT_YET:
            self._settle_by += for_s
        if now - for_s < self._believed_from < _NOT_YET:
            self._believed_from += for_s

    def flowing(self, now: float) -> bool:
        """Whether the store is live and somebody was heard just now: only then does one endpoint's silence count."""
        return self.mode is StoreMode.LIVE and now - self._heard_at <= self._policy.full_s

    def stands(self, now: float) -> bool:
        """Whether the connection has stood, and kept its content, for long enough that what a read lacks is gone.

        That is as long as known endpoints get to be heard again; unlike :meth:`flowing` it does not take anybody else.
        """
        return self._connected and now >= self._believed_from

    def check(self, now: float, known: Collection[str], *, observed: bool) -> bool:
        """Let time pass; return whether the mode changed.

        ``known`` are the endpoints that came from the store and have not left; ``observed`` says whether this sidecar
        has measured a latency of any endpoint.
        """
        before = self.mode
        for signal in self._signals(now, known, observed=observed):
            after = TRANSITIONS.get((self.mode, signal))
            if after is None:
                continue
            if self.mode is StoreMode.LIVE:
                self._degraded_at = now
            self.mode = after
        if self.mode is before:
            return False
        self.since = now
        self.changes += 1
        return True

    def _signals(self, now: float, known: Collection[str], *, observed: bool) -> Iterator[Signal]:
        if self._failed:
            yield Signal.LOST
        elif self._emptied:
            self._emptied = False
            yield Signal.EMPTIED
        elif self._connected and known and now - self._heard_at >= self._policy.ttl_s:
            self._awaited, self._settle_by = set(known), _NOT_YET
            yield Signal.SILENT
        elif self._connected and (not self._awaited or now >= self._settle_by):
            self._awaited = set()
            yield Signal.SETTLED
        if self.mode is not StoreMode.LIVE and now - self._degraded_at >= self._policy.local_after_s:
            yield Signal.AGED
        yield Signal.OBSERVED if observed else Signal.UNOBSERVED
