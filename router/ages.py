"""How old each endpoint's last word is, and when ages stand still because the store is silent, not the endpoints."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from router.model import StoreMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.endpoint import Endpoint
    from router.policy import FreshnessPolicy


class Ages:
    """The ages' clock. It stops in every store mode but ``live``, and where nobody at all was heard for ``full_s``.

    The second is for the time before anybody has noticed, and for a control process that died: the shared state or the
    way here is silent then, which says nothing of any endpoint. Static endpoints are always of age 0.
    """

    def __init__(self, policy: FreshnessPolicy) -> None:
        self.mode = StoreMode.LIVE
        self._policy = policy
        self._heard_at = -inf  # when the last word of anybody came in
        self._frozen_at: float | None = None

    def configure(self, policy: FreshnessPolicy) -> None:
        """Go by another policy from now on; what was heard and a stopped clock stay."""
        self._policy = policy

    def age_s(self, endpoint: Endpoint, now: float) -> float:
        """Return the age of an endpoint's last word."""
        if endpoint.record.static:
            return 0.0
        return max(0.0, (now if self._frozen_at is None else self._frozen_at) - endpoint.heard_at)

    def stale_at(self, endpoint: Endpoint) -> float:
        """Return the moment at which an endpoint that is fresh goes stale, as far as known now."""
        if endpoint.record.static or self._frozen_at is not None:
            return inf
        return endpoint.heard_at + self._policy.ttl_s

    def watch(self, now: float) -> bool:
        """Stop the clock where everybody is silent; True where that happened, and all ages changed."""
        silent_from = self._heard_at + self._policy.full_s
        if self._frozen_at is not None or not -inf < silent_from < now:
            return False
        self._frozen_at = silent_from
        return True

    def hear(self, endpoint: Endpoint, at: float, now: float, others: Iterable[Endpoint]) -> bool:
        """Take a word from an endpoint that arrived at ``at``; True where that ended a silence and all ages changed.

        The silence does not count in the age of ``others`` that were fresh when it began.
        """
        endpoint.heard_at = max(endpoint.heard_at, at)
        if endpoint.record.static:
            return False
        self.watch(now)
        self._heard_at = now
        frozen_at = self._frozen_at
        if frozen_at is None or self.mode is not StoreMode.LIVE:
            return False
        for other in self._thaw(frozen_at, others):
            if other is not endpoint:
                other.heard_at += now - frozen_at
        return True

    def change(self, mode: StoreMode, at: float, now: float, endpoints: Iterable[Endpoint]) -> None:
        """Take the store's new mode. All ages change.

        Where it is live again, endpoints that are not stale start at age 0: they have one TTL to speak.
        """
        self.mode = mode
        if mode is StoreMode.LIVE:
            if self._frozen_at is not None:
                for endpoint in self._thaw(self._frozen_at, endpoints):
                    endpoint.heard_at = now
            self._heard_at = max(self._heard_at, now)
        elif self._frozen_at is None:
            self._frozen_at = min(at, self._heard_at + self._policy.full_s)

    def _thaw(self, frozen_at: float, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
        """Start the clock; return the endpoints that were not stale while it stood."""
        self._frozen_at = None
        return [endpoint for endpoint in endpoints if frozen_at < endpoint.heard_at + self._policy.ttl_s]
