"""Latencies over the shared state: this sidecar's are told there every few seconds, and those of all others are heard.

The thin asyncio shell around :mod:`router.sketches`. It is a guest on the store's connections, and no part of what the
store is for: where the store refuses it (an ACL, no memory left), that is logged, and own measurements go on to count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from router.scripts import SKETCHES_LUA
from router.sketches import INTERVAL_S, MAX_SIDECARS, VERSION, Heard, Telling
from sidecar.state.connect import subscribed
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import redis.asyncio as aioredis
    from redis.asyncio.client import PubSub

    from router.model import ReplicaKey, ReplicaSketch
    from router.policy import LatencyPolicy
    from router.protocols import Rng
    from router.wire import Keys

JITTER = 0.2
"""Share by which the time between two tellings is longer or shorter at random, so that sidecars do not tell in step."""

LOG_EVERY_S = 60.0

_log = get_log("latencies")


class LatencyExchange:
    """What one sidecar tells and hears. ``own`` is its name, ``clock`` gives monotonic seconds, ``rng`` spreads.

    ``rows`` are the latencies measured here, ``known`` says whether a replica is there at all.
    """

    def __init__(
        self,
        own: str,
        policy: LatencyPolicy,
        *,
        rows: Callable[[], Iterable[ReplicaSketch]],
        known: Callable[[ReplicaKey], bool],
        clock: Callable[[], float],
        rng: Rng,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.heard = Heard(own, policy, known)
        self.told = 0
        """Rows told since the start."""
        self._own = own
        self._telling = Telling(policy)
        self._rows = rows
        self._clock = clock
        self._rng = rng
        self._interval_s = interval_s
        self._refused = Throttle(LOG_EVERY_S)
        self._complained = Throttle(LOG_EVERY_S)

    def configure(self, policy: LatencyPolicy) -> None:
        """Go by another policy from now on."""
        self.heard.configure(policy)
        self._telling.configure(policy)

    async def subscribe(self, pubsub: PubSub, keys: Keys) -> None:
        """Hear what is told from here on, where the store lets us. The endpoints are yet to be subscribed to."""
        await pubsub.subscribe(keys.latency_channel)
        try:
            await subscribed(pubsub, keys.latency_channel)
        except NoPermissionError as error:
            self._say_refused("hear", error)

    def message(self, payload: str | bytes) -> None:
        """Take in one message of the channel."""
        self.heard.message(payload, self._clock())
        self._complain()

    async def run(self, client: aioredis.Redis, keys: Keys) -> None:
        """Read what is there, then tell what changed, again and again, until the connection is lost or cancelled."""
        self._telling.forget()  # the store may have been another one
        wait_s = self._interval_s * self._rng()  # all sidecars of a store that came back begin at once
        await asyncio.sleep(wait_s)
        await self._guarded("hear", self._read(client, keys))
        while True:
            await self._guarded("tell", self._tell(client, keys))
            await asyncio.sleep(self._interval_s * (1 - JITTER + 2 * JITTER * self._rng()))

    async def _guarded(self, what: str, doing: Any) -> None:
        try:
            await doing
        except (RedisConnectionError, RedisTimeoutError, OSError):
            raise
        except ResponseError as error:
            self._telling.forget()
            self._say_refused(what, error)

    async def _read(self, client: aioredis.Redis, keys: Keys) -> None:
        """Take in what each of the other sidecars told last, one after the other."""
        names = await client.zrange(keys.latency_index, 0, MAX_SIDECARS - 1)
        for name in names:
            if name != self._own:
                await self._guarded("hear", self._read_one(client, keys, str(name)))
        self._complain()

    async def _read_one(self, client: aioredis.Redis, keys: Keys, name: str) -> None:
        fields: Any = await client.hgetall(keys.latencies(name))
        if fields:
            self.heard.whole(name, fields, self._clock())

    async def _tell(self, client: aioredis.Redis, keys: Keys) -> None:
        telling = self._telling
        ttl_ms = str(round(telling.ttl_s * 1000))
        head = (self._own, ttl_ms, keys.latency_channel, str(VERSION), telling.form)
        for pairs in telling.due(self._rows(), self._clock()):
            at = (keys.latencies(self._own), keys.latency_index)
            await client.eval(SKETCHES_LUA, 2, *at, *head, *pairs)
            self.told += len(pairs) // 2

    def _say_refused(self, what: str, error: ResponseError) -> None:
        held_back = self._refused.admit(self._clock())
        if held_back is not None:
            _log.warning("latencies.refused", cannot=what, error=str(error)[:300], held_back=held_back)

    def _complain(self) -> None:
        if self.heard.complaints:
            complaints = list(self.heard.complaints)
            self.heard.complaints.clear()
            held_back = self._complained.admit(self._clock())
            if held_back is not None:
                _log.warning("latencies.not_taken", details=complaints, held_back=held_back)
