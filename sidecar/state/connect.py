"""From ``state`` in the configuration to a redis-py client: credentials, TLS, timeouts. Reads the password file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

    from sidecar.settings import StateStore

CONNECT_TIMEOUT_S = 1.0
REPLY_TIMEOUT_S = 2.0
"""For one reply; PING has a shorter one of its own."""

CLIENT_NAME = "warmroute"


class PasswordFileError(ValueError):
    """The password file holds no password; the text does not repeat what it holds."""


def open_client(settings: StateStore, *, text: bool = True) -> aioredis.Redis:
    """Return a client for ``settings.url``; it connects at its first command and never retries by itself.

    The password file is read here, so a changed password is taken at the next connection. ``text``: replies are text,
    else bytes.

    Raises:
        ValueError: the URL has another scheme than redis, rediss or unix.
        OSError: the password file cannot be read.
        PasswordFileError: it is not UTF-8.
    """
    options: dict[str, Any] = {
        "protocol": 3,
        "decode_responses": text,
        "encoding_errors": "replace",  # a record that is not UTF-8 is one bad record, not a failed read
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": REPLY_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "client_name": CLIENT_NAME,
        "max_connections": 4,
    }
    if settings.password_file is not None:
        options["password"] = _password(settings.password_file)
    if settings.url.startswith("rediss://"):
        tls = settings.tls
        options |= {"ssl_ca_certs": tls.ca_file, "ssl_certfile": tls.cert_file, "ssl_keyfile": tls.key_file}
    if not settings.url.startswith("unix://"):
        options["socket_keepalive"] = True
    return aioredis.Redis.from_url(settings.url, **options)


async def subscribed(pubsub: PubSub, channel: str) -> None:
    """Wait until the server says that the subscription to ``channel``, which was asked for, is there.

    Raises:
        NoPermissionError: it refuses it.
        TimeoutError: it does not answer.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        while True:
            answer = await pubsub.get_message(timeout=CONNECT_TIMEOUT_S)
            if answer is not None and answer["type"] == "subscribe" and answer["channel"] == channel:
                return


def _password(name: str) -> str:
    try:
        return Path(name).read_bytes().decode().strip()
    except UnicodeDecodeError as error:
        raise PasswordFileError(f"{name}: byte {error.start + 1} is not UTF-8") from None
