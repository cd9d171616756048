"""All that a data process must know, as the control process keeps it: endpoints, holds, ejections, faults, mode. Pure.

It can be told as a whole at any time (:meth:`Roster.snapshot`), which is how a process that starts, or that fell
behind, is brought up to date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointHeld,
    EndpointRecord,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    SnapshotBegan,
    SnapshotEnded,
    StoreChanged,
    StoreMode,
)
from sidecar.channel import FaultsChanged
from sidecar.faults.signals.altering import Word
from sidecar.faults.signals.terms import TERMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sidecar.discovery.source import Found
    from sidecar.faults.rules import FaultRule

MAX_HELD = 4096
"""Endpoints that may be held at once, the ones that are away included."""

HEARD_IDS = 128
"""Ids in one EndpointsHeard: what a message holds even where every id is as long as it may be (router/wire.py)."""

Guarded = tuple[str, EjectCause, str, str, int]
"""An ejection by endpoint id, cause, and, where that is a breaker, the model and version that it is for."""

RECALLED = "memory"
"""Source of endpoints that an earlier control process knew: whoever really knows them takes them over."""

_HEARD_STEP_S = 0.1


@dataclass(slots=True)
class _Entry:
    record: EndpointRecord
    source: str
    seen_at: float
    heard_at: float

    @property
    def word(self) -> Word:
        return Word(self.record, self.seen_at, self.heard_at)


def guarded(event: EndpointEjected | EndpointReturned) -> Guarded:
    """Return which ejection an event is about."""
    return event.id, event.cause, event.model, event.version, event.shard


class RosterError(ValueError):
    """Something an operator asked for that cannot be; the text says why."""


class Roster:
    """The whole of what data processes are told. Every time is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._entries: dict[str, _Entry] = {}
        self.held: set[str] = set()
        self.faults: dict[str, FaultRule] = {}
        self.mode = StoreMode.LIVE
        self._mode_at = now
        self._ejected: dict[Guarded, EndpointEjected] = {}

    def __contains__(self, endpoint_id: object) -> bool:
        return endpoint_id in self._entries

    @property
    def ids(self) -> Iterable[str]:
        """The endpoints that are there."""
        return self._entries.keys()

    def record(self, id: str) -> EndpointRecord | None:  # noqa: A002
        """Return what endpoint ``id`` last reported."""
        entry = self._entries.get(id)
        return entry.record if entry is not None else None

    def records(self) -> Iterator[tuple[EndpointRecord, str, float]]:
        """Yield (record, source, when it was last heard), by id."""
        for id in sorted(self._entries):  # noqa: A001
            entry = self._entries[id]
            yield entry.record, entry.source, entry.heard_at

    def word(self, id: str) -> Word | None:  # noqa: A002
        """Return what endpoint ``id`` last reported, and when it was heard."""
        entry = self._entries.get(id)
        return entry.word if entry is not None else None

    def words(self) -> Iterator[Word]:
        """Yield what each endpoint last reported, and when it was heard."""
        return (entry.word for entry in self._entries.values())

    # --- what sources say ---------------------------------------------------------------------------------------

    def found(self, source: str, event: Found) -> Found | None:
        """Take in what a source says; return what of it is to be passed on, None where another source owns it all."""
        if isinstance(event, StoreChanged):
            self.mode, self._mode_at = event.mode, event.at
            return event
        if isinstance(event, EndpointsHeard):
            mine = tuple(name for name in event.ids if self._owned(name, source))
            for name in mine:
                self._entries[name].heard_at = event.at
            return EndpointsHeard(mine, event.at) if mine else None
        if isinstance(event, EndpointGone):
            if not self._owned(event.id, source):
                return None
            del self._entries[event.id]
            self._forget_ejections(event.id)
            return event
        record = event.record
        entry = self._entries.get(record.id)
        if entry is not None and entry.source not in (source, RECALLED):
            return None
        if entry is not None and entry.record.epoch != record.epoch:
            self._forget_ejections(record.id)  # another process: it has not failed yet
        self._entries[record.id] = _Entry(record, source, event.at, event.at)
        return event

    def _owned(self, id: str, source: str) -> bool:  # noqa: A002
        entry = self._entries.get(id)
        return entry is not None and entry.source == source

    # --- what data processes and operators say ------------------------------------------------------------------

    @property
    def ejections(self) -> Iterable[Guarded]:
        """Which ejections are in force."""
        return self._ejected.keys()

    def ejected(self, event: EndpointEjected) -> None:
        """A data process ejected an endpoint."""
        if event.id in self._entries:
            self._ejected[guarded(event)] = event

    def returned(self, event: EndpointReturned) -> None:
        """A data process saw an ejected endpoint answer."""
        self._ejected.pop(guarded(event), None)

    def _forget_ejections(self, id: str) -> None:  # noqa: A002
        for key in [key for key in self._ejected if key[0] == id]:
            del self._ejected[key]

    def hold(self, id: str, *, held: bool) -> None:  # noqa: A002
        """Drain (``held``) or resume an endpoint by an operator's will; it outlives the endpoint's absence.

        Raises:
            RosterError: too many are held.
        """
        if not held:
            self.held.discard(id)
        elif len(self.held) >= MAX_HELD and id not in self.held:
            raise RosterError(f"{MAX_HELD} endpoints are held already: resume some first")
        else:
            self.held.add(id)

    def expire(self, now: float) -> bool:
        """Drop what ended by itself; return whether a fault did."""
        for key in [key for key, event in self._ejected.items() if event.until <= now]:
            del self._ejected[key]
        ended = [name for name, rule in self.faults.items() if rule.until <= now]
        for name in ended:
            del self.faults[name]
        return bool(ended)

    # --- telling it ---------------------------------------------------------------------------------------------

    def faults_message(self) -> FaultsChanged:
        """Return the whole list of faults in force that strike attempts; those of signals are this process's alone."""
        return FaultsChanged(tuple(rule for rule in self.faults.values() if rule.kind not in TERMS))

    def snapshot(
        self, sequence: int, now: float, told: Callable[[Word], Word | None] = lambda word: word
    ) -> list[object]:
        """Return all of it as messages: what is not named is gone. ``told`` says what is told of an endpoint's word.

        Ejections come as of the report that stands before them, or they would seem to be those of an earlier process.
        """
        messages: list[object] = [SnapshotBegan(sequence, now)]
        words = [word for word in map(told, self.words()) if word is not None]
        messages += (EndpointSeen(word.record, word.seen_at) for word in words)
        messages += _heard(words)
        messages.append(SnapshotEnded(sequence, now))
        messages.append(StoreChanged(self.mode, self._mode_at))
        messages += (EndpointHeld(name, held=True, at=now) for name in sorted(self.held))
        messages += (
            replace(event, at=max(event.at, self._entries[event.id].seen_at)) for event in self._ejected.values()
        )
        messages.append(self.faults_message())
        return messages


def _heard(words: Iterable[Word]) -> Iterator[EndpointsHeard]:
    """Yield the later signs of life, grouped to a tenth of a second."""
    groups: dict[int, list[Word]] = {}
    for word in words:
        if word.heard_at > word.seen_at:
            groups.setdefault(int(word.heard_at / _HEARD_STEP_S), []).append(word)
    for _, group in sorted(groups.items()):
        yield from heard_messages([word.record.id for word in group], min(word.heard_at for word in group))


def heard_messages(ids: list[str], at: float) -> Iterator[EndpointsHeard]:
    """Yield EndpointsHeard for ``ids`` in pieces that fit a message."""
    for start in range(0, len(ids), HEARD_IDS):
        yield EndpointsHeard(tuple(ids[start : start + HEARD_IDS]), at)
