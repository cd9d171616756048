"""Between a source and the roster: what it finds ready is warming until the model's warm-up requests succeeded.

Any source may be wrapped so. Workers that report themselves to the shared state prove themselves, and their source is
not. The requests are sent here alone, once per sidecar however many data processes it has, at the rate of probes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from router.model import EndpointEjected, EndpointGone, EndpointSeen, State
from router.policy import ShardMode
from sidecar.discovery.proving import MEMBER, RETURNED, Proving
from sidecar.discovery.static import FIRST_PROBES_S
from sidecar.settings import BODY_FILE_BYTES
from sidecar.telemetry.logs import get_log
from sidecar.upstreams.adapters import Answer, Question, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.model import EndpointRecord, Replica
    from sidecar.discovery.proving import ShapeClass
    from sidecar.discovery.source import DiscoverySource, Emit, Found
    from sidecar.settings import Settings, Warmup, WarmupRequest
    from sidecar.upstreams.pace import Pace
    from sidecar.upstreams.probes import Ask, HttpProber

BACKGROUND: Final = ("warmroute-background", "1")
"""Marks a request that nobody waits for."""
WATCH_AGAIN_S: Final = 1.0
"""A watched connection that ended is opened again so much later, up to twice as long at random."""
_JSON: Final = ("content-type", "application/json")

_log = get_log("warmup")

Key = tuple[str, str, str]
"""What is proven: endpoint id, model, version."""
Member = tuple[int, str, str, str]
"""A shard that answers together with what is proven: shard, and id, epoch and address of who has it."""


def warmups(settings: Settings) -> dict[str, Warmup]:
    """Return the warm-up of each model that has one."""
    return {model.name: model.warmup for model in settings.models if model.warmup is not None}


def asked_shards(settings: Settings) -> dict[str, int]:
    """Return the shard that takes requests, of each model whose shards answer together: its answers prove all."""
    return {model.name: model.shards.entry for model in settings.models if model.shards.mode is ShardMode.TENSOR}


class _Charge:
    """One replica to be proven, and the tasks that send its requests."""

    def __init__(self, plan: Warmup, rng: Callable[[], float]) -> None:
        self.plan = plan
        self.proving = Proving(plan, rng)
        self.wake = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.watch: asyncio.Task[None] | None = None
        self.shown: tuple[State, str] | None = None
        self.members: frozenset[Member] | None = None
        """The other shards of its group that are ready, as it was last told; None before."""

    def end(self) -> None:
        """Stop its tasks."""
        for task in self.tasks:
            task.cancel()
        if self.watch is not None:
            self.watch.cancel()


class WarmedSource:
    """``source``, whose replicas of models with a warm-up are proven first. Takes its place as a source.

    ``ask`` sends the requests, ``prober`` (where there is one) opens the watched connections; ``pace`` is shared with
    probes. Times are monotonic seconds. ``asked`` are the shards that take requests, of models whose others do not.
    """

    def __init__(
        self,
        source: DiscoverySource,
        plans: Mapping[str, Warmup],
        ask: Ask,
        pace: Pace,
        *,
        clock: Callable[[], float],
        rng: Callable[[], float],
        prober: HttpProber | None = None,
        first_s: float = FIRST_PROBES_S,
        asked: Mapping[str, int] | None = None,
    ) -> None:
        self.name = source.name
        self._asked = dict(asked or {})
        self._source = source
        self._plans = dict(plans)
        self._ask = ask
        self._pace = pace
        self._clock = clock
        self._rng = rng
        self._prober = prober
        self._first_s = first_s
        self._began_at = clock()
        self._records: dict[str, EndpointRecord] = {}
        self._said: dict[str, EndpointRecord] = {}
        self._charges: dict[Key, _Charge] = {}
        self._emit: Emit | None = None
        self._tasks: asyncio.TaskGroup
        self.answered_at: Callable[[str], float] = lambda _: -inf
        """Returns when an endpoint last answered a request, for keeping warm those that did not for long."""
        self.results: Counter[tuple[str, str, str]] = Counter()
        """Warm-up requests by model, shape class and result."""
        self.seconds: Counter[tuple[str, str]] = Counter()
        """Time that their answers took, by model and shape class."""

    @property
    def tried(self) -> bool:
        """Whether the source's first attempt is over, and each warm-up has come to something (or takes too long)."""
        if not self._source.tried:
            return False
        waiting = any(one.proving.ready and not one.proving.judged for one in self._charges.values())
        return not waiting or self._clock() - self._began_at >= self._first_s

    @property
    def complete(self) -> bool:
        """Whether the source has emitted all."""
        return self._source.complete

    @property
    def warming(self) -> dict[str, int]:
        """How many endpoints each model has that are ready and not proven."""
        out = dict.fromkeys(self._plans, 0)
        for (_, model, _), one in self._charges.items():
            out[model] += one.proving.ready and not one.proving.warm
        return out

    async def run(self, emit: Emit) -> None:
        """Emit what the source does, with the state of what is to be proven; and again whenever that changes."""
        self._began_at = self._clock()
        async with asyncio.TaskGroup() as self._tasks:
            self._emit = emit
            self._tasks.create_task(self._source.run(self._take), name=self.name)

    def configure(self, plans: Mapping[str, Warmup], asked: Mapping[str, int] | None = None) -> None:
        """Go by other warm-ups; what they leave as it was stays proven."""
        before = self._plans, self._asked
        self._plans, self._asked = dict(plans), dict(asked or {})
        if before == (self._plans, self._asked):
            return
        for (_, model, _), charge in self._charges.items():
            plan = self._plans.get(model)
            if plan is not None and plan != charge.plan:
                charge.plan = plan
                charge.proving.configure(plan)
                charge.end()
                charge.tasks, charge.watch = [], None
        if self._emit is not None:
            for record in tuple(self._records.values()):
                self._seen(record)

    def ejected(self, event: EndpointEjected) -> None:
        """Take that a data process saw the endpoint's connections break: another process may stand there now."""
        if any(charge.proving.broke(event.at) for key, charge in self._charges.items() if key[0] == event.id):
            self._changed(event.id)

    # --- what the source says ------------------------------------------------------------------------------------

    def _take(self, event: Found) -> None:
        assert self._emit is not None  # noqa: S101  it was given before the source ran
        if isinstance(event, EndpointSeen):
            self._seen(event.record)
            return
        if isinstance(event, EndpointGone):
            gone = self._records.pop(event.id, None)
            self._said.pop(event.id, None)
            self._drop(key for key in tuple(self._charges) if key[0] == event.id)
            self._regroup(event.id, gone)
        self._emit(event)

    def _seen(self, record: EndpointRecord) -> None:
        before = self._records.get(record.id)
        same = before is not None and (before.address, before.epoch) == (record.address, record.epoch)
        if not same:
            self._drop(key for key in tuple(self._charges) if key[0] == record.id)
        self._records[record.id] = record
        self._regroup(record.id, before, record)  # before others hear of it: who proved a group without it is not asked
        held = {(one.model, one.version): one for one in record.replicas if self._is_proven_here(one)}
        self._drop(key for key in tuple(self._charges) if key[0] == record.id and key[1:] not in held)
        for (model, version), replica in held.items():
            key = (record.id, model, version)
            charge = self._charges.get(key)
            if charge is None:
                charge = self._charges[key] = _Charge(self._plans[model], self._rng)
                if same and self._was_warm(key):  # its model has a warm-up since a reload
                    charge.proving.grant()
            self._tell(charge, record, replica)
            self._follow(key, charge)
            charge.wake.set()
        self._say(record)

    def _tell(self, charge: _Charge, record: EndpointRecord, replica: Replica) -> None:
        """Have a charge know whether its replica is ready, and the rest of its group: it answers by all of them."""
        now = self._clock()
        if replica.state is not State.WARM:
            charge.proving.told(ready=False, now=now, why=RETURNED)
            return
        whole = True
        if replica.shard_count > 1 and replica.model in self._asked:
            before, members = charge.members, self._members(record, replica)
            charge.members = members
            whole = len({member[0] for member in members}) == replica.shard_count - 1
            if before is not None and not members <= before:  # another process has the shard, or has it again
                charge.proving.told(ready=False, now=now, why=MEMBER)
        charge.proving.told(ready=whole, now=now, why=MEMBER)

    def _members(self, record: EndpointRecord, entry: Replica) -> frozenset[Member]:
        """Return the other shards that are ready of the group that ``entry`` of ``record`` takes requests for."""
        alone = len({one.shard for one in record.replicas if _are_one(one, entry)}) == entry.shard_count
        return frozenset(
            (one.shard, other.id, other.epoch, other.address)
            for other in ((record,) if alone else self._records.values())
            if other.protocol == record.protocol
            for one in other.replicas
            if one.shard != entry.shard and one.state is State.WARM and _are_one(one, entry)
        )

    def _regroup(self, id: str, *records: EndpointRecord | None) -> None:  # noqa: A002
        """Have those that take requests for groups of these records, of one endpoint before and after, look again."""
        versions = {
            (one.model, one.version)
            for record in records
            if record is not None
            for one in record.replicas
            if one.shard_count > 1 and one.model in self._asked
        }
        if not versions:
            return
        for key, charge in tuple(self._charges.items()):
            if key[1:] in versions and key[0] != id:
                record = self._records[key[0]]
                for one in record.replicas:
                    if (one.model, one.version) == key[1:] and self._is_proven_here(one):
                        self._tell(charge, record, one)
                self._changed(key[0])

    def _was_warm(self, key: Key) -> bool:
        said = self._said.get(key[0])
        return said is not None and any(
            (one.model, one.version) == key[1:] and one.state is State.WARM for one in said.replicas
        )

    def _is_proven_here(self, replica: Replica) -> bool:
        if replica.model not in self._plans:
            return False
        return replica.shard_count == 1 or self._asked.get(replica.model, replica.shard) == replica.shard

    def _drop(self, keys: object) -> None:
        for key in list(keys):  # type: ignore[call-overload]
            self._charges.pop(key).end()

    def _changed(self, id: str) -> None:  # noqa: A002
        """Emit an endpoint again, and have its tasks look."""
        for key, charge in self._charges.items():
            if key[0] == id:
                charge.wake.set()
        record = self._records.get(id)
        if record is not None and self._with_proofs(record) != self._said[id]:
            self._say(record)

    def _say(self, record: EndpointRecord) -> None:
        assert self._emit is not None  # noqa: S101
        said = self._said[record.id] = self._with_proofs(record)
        self._log_changes(record.id)
        self._emit(EndpointSeen(said, self._clock()))

    def _with_proofs(self, record: EndpointRecord) -> EndpointRecord:
        return replace(record, replicas=tuple(self._judged(record.id, replica) for replica in record.replicas))

    def _log_changes(self, id: str) -> None:  # noqa: A002
        for (name, model, _), charge in self._charges.items():
            if name != id:
                continue
            shown = charge.proving.state
            if charge.proving.ready and shown != charge.shown:
                charge.shown = shown
                say = _log.info if shown[0] is State.WARM else _log.warning
                say("warmup.changed", id=id, model=model, state=shown[0], reason=shown[1])

    def _judged(self, id: str, replica: Replica) -> Replica:  # noqa: A002
        charge = self._charges.get((id, replica.model, replica.version))
        if charge is None:
            return replica
        proving = charge.proving
        state, reason = (replica.state, replica.reason) if replica.state is not State.WARM else proving.state
        return replace(
            replica, state=state, reason=reason_of(reason), warmth=proving.warmth, proven_at=proving.proven_at
        )

    # --- sending -------------------------------------------------------------------------------------------------

    def _follow(self, key: Key, charge: _Charge) -> None:
        """Have the requests of a charge sent, by as many tasks as may be at once."""
        if not charge.tasks:
            charge.tasks = [
                self._tasks.create_task(self._send_all(key, charge), name=f"warmup-{key[0]}-{key[1]}")
                for _ in range(min(charge.plan.parallel, len(charge.plan.requests)))
            ]

    async def _send_all(self, key: Key, charge: _Charge) -> None:
        proving = charge.proving
        while True:
            charge.wake.clear()
            one = proving.take(self._clock())
            if one is None:
                now = self._clock()
                idle_at = proving.keep_warm(self.answered_at(key[0]), now)
                await self._wait(charge, min(proving.next_at(), idle_at) - now)
                continue
            try:
                await self._send(key, charge, one)
            finally:
                one.under_way = False

    @staticmethod
    async def _wait(charge: _Charge, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == inf else max(0.0, seconds)):
                await charge.wake.wait()
        except TimeoutError:
            pass

    async def _send(self, key: Key, charge: _Charge, one: ShapeClass) -> None:
        id, model, _ = key  # noqa: A001
        late_s = self._pace.book(1, self._clock())
        if late_s:
            await asyncio.sleep(late_s)
        began = self._clock()
        try:
            question = question_of(one.request, await _content(one.request))
        except OSError as error:
            answer = Answer(None, f"body_file {one.request.body_file}: {error.strerror or error}")
        else:
            began = self._clock()
            (answer,) = await self._ask(self._records[id].address, (question,), charge.plan.timeout_s)
        now = self._clock()
        result = charge.proving.took(one, answer, began, now)
        self.results[model, one.request.name, result] += 1
        self.seconds[model, one.request.name] += now - began  # type: ignore[assignment]
        self._changed(id)
        if charge.proving.warm:
            self._watch(key, charge)

    # --- watching ------------------------------------------------------------------------------------------------

    def _watch(self, key: Key, charge: _Charge) -> None:
        """Keep a connection to what is proven: where the process ends, so does that, whatever comes in its place."""
        if self._prober is None or not charge.plan.watch or charge.watch is not None:
            return
        charge.watch = self._tasks.create_task(self._watch_one(key, charge), name=f"watch-{key[0]}")

    async def _watch_one(self, key: Key, charge: _Charge) -> None:
        assert self._prober is not None  # noqa: S101
        while charge.proving.warm:
            try:
                async with asyncio.timeout(charge.plan.timeout_s):
                    reader, writer = await self._prober.connect(self._records[key[0]].address, 0)
            except (OSError, ValueError):  # a timeout is an OSError, too
                self._closed(key, charge)
            else:
                try:
                    while await reader.read(65536):
                        pass
                except OSError:
                    pass
                finally:
                    writer.transport.abort()
                self._closed(key, charge)
            await asyncio.sleep(WATCH_AGAIN_S * (1 + self._rng()))
        charge.watch = None

    def _closed(self, key: Key, charge: _Charge) -> None:
        """Take that a watched connection ended, which servers also do for want of requests.

        So it goes out at once only where at least half of those that hold the model stay; else it is proven again while
        it goes on.
        """
        if not charge.proving.warm:
            return
        now = self._clock()
        held = [other.proving for other_key, other in self._charges.items() if other_key[1:] == key[1:]]
        out = 2 * (sum(one.warm for one in held) - 1) >= len(held)
        if out:
            charge.proving.closed(now)
        else:
            charge.proving.doubt(now)
        _log.info("warmup.watched_closed", id=key[0], model=key[1], out=out)
        self._changed(key[0])


async def _content(request: WarmupRequest) -> bytes:
    """Return what is in the file of a request, where it has one.

    Raises:
        OSError: it cannot be read, or is too large.
    """
    return b"" if request.body_file is None else await asyncio.to_thread(read_body, request.body_file)


def read_body(name: str) -> bytes:
    """Return what is in the file of a warm-up request.

    Raises:
        OSError: it cannot be read, or is too large.
    """
    with Path(name).open("rb") as file:
        body = file.read(BODY_FILE_BYTES + 1)
    if len(body) > BODY_FILE_BYTES:
        raise OSError(f"more than {BODY_FILE_BYTES} bytes")
    return body


def question_of(request: WarmupRequest, content: bytes = b"") -> Question:
    """Return a warm-up request as it is sent; ``content`` is that of its file, where it has one."""
    fields = dict(request.headers)
    body = content
    if request.json is not None:
        body = msgspec.json.encode(request.json)
        if _JSON[0] not in {name.lower() for name in fields}:
            fields[_JSON[0]] = _JSON[1]
    elif request.body is not None:
        body = request.body.encode()
    fields[BACKGROUND[0]] = BACKGROUND[1]
    most = request.max_answer_bytes
    return Question(request.path, body_bytes=most, method=request.method, fields=tuple(fields.items()), body=body)


def _are_one(one: Replica, other: Replica) -> bool:
    """Return whether two replicas are, or may be, shards of one group."""
    return (one.model, one.version, one.group, one.generation, one.shard_count) == (
        other.model, other.version, other.group, other.generation, other.shard_count
    )  # fmt: skip
