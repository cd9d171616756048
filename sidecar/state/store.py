"""The shared state as a source of endpoints: connections, subscription, full reads and the watch over them.

The thin asyncio shell around :mod:`sidecar.state.view` (what the store says) and :mod:`sidecar.state.modes` (how far it
can be trusted). Subscribes first and reads then, so that nothing falls between; reads everything again each ten
seconds, after each gap and at each reconnect; asks for a PING once a second on both connections, because a server that
is stopped keeps its connections open.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from router.model import EndpointGone, EndpointSeen, StoreChanged
from router.scripts import READ_LUA
from router.urls import masked_url
from router.wire import REASONS, Keys, WireError
from sidecar.state.connect import PasswordFileError, open_client, subscribed
from sidecar.state.modes import StoreModes
from sidecar.state.view import MAX_COMPLAINTS, StoreView
from sidecar.tasks import end_all
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import redis.asyncio as aioredis
    from redis.asyncio.client import PubSub

    from router.policy import FreshnessPolicy
    from router.protocols import Rng
    from sidecar.discovery.source import Emit, Found
    from sidecar.settings import StateStore
    from sidecar.state.hints import HintExchange
    from sidecar.state.latencies import LatencyExchange
    from sidecar.state.view import Told

RECONCILE_S = 10.0
PING_S = 1.0
PING_TIMEOUT_S = 1.0
QUIET_S = 3.0
"""The subscription counts as broken when it gave neither message nor PONG for this long."""

READ_GAP_S = 0.25
"""Least time between two full reads: a burst of gaps costs one read."""

BURST = 32
"""Messages that are taken in one after the other before everything else has its turn."""

CHECK_S = 0.1
PAUSED_S = 0.5
"""A check that comes so much too late shows that this process stood still: suspended, or short of a processor."""
RECONNECT_MIN_S = 0.05
RECONNECT_MAX_S = 1.0
LOG_EVERY_S = 10.0

_log = get_log("store")

_DOWN = (RedisError, OSError, TimeoutError)
"""What a session may end with because of the connection."""


@dataclass(slots=True)
class StoreCounts:
    """What the connection went through, for metrics; the view counts what it was told."""

    connects: int = 0
    failures: int = 0


class RedisSource:
    """Endpoints that registered in Redis. ``clock`` gives monotonic seconds, ``rng`` numbers in [0, 1) for jitter."""

    name = "redis"

    def __init__(self, settings: StateStore, policy: FreshnessPolicy, *, clock: Callable[[], float], rng: Rng) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._clock = clock
        self._rng = rng
        self.view = StoreView(policy.ttl_s)
        self.modes = StoreModes(policy, clock())
        self.counts = StoreCounts()
        self.observed = False
        """Whether any endpoint has a latency measured here; set by the composition."""
        self.answered_at: Callable[[str], float] = _never
        """When an endpoint last answered a request of ours; set by the composition."""
        self.latencies: LatencyExchange | None = None
        """What sidecars tell each other of latency; set by the composition where they do."""
        self.hints: HintExchange | None = None
        """What they tell each other of open breakers."""
        self._ttl_s = policy.ttl_s
        self._run_id = ""
        self._whole_at = float("inf")
        self._checked_at = clock()
        self._stood_s = 0.0
        self._grace_s = policy.empty_store_grace_s
        self._emit: Emit = _nowhere
        self._wake = asyncio.Event()
        self._complained = {reason: Throttle(LOG_EVERY_S) for reason in REASONS}
        self._unsaid: dict[str, list[str]] = {}
        self._said_of: Counter[str] = Counter()  # how many of ``view.bad`` the log has told of
        self._down_said = Throttle(LOG_EVERY_S)

    def configure(self, policy: FreshnessPolicy) -> None:
        """Go by another policy from now on."""
        self._ttl_s = policy.ttl_s
        self._grace_s = policy.empty_store_grace_s
        self.view.configure(policy.ttl_s)
        self.modes.configure(policy)

    @property
    def tried(self) -> bool:
        """Whether a full read has come in or the first connection failed."""
        return self.view.complete or self.counts.failures > 0

    @property
    def complete(self) -> bool:
        """Whether a full read has come in, and the server had been up for long enough to hold the whole fleet.

        A server that is just up may have lost its content a moment ago, which a process that was itself just started
        cannot know: what it misses may be about to register again.
        """
        return self.view.complete and self._clock() >= self._whole_at

    async def run(self, emit: Emit) -> None:
        """Follow the store until cancelled, through every loss of it."""
        self._emit = emit
        watch = asyncio.create_task(self._watch(), name="store-watch")
        try:
            await self._sessions()
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _sessions(self) -> None:
        attempt = 0
        while True:
            connects = self.counts.connects
            try:
                await self._session()
            except* Exception as group:  # noqa: BLE001  what is in the store may cost a session, never the process
                self._went_down(group)
            attempt = 0 if self.counts.connects > connects else attempt + 1
            most = min(RECONNECT_MAX_S, 0.25 * 2 ** min(attempt, 4))
            await asyncio.sleep(RECONNECT_MIN_S + (most - RECONNECT_MIN_S) * self._rng())

    def _went_down(self, group: BaseExceptionGroup[Exception]) -> None:
        self.counts.failures += 1
        self.modes.lost()
        self._check()
        suppressed = self._down_said.admit(self._clock())
        if suppressed is not None:
            errors = list(_leaves(group))
            causes = sorted({f"{type(error).__name__}: {error}" for error in errors})
            expected = all(isinstance(error, (*_DOWN, WireError, PasswordFileError)) for error in errors)
            (_log.warning if expected else partial(_log.error, exc_info=True))(
                "store.down",
                url=masked_url(self._settings.url),
                causes=causes,
                mode=self.modes.mode,
                held_back=suppressed,
            )

    # --- one connection -----------------------------------------------------------------------------------------

    async def _session(self) -> None:
        client = open_client(self._settings)
        pubsub = client.pubsub()
        try:
            await self._open(client, pubsub)
            parts = {"listen": self._listen(pubsub), "ping": self._ping(client, pubsub), "read": self._reads(client)}
            if self.latencies is not None:
                parts["latencies"] = self.latencies.run(client, self._keys)
            if self.hints is not None:
                parts["hints"] = self.hints.run(client, self._keys)
            tasks = [asyncio.create_task(part, name=f"store-{name}") for name, part in parts.items()]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                await end_all(tasks)
            raise ExceptionGroup("the session ended", list(_errors(tasks)) or [ConnectionError("cut off")])
        finally:
            with suppress(*_DOWN):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
            with suppress(*_DOWN):
                await client.aclose()

    async def _open(self, client: aioredis.Redis, pubsub: PubSub) -> None:
        """Subscribe, read everything and tell the modes."""
        run_id, uptime_s = await self._server(client)
        if self.latencies is not None:
            await self.latencies.subscribe(pubsub, self._keys)
        if self.hints is not None:
            await self.hints.subscribe(pubsub, self._keys)
        await pubsub.subscribe(self._keys.channel)
        await subscribed(pubsub, self._keys.channel)
        self.view.reconnected()
        if self._run_id and run_id and run_id != self._run_id:
            self.view.forget()
        self._run_id = run_id or self._run_id
        self._whole_at = min(self._whole_at, self._clock() + self._grace_s - uptime_s)
        heard = await self._read(client)
        self.counts.connects += 1
        self._down_said = Throttle(LOG_EVERY_S)  # the next loss is news
        emptied, self.view.emptied = self.view.emptied, False
        self.modes.connected(self._clock(), self.view.ids, emptied=emptied)
        self.modes.heard(heard, self._clock())
        _log.info(
            "store.connected",
            url=masked_url(self._settings.url),
            namespace=self._settings.namespace,
            endpoints=len(self.view.ids),
            emptied=emptied,
        )
        self._check()

    async def _server(self, client: aioredis.Redis) -> tuple[str, float]:
        """Return the server's run id, which changes when it is started, and how long it has been up."""
        try:
            info = await client.info("server")
        except NoPermissionError:  # an ACL may keep INFO from us: then only the revision tells
            await client.ping()
            return "", self._grace_s
        return str(info.get("run_id", "")), float(info.get("uptime_in_seconds", self._grace_s))

    def _stood(self) -> float:
        """Return for how long this process stood still so far: nothing can be said to be silent meanwhile."""
        late_s = self._clock() - self._checked_at - CHECK_S
        return self._stood_s + (late_s if late_s >= PAUSED_S else 0.0)

    async def _next_message(self, pubsub: PubSub) -> Any:
        """Return the next message; None once there could have been one for QUIET_S and there was none."""
        left_s = QUIET_S
        while left_s > 0:
            stood_s = self._stood()
            message = await pubsub.get_message(timeout=left_s)
            if message is not None:
                return message
            left_s = self._stood() - stood_s
        return None

    async def _listen(self, pubsub: PubSub) -> None:
        for count in itertools.count(1):
            if count % BURST == 0:  # those that are there already are taken without a wait
                await asyncio.sleep(0)
            message = await self._next_message(pubsub)
            if message is None:
                raise TimeoutError(f"the subscription was silent for {QUIET_S} s")
            if message["type"] != "message":
                continue
            if message["channel"] == self._keys.hint_channel:
                if self.hints is not None:
                    self.hints.message(message["data"])
            elif message["channel"] != self._keys.channel:
                if self.latencies is not None:
                    self.latencies.message(message["data"])
            else:
                self._take(self.view.message(message["data"], self._clock()))
                if self.view.emptied:
                    self._was_emptied()
                if self.view.needs_read:
                    self._wake.set()

    async def _ping(self, client: aioredis.Redis, pubsub: PubSub) -> None:
        while True:
            await asyncio.sleep(PING_S)
            stood_s = self._stood()
            try:
                async with asyncio.timeout(PING_TIMEOUT_S):
                    await client.ping()
                    await pubsub.ping()  # answered by a message, which _listen waits for
            except TimeoutError as error:
                if self._stood() > stood_s:
                    continue  # the answer may have been there all the time
                raise TimeoutError(f"no answer to PING within {PING_TIMEOUT_S:g} s") from error

    async def _reads(self, client: aioredis.Redis) -> None:
        while True:
            await asyncio.sleep(READ_GAP_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECONCILE_S - READ_GAP_S):
                    await self._wake.wait()
            await self._read(client)
            if self.view.emptied:
                self._was_emptied()

    async def _read(self, client: aioredis.Redis) -> list[str]:
        """Make one full read; return the endpoints that it showed to be new or newer."""
        self._wake.clear()
        has = self.view.read_begins()
        at = (self._keys.revision, self._keys.index, self._keys.endpoint(""))
        reply: Any = await client.eval(READ_LUA, 2, *at, *has)
        heard = self._take(self.view.read_ended(reply, self._clock()))
        if self.view.needs_read:
            self._wake.set()
        return heard

    # --- events and time ----------------------------------------------------------------------------------------

    def _take(self, events: Iterable[Told]) -> list[str]:
        """Emit ``events``, note who was heard and log what was skipped."""
        heard: list[str] = []
        for event in events:
            self._emit(event)
            if isinstance(event, EndpointSeen):
                heard.append(event.record.id)
            elif isinstance(event, EndpointGone):
                self.modes.left(event.id)
            else:
                heard.extend(event.ids)
        if heard:
            self.modes.heard(heard, self._clock())
        if self.view.complaints:
            self._complain()
        if self.view.news:
            self._tell_news()
        return heard

    def _tell_news(self) -> None:
        news = list(self.view.news)
        self.view.news.clear()
        for id, one in news:  # noqa: A001
            _log.info(
                "endpoint.model",
                endpoint=id,
                told=one.event.value,
                model=one.model,
                version=one.version,
                reason=one.reason,
            )

    def _complain(self) -> None:
        """Keep some of what was skipped until it is said."""
        for reason, text in self.view.complaints:
            unsaid = self._unsaid.setdefault(reason, [])
            if len(unsaid) < MAX_COMPLAINTS and text not in unsaid:
                unsaid.append(text)
        self.view.complaints.clear()
        self._say_skipped()

    def _say_skipped(self) -> None:
        """Log what was skipped and not said yet, by reason: one must not hide another."""
        now = self._clock()
        for reason in list(self._unsaid):
            if self._complained[reason].admit(now) is not None:
                skipped = self.view.bad[reason]
                _log.warning(
                    "store.bad_record",
                    reason=reason,
                    skipped=skipped - self._said_of[reason],
                    details=self._unsaid.pop(reason),
                )
                self._said_of[reason] = skipped

    def _was_emptied(self) -> None:
        """The content was lost under a live connection (FLUSHALL, a failover behind a proxy)."""
        self.view.emptied = False
        _log.warning("store.emptied", endpoints=len(self.view.ids))
        self.modes.connected(self._clock(), self.view.ids, emptied=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self._check()

    def _check(self) -> None:
        now = self._clock()
        late_s = now - self._checked_at - CHECK_S
        self._checked_at = now
        if late_s >= PAUSED_S:
            self._stood_s += late_s
            self.view.paused(late_s, now)
            self.modes.paused(late_s, now)
        if self._unsaid:
            self._say_skipped()
        before = self.modes.mode
        if self.modes.check(now, self.view.ids, observed=self.observed):
            self._emit(StoreChanged(self.modes.mode, now))
            say = _log.info if self.modes.mode == "live" else _log.warning
            say("store.mode", mode=self.modes.mode, before=before, endpoints=len(self.view.ids))
        if self.modes.flowing(now):
            self._let_go(self.view.expire(now))
        elif self.modes.stands(now):
            self._let_go(self.view.expire_missing(now, lambda name: now - self.answered_at(name) <= self._ttl_s))

    def _let_go(self, gone: Iterable[EndpointGone]) -> None:
        for event in gone:
            self._emit(event)
            self.modes.left(event.id)
            _log.info("endpoint.expired", id=event.id)


def _errors(tasks: Iterable[asyncio.Task[None]]) -> Iterable[Exception]:
    """Return what ended tasks, cancellation apart."""
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            yield error


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterable[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _never(_endpoint_id: str) -> float:
    return float("-inf")


def _nowhere(_event: Found) -> None:
    """Where events go before run() was given a place for them."""
