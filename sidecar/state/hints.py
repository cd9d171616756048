"""Hints over the shared state: other sidecars hear which breakers are open here, and this one what is open there.

The thin asyncio shell around :mod:`router.hints`. It is a guest on the store's connections, like latencies: where the
store refuses it, that is logged, and breakers go by own evidence alone, as they do in the end in any case.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from router.hints import LEAST_S, REPEAT_S, HintError, decode, encode
from router.urls import is_loopback
from sidecar.state.connect import subscribed
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis.asyncio as aioredis
    from redis.asyncio.client import PubSub

    from router.cluster import Cluster
    from router.endpoint import Endpoint
    from router.model import BreakersHinted, Hint
    from router.protocols import Rng
    from router.wire import Keys

JITTER = 0.2
LOG_EVERY_S = 60.0

_log = get_log("hints")


class HintExchange:
    """What one sidecar tells and hears of open breakers. ``own`` is its name.

    ``opened`` returns the breakers that are open here, the last one first; ``take`` gets what others say.
    """

    def __init__(
        self,
        own: str,
        *,
        opened: Callable[[], tuple[Hint, ...]],
        take: Callable[[BreakersHinted], None],
        clock: Callable[[], float],
        rng: Rng,
        least_s: float = LEAST_S,
    ) -> None:
        self.told = 0
        """Messages told since the start."""
        self.heard = 0
        """Breakers that others told of."""
        self.refused: Counter[str] = Counter()
        """Messages of others that were refused, by reason."""
        self._own = own
        self._opened = opened
        self._take = take
        self._clock = clock
        self._rng = rng
        self._least_s = least_s
        self._last: tuple[Hint, ...] = ()
        self._last_at = float("-inf")
        self._complained = Throttle(LOG_EVERY_S)

    async def subscribe(self, pubsub: PubSub, keys: Keys) -> None:
        """Hear what is told from here on, where the store lets us. The endpoints are yet to be subscribed to."""
        await pubsub.subscribe(keys.hint_channel)
        try:
            await subscribed(pubsub, keys.hint_channel)
        except NoPermissionError as error:
            self._complain("hints.refused", cannot="hear", error=str(error)[:300])

    def message(self, payload: str | bytes) -> None:
        """Take in one message of the channel."""
        try:
            event = decode(payload, self._own, self._clock())
        except HintError as error:
            self.refused[error.reason] += 1
            self._complain("hints.not_taken", reason=error.reason, error=str(error))
            return
        if event is not None and event.hints:
            self.heard += len(event.hints)
            self._take(event)

    async def run(self, client: aioredis.Redis, keys: Keys) -> None:
        """Tell what opened or closed, at most once a second, until the connection is lost or cancelled."""
        self._last = ()
        task = asyncio.current_task()
        while task is None or not task.cancelling():  # a client may take a cancellation for a timeout of its own
            await asyncio.sleep(self._least_s * (1 - JITTER + 2 * JITTER * self._rng()))
            opened = self._opened()
            now = self._clock()
            if set(opened) <= set(self._last) and not (opened and now - self._last_at >= REPEAT_S):
                self._last = opened  # one that closed is told of by nobody speaking of it any more
                continue
            try:
                await client.publish(keys.hint_channel, encode(self._own, opened))
                self.told += 1
            except (RedisConnectionError, RedisTimeoutError):
                raise
            except ResponseError as error:
                self._complain("hints.refused", cannot="tell", error=str(error)[:300])
            self._last, self._last_at = opened, now

    def _complain(self, event: str, **fields: object) -> None:
        held_back = self._complained.admit(self._clock())
        if held_back is not None:
            _log.warning(event, **fields, held_back=held_back)


def open_here(cluster: Cluster, now: float) -> tuple[Hint, ...]:
    """Return which breakers are open here, but for endpoints at an address that is another one at another host."""
    endpoints = cluster.endpoints
    return tuple(hint for hint in cluster.open_breakers(now) if not _of_this_host(endpoints[hint.id]))


def _of_this_host(endpoint: Endpoint) -> bool:
    address = urlsplit(endpoint.address)
    return endpoint.record.static and (not address.hostname or is_loopback(address.hostname))
