"""The second tier of kept answers, in the store: written and asked for data processes, which wait for neither.

Fills are queued, and dropped where the store does not keep up. A question that cannot be answered is not: who asked
goes on by itself within milliseconds. What comes back is checked before it is believed: it becomes a caller's answer.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from redis.exceptions import RedisError

from router.scripts import KEEP_LUA
from router.wire import Keys
from sidecar.channel import AnswerAsked, AnswerFound, AnswerKept
from sidecar.state.connect import PasswordFileError, open_client
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis.asyncio as aioredis

    from sidecar.settings import StateStore

MOST_QUEUED: Final = 1024
MOST_BYTES: Final = 65536
"""Of a head and its body: ``cache.redis.max_entry_bytes`` is at most this."""
MOST_TTL_MS: Final = 604_800_000
"""``cache.ttl_s`` is at most this."""
CONNECTIONS: Final = 3
"""Of those that the client may have, for questions; one is left for what is written."""
MOST_ASKED: Final = 64
"""Questions to the store at once; over it they are not asked."""
ANSWER_S: Final = 0.2
"""Nobody waits for longer: ``cache.redis.wait_ms`` is at most half of it."""
CLEAR_S: Final = 3.0
BATCH: Final = 256
PAUSE_S: Final = 1.0
"""After a fill failed."""
_FIELDS: Final = rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*"
_HEAD: Final = re.compile(
    rb"(?:HTTP/1\.1 [2-5][0-9]{2}(?: [\t -~\x80-\xff]*)?\r\n%b|gRPC\r\n%b\r\n%b)" % (_FIELDS, _FIELDS, _FIELDS)
)
"""An answer over HTTP, or over gRPC with its trailers (``sidecar.cache.calls``)."""
_FRAMING: Final = re.compile(rb"\n(?:content-length|transfer-encoding|connection)[ \t]*:", re.IGNORECASE)
_DOWN: Final = (RedisError, OSError, TimeoutError, PasswordFileError, ValueError)

_log = get_log("answers")


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One answer as it stands in the store. ``form`` is 1."""

    form: int
    head: bytes
    body: bytes
    ttl_ms: int
    age_s: int


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODER: Final = msgspec.msgpack.Decoder(Record)


def record_of(value: bytes) -> Record | None:
    """Return what a value in the store says, None where that is no answer."""
    try:
        record = _DECODER.decode(value)
    except msgspec.MsgspecError:
        return None
    good = record.form == 1 and 0 < record.ttl_ms <= MOST_TTL_MS and 0 <= record.age_s <= 1 << 31
    if len(record.head) + len(record.body) > MOST_BYTES:
        good = False
    if not good or _HEAD.fullmatch(record.head) is None or _FRAMING.search(record.head):
        return None
    return record


class SharedAnswers:
    """The tier, as one sidecar uses it. ``reply`` sends to the data process with an index."""

    def __init__(self, settings: StateStore, reply: Callable[[int, AnswerFound], None]) -> None:
        self._settings = settings
        self._reply = reply
        self._keys = Keys(settings.namespace)
        self._queue: asyncio.Queue[tuple[AnswerKept, float]] = asyncio.Queue(MOST_QUEUED)
        self._asking: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._client: aioredis.Redis | None = None
        self._complained = Throttle(10.0)
        self.dropped = 0

    def from_data(self, index: int, message: AnswerKept | AnswerAsked) -> None:
        """Take what a data process says. Returns at once."""
        if isinstance(message, AnswerKept):
            try:
                self._queue.put_nowait((message, asyncio.get_running_loop().time()))
            except asyncio.QueueFull:
                self.dropped += 1
        elif len(self._asking) < MOST_ASKED:
            task = asyncio.get_running_loop().create_task(self._look(index, message), name="answer-asked")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def run(self) -> None:
        """Write what is queued, until cancelled."""
        try:
            while True:
                kept, came = await self._queue.get()
                try:
                    await self._keep(kept, came)
                except _DOWN as error:
                    self.dropped += 1
                    self._complain(error)
                    await asyncio.sleep(PAUSE_S)
        finally:
            for task in self._asking:
                task.cancel()
            if self._client is not None:
                await self._client.aclose()

    async def clear(self) -> bool:
        """Delete all that is kept in the namespace, other sidecars' too; False where the store does not answer."""
        index = self._keys.answers
        try:
            async with asyncio.timeout(CLEAR_S):
                client = self._open()
                while popped := cast("list[tuple[bytes, float]]", await client.zpopmin(index, BATCH)):
                    await client.delete(*[f"{index}:{id_.decode()}" for id_, _ in popped])
                await client.delete(index + ":sizes", index + ":bytes")
        except _DOWN as error:
            self._complain(error)
            return False
        return True

    def _open(self) -> aioredis.Redis:
        if self._client is None:
            self._client = open_client(self._settings, text=False)
        return self._client

    async def _keep(self, kept: AnswerKept, came: float) -> None:
        left_ms = kept.ttl_ms - int((asyncio.get_running_loop().time() - came) * 1000)
        if left_ms <= 0:  # its time went by while the store did not answer
            self.dropped += 1
            return
        index = self._keys.answers
        value = _ENCODE(Record(1, kept.head, kept.body, kept.ttl_ms, kept.age_s))
        keys = [index, index + ":sizes", index + ":bytes"]
        arguments: list[Any] = [index + ":", kept.key.hex(), value, left_ms, kept.entries, kept.most_bytes]
        await self._open().eval(KEEP_LUA, len(keys), *keys, *arguments)

    async def _look(self, index: int, asked: AnswerAsked) -> None:
        key = f"{self._keys.answers}:{asked.key.hex()}"
        found = AnswerFound(asked.number)
        try:
            async with asyncio.timeout(ANSWER_S), self._places:
                both = self._open().pipeline(transaction=False)
                both.get(key)
                both.pttl(key)
                value, left_ms = await both.execute()
        except _DOWN as error:
            self._complain(error)
            return
        if value is not None and left_ms > 0:
            record = record_of(value)
            if record is None or left_ms > record.ttl_ms:  # nobody has an answer last longer than it says
                found = AnswerFound(asked.number, bad=True)
            else:
                found = AnswerFound(asked.number, record.head, record.body, record.ttl_ms - left_ms, record.age_s)
        self._reply(index, found)

    def _complain(self, error: BaseException) -> None:
        held_back = self._complained.admit(asyncio.get_running_loop().time())
        if held_back is not None:
            _log.warning("answers.down", error=f"{type(error).__name__}: {error}", held_back=held_back)
