"""The way to the shared state over the Redis protocol: ``router.wire``'s scripts, short timeouts, no retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from router.scripts import REMOVE_LUA, WRITE_LUA
from router.wire import SCHEMA_VERSION, Keys
from worker.report import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker.state_address import StateAddress

CONNECT_TIMEOUT_S = 0.5
CALL_TIMEOUT_S = 0.5


class RedisWriter:
    """Writes one endpoint's record."""

    def __init__(self, address: StateAddress, namespace: str, id: str, epoch: str, ttl_s: float) -> None:  # noqa: A002
        self._keys = Keys(namespace)
        self._id = id
        self._epoch = epoch
        self._ttl_ms = round(ttl_s * 1000)
        self._client = redis.Redis.from_url(
            address.url,
            max_connections=2,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=CALL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            **_credentials(address),
        )
        self._write = self._client.register_script(WRITE_LUA)
        self._remove = self._client.register_script(REMOVE_LUA)

    async def write(self, fields: Mapping[str, str]) -> bool:
        """Set ``fields``; see :class:`worker.report.StateWriter`."""
        pairs = [text for pair in fields.items() for text in pair]
        answer = await self._call(
            self._write, [self._id, self._epoch, self._ttl_ms, self._keys.channel, SCHEMA_VERSION, *pairs]
        )
        return answer != -1

    async def remove(self) -> None:
        """Remove the record, where it is still this epoch's; see :class:`worker.report.StateWriter`."""
        await self._call(self._remove, [self._id, self._epoch, self._keys.channel, SCHEMA_VERSION])

    async def close(self) -> None:
        """Close connections; see :class:`worker.report.StateWriter`."""
        try:
            await self._client.connection_pool.disconnect()
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(_text(error)) from error

    async def _call(self, script: Any, args: list[str | int]) -> int:
        keys = [self._keys.endpoint(self._id), self._keys.revision, self._keys.index]
        try:
            return int(await script(keys=keys, args=args))
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailableError(_text(error)) from error


def _credentials(address: StateAddress) -> dict[str, Any]:
    given = {
        "password": address.password,
        "ssl_ca_certs": address.ca_file,
        "ssl_certfile": address.cert_file,
        "ssl_keyfile": address.key_file,
    }
    return {name: value for name, value in given.items() if value is not None}


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
