"""What the store says of the fleet, put together from full reads and deltas. Pure: replies and messages in, events out.

Deltas are applied in the order of their revisions on top of a full read. Where one is missing, or cannot be read on its
own, nothing more is applied until a read that began *after* that has come in; what arrives meanwhile waits. A read may
be older than deltas already applied (it travels on another connection), so each endpoint's own revision decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from router.model import EndpointGone, EndpointRecord, EndpointSeen, EndpointsHeard, GoneReason
from router.wire import (
    CONTENT_FIELD,
    MALFORMED,
    NEWS_FIELD,
    OVER_LIMIT,
    SCHEMA_VERSION,
    Delta,
    ModelNews,
    WireError,
    decode_delta,
    decode_fields,
    decode_news,
    decode_revision,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, KeysView, Sequence

Told = EndpointSeen | EndpointsHeard | EndpointGone

MAX_ENDPOINTS = 4096
"""Endpoints taken from one namespace; further ones are skipped and counted as bad records."""

MAX_WAITING = 4096
"""Deltas kept while a full read is under way; more than that, and the next read starts over."""

MAX_COMPLAINTS = 8
"""Texts kept of what was skipped for one reason: a few are logged, the counts say how many there were."""

_FORGOTTEN = -1
"""Revision of a record that an emptied store no longer knows: anything is newer."""


class Count(StrEnum):
    """What the view counts."""

    DELTAS = "deltas"
    GAPS = "gaps"
    READS = "reads"
    EMPTIED = "emptied"
    EXPIRED = "expired"


@dataclass(slots=True)
class _Known:
    """One endpoint as last told. ``reported_at`` is when its replicas were last sent; ``shown_at`` any sign of it.

    ``missing_since`` is when a full read first lacked it, None where that, or any message since, showed it.
    """

    fields: dict[str, str]
    record: EndpointRecord
    reported_at: float
    shown_at: float
    missing_since: float | None = None


class StoreView:
    """The fleet as the store tells it. ``needs_read`` says that a full read must be made."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._known: dict[str, _Known] = {}
        self._base: int | None = None  # revision up to which everything is applied; None before the first read
        self._last_delta = _FORGOTTEN
        self._read_base: int | None = None
        self._read_void = False  # the store was emptied since the current read began
        self._complete = False
        self._removed: dict[str, int] = {}  # since the current read began: a late reply must not bring them back
        self._refused: set[str] = set()  # what the last read showed and nobody here can read
        self._waiting: list[Delta] = []
        self.needs_read = True
        self.emptied = False
        self.counts: Counter[Count] = Counter()
        self.bad: Counter[str] = Counter()
        """How many records and messages were skipped, by reason (``router.wire.REASONS``)."""
        self.complaints: list[tuple[str, str]] = []
        """Reason and text of what was skipped, since last taken away by the shell (which logs them)."""
        self.news: list[tuple[str, ModelNews]] = []
        """What became of models, with the endpoint that says so, since last taken away by the shell."""

    def configure(self, ttl_s: float) -> None:
        """Let records live for another time from now on."""
        self._ttl_s = ttl_s

    @property
    def ids(self) -> KeysView[str]:
        """The endpoints that came and have not left."""
        return self._known.keys()

    @property
    def complete(self) -> bool:
        """Whether a full read has come in since the start."""
        return self._complete

    # --- full reads ---------------------------------------------------------------------------------------------

    def reconnected(self) -> None:
        """A new subscription stands: deltas may have been missed, a read must follow."""
        self._waiting.clear()
        self._last_delta = _FORGOTTEN
        self.needs_read = True
        self._none_missing()

    def _none_missing(self) -> None:
        for known in self._known.values():
            known.missing_since = None

    def read_begins(self) -> list[str]:
        """A full read is about to be asked for; what happens from here on is covered by it.

        Returns id and content revision, in turn, of what is known: the store need not tell again what did not change.
        """
        self.needs_read = False
        self._read_base = self._base
        self._read_void = False
        self._removed.clear()
        has: list[str] = []
        for id, known in self._known.items():  # noqa: A001
            content = known.fields.get(CONTENT_FIELD)
            if content is not None:
                has += (id, content)
        return has

    def read_ended(self, reply: Sequence[Any], now: float) -> Iterator[Told]:
        """Take in READ_LUA's reply. Where ``emptied`` is set afterwards, the store had lost its content.

        Raises:
            WireError: the reply has no revision, so nothing in it can be put in order.
        """
        revision, told = _parse_read(reply)
        self.counts[Count.READS] += 1
        if self._read_void:  # it may tell of the store as it was before
            self.needs_read = True
            return
        emptied = self._read_base is not None and revision < self._read_base
        if emptied:
            self.forget()
        self._refused.clear()
        lacked = set(self._known)
        for id, fields in told:  # noqa: A001
            lacked.discard(id)
            if isinstance(fields, str):
                self._read_none(id, MALFORMED, fields)
            elif not isinstance(fields, int):
                yield from self._read_one(id, fields, now)
            elif emptied:  # the same number in another store says nothing
                self.needs_read = True
            else:
                yield from self._read_same(id, fields, now)
        for id in lacked:  # noqa: A001
            known = self._known[id]
            if known.missing_since is None:
                known.missing_since = now
        self._base = revision if self._base is None else max(self._base, revision)
        self._complete = True
        if self.needs_read:  # a gap opened while this one was under way: the next read closes it
            return
        waiting, self._waiting = self._waiting, []
        for delta in waiting:
            yield from self._in_order(delta, now)

    def _read_one(self, id: str, fields: dict[str, str], now: float) -> Iterator[Told]:  # noqa: A002
        try:
            record = decode_fields(id, fields)
        except WireError as error:
            self._read_none(id, error.reason, str(error))
            return
        known = self._known.get(id)
        if known is None:
            if self._removed.get(id, _FORGOTTEN) > record.revision or not self._room(id):
                return
            self._known[id] = _Known(fields, record, now, now)
            yield EndpointSeen(record, now)
            return
        known.shown_at, known.missing_since = max(known.shown_at, now), None
        if record.revision <= known.record.revision:
            return
        same = _told(fields) == _told(known.fields)
        if not same:
            known.reported_at = now
            self._note_news(id, known.fields if known.record.epoch == record.epoch else {}, fields)
        known.fields, known.record = fields, record
        yield EndpointsHeard((id,), now) if same else EndpointSeen(record, now)

    def _read_none(self, id: str, reason: str, why: str) -> None:  # noqa: A002
        """A read showed something under this id that nobody here can read."""
        self._refused.add(id)
        self._complain(reason, why)
        if id in self._known:
            self._known[id].missing_since = None

    def _read_same(self, id: str, revision: int, now: float) -> Iterator[Told]:  # noqa: A002
        """A read found what is known; its revision shows whether it was heard since."""
        known = self._known.get(id)
        if known is None:  # it said goodbye meanwhile
            return
        known.shown_at, known.missing_since = max(known.shown_at, now), None
        if revision > known.record.revision:
            known.fields["rev"] = str(revision)
            known.record = replace(known.record, revision=revision)
            yield EndpointsHeard((id,), now)

    def forget(self) -> None:
        """The store came back empty or another one: keep what is known, but let anything it says be newer."""
        self._read_void = True
        self.counts[Count.EMPTIED] += 1
        self.emptied = True
        self._base = None
        self._last_delta = _FORGOTTEN
        self._waiting.clear()
        self._none_missing()
        for known in self._known.values():
            known.record = replace(known.record, revision=_FORGOTTEN)
            known.fields.pop(CONTENT_FIELD, None)

    # --- deltas -------------------------------------------------------------------------------------------------

    def message(self, payload: bytes | str, now: float) -> Iterator[Told]:
        """Take in one message of the delta channel."""
        try:
            delta = decode_delta(payload)
        except WireError as error:  # its revision is unknown: the next delta shows the gap
            self._complain(error.reason, str(error))
            return
        self.counts[Count.DELTAS] += 1
        if delta.revision <= self._last_delta:  # they come in order
            if self._base is None or self._last_delta <= self._base:
                self.forget()  # the counter was set back under a live connection
            else:  # or the last one named a revision that the store never had: a read tells
                self._read_void = True
                self._waiting.clear()
            self.needs_read = True
        self._last_delta = delta.revision
        if self.needs_read or self._base is None:
            self._wait(delta)
        else:
            yield from self._in_order(delta, now)

    def _in_order(self, delta: Delta, now: float) -> Iterator[Told]:
        assert self._base is not None  # noqa: S101  callers made sure of a read
        if delta.revision <= self._base:
            return
        if self.needs_read or delta.revision > self._base + 1:
            self.counts[Count.GAPS] += not self.needs_read
            self.needs_read = True
            self._wait(delta)
            return
        self._base = delta.revision
        yield from self._apply(delta, now)

    def _note_news(self, id: str, before: dict[str, str], after: dict[str, str]) -> None:  # noqa: A002
        """Keep what is new in a record's news; what was there when it was first read is old."""
        told, now = before.get(NEWS_FIELD, ""), after.get(NEWS_FIELD, "")
        if now in ("", told):
            return
        try:
            known = decode_news(id, told)[-1:] if told else []
            self.news += [(id, one) for one in decode_news(id, now, known[0].number if known else 0)]
        except WireError as error:
            self._complain(error.reason, str(error))

    def _wait(self, delta: Delta) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            self.needs_read = True
        self._waiting.append(delta)

    def _apply(self, delta: Delta, now: float) -> Iterator[Told]:
        known = self._known.get(delta.id)
        if delta.kind == "del":
            self._removed[delta.id] = delta.revision
            if known is not None:
                del self._known[delta.id]
                yield EndpointGone(delta.id, GoneReason.DEREGISTERED, now)
            return
        if known is not None and known.record.epoch != delta.epoch:
            known = None  # a new process under an old id: its first record is whole
        fields = {} if known is None else dict(known.fields)
        fields.update(delta.fields, epoch=delta.epoch, rev=str(delta.revision))
        if delta.kind == "beat" and known is not None:
            known.fields, known.shown_at, known.missing_since = fields, now, None
            known.record = replace(known.record, revision=delta.revision)
            yield EndpointsHeard((delta.id,), now)
            return
        fields.setdefault("v", str(SCHEMA_VERSION))
        fields[CONTENT_FIELD] = fields["rev"]
        try:
            record = decode_fields(delta.id, fields)
        except WireError as error:
            self._complain(error.reason, str(error))
            if known is None and (delta.kind == "set" or delta.id not in self._refused):
                self.needs_read = True  # part of a record that was never seen whole
            return
        if known is None and not self._room(delta.id):
            return
        self._note_news(delta.id, {} if known is None else known.fields, fields)
        reported_at = now if known is None or "replicas" in delta.fields else known.reported_at
        self._known[delta.id] = _Known(fields, record, reported_at, now)
        yield EndpointSeen(_aged(record, now - reported_at), now)

    # --- time ---------------------------------------------------------------------------------------------------

    def paused(self, for_s: float, now: float) -> None:
        """This process stood still for so long: whoever it did not hear meanwhile was not silent for it."""
        for known in self._known.values():
            known.shown_at = min(now, known.shown_at + for_s)
            if known.missing_since is not None:
                known.missing_since = min(now, known.missing_since + for_s)

    def expire(self, now: float) -> Iterator[EndpointGone]:
        """Let go of endpoints that neither delta nor read has shown for a TTL. Only asked while the store is live."""
        return self._let_go([name for name, known in self._known.items() if now - known.shown_at > self._ttl_s], now)

    def expire_missing(self, now: float, answers: Callable[[str], bool]) -> Iterator[EndpointGone]:
        """Let go of endpoints whose key a read lacked a TTL ago and of which nothing was heard since.

        That is what the store says itself, so it needs no other endpoint that speaks. One that ``answers`` requests is
        there all the same: what it lost is its way to the store.
        """
        lacked_before = now - self._ttl_s
        return self._let_go(
            [
                name
                for name, known in self._known.items()
                if known.missing_since is not None and known.missing_since < lacked_before and not answers(name)
            ],
            now,
        )

    def _let_go(self, ids: list[str], now: float) -> Iterator[EndpointGone]:
        for id in ids:  # noqa: A001
            del self._known[id]
            self.counts[Count.EXPIRED] += 1
            yield EndpointGone(id, GoneReason.EXPIRED, now)

    def _room(self, id: str) -> bool:  # noqa: A002
        if len(self._known) < MAX_ENDPOINTS or id in self._known:
            return True
        self._complain(OVER_LIMIT, f"endpoint {id!r}: more than {MAX_ENDPOINTS} endpoints in this namespace")
        return False

    def _complain(self, reason: str, text: str) -> None:
        self.bad[reason] += 1
        if sum(reason == before for before, _ in self.complaints) < MAX_COMPLAINTS:
            self.complaints.append((reason, text))


def _parse_read(reply: Sequence[Any]) -> tuple[int, Iterator[tuple[str, dict[str, str] | int | str]]]:
    """Return the revision, and id with hash, with revision alone where the reader has the rest, or with an error."""
    revision = decode_revision(reply[0] if reply else None)
    pairs = ((str(reply[at]), _as_hash(reply[at + 1])) for at in range(1, len(reply) - 1, 2))
    return revision, pairs


def _as_hash(flat: Any) -> dict[str, str] | int | str:
    """Return a hash, which is flat pairs, or a map where the server answers in RESP3; or the number or text it is."""
    if isinstance(flat, int | str):
        return flat
    if isinstance(flat, dict):
        return {str(name): str(value) for name, value in flat.items()}
    return {str(flat[at]): str(flat[at + 1]) for at in range(0, len(flat) - 1, 2)}


def _told(fields: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if name not in ("rev", CONTENT_FIELD)}


def _aged(record: EndpointRecord, by_s: float) -> EndpointRecord:
    """Return ``record`` with its replicas' durations brought forward from when they were reported."""
    if by_s <= 0:
        return record
    return replace(record, replicas=tuple(replace(r, warm_for_s=r.warm_for_s + by_s) for r in record.replicas))
