"""What becomes of endpoints' words where faults of signals are in force. Every time is monotonic seconds. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from router.model import EndpointSeen, EndpointsHeard, LoadReport, LoadsReported
from sidecar.faults.signals.kind import concerns
from sidecar.faults.signals.kinds import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.model import EndpointRecord
    from sidecar.faults.rules import FaultRule


class Word(NamedTuple):
    """What an endpoint said last, when it did, and when it was last heard."""

    record: EndpointRecord
    seen_at: float
    heard_at: float


class Signals:
    """The faults of signals in force, and what they keep of the endpoints that they withhold."""

    def __init__(self) -> None:
        self.rules: tuple[FaultRule, ...] = ()
        self._last: dict[str, Word] = {}

    def put(self, rules: Iterable[FaultRule], words: Iterable[Word]) -> list[str]:
        """Go by these rules from now on; return the endpoints of ``words`` whose words become others by it.

        ``words`` is what every endpoint that is there said last.
        """
        before, self.rules = self.rules, tuple(rule for rule in rules if rule.kind in SIGNALS)
        if before == self.rules:
            return []
        changed, last = [], {}
        for word in words:
            was = [rule for rule in before if concerns(rule, word.record)]
            now = [rule for rule in self.rules if concerns(rule, word.record)]
            if was != now:
                changed.append(word.record.id)
            if self._withheld(word.record):
                # what is withheld from now on was heard until now; what was before, was not
                kept = self._last.get(word.record.id) if self._withheld_by(before, word.record) else word
                if kept is not None:
                    last[word.record.id] = kept
        self._last = last
        return changed

    def gone(self, id: str) -> None:  # noqa: A002
        """Forget an endpoint that is gone."""
        self._last.pop(id, None)

    def told(self, word: Word) -> Word | None:
        """Return what is told of an endpoint in place of its word; None: it is not heard of at all."""
        if not self.rules:
            return word
        if self._withheld(word.record):
            kept = self._last.get(word.record.id)
            if kept is None:
                return None
            word = kept
        record, late_s = word.record, 0.0
        for rule in self.rules:
            if concerns(rule, record):
                kind = SIGNALS[rule.kind]
                record = kind.record(record, rule) or record
                late_s += kind.lateness_s(rule)
        return Word(record, word.seen_at - late_s, word.heard_at - late_s)

    def seen(self, event: EndpointSeen) -> EndpointSeen | None:
        """Return what becomes of a report that comes in."""
        if not self.rules:
            return event
        word = Word(event.record, event.at, event.at)
        if self._withheld(event.record):
            if not event.record.static or event.record.id in self._last:
                return None
            self._last[event.record.id] = word  # that it is there is no word of its own
        told = self.told(word)
        return None if told is None else EndpointSeen(told.record, told.seen_at)

    def heard(self, event: EndpointsHeard, records: Iterable[EndpointRecord]) -> Iterator[EndpointsHeard]:
        """Yield what becomes of signs of life; ``records`` are what the endpoints said last. The first is unaltered."""
        on_time, late = [], []
        for record in records:
            if self._withheld(record):
                continue
            late_s = sum(SIGNALS[rule.kind].lateness_s(rule) for rule in self.rules if concerns(rule, record))
            if late_s:
                late.append(EndpointsHeard((record.id,), event.at - late_s))
            else:
                on_time.append(record.id)
        yield EndpointsHeard(tuple(on_time), event.at)
        yield from late

    def reported(self, event: LoadsReported, records: dict[str, EndpointRecord]) -> LoadsReported:
        """Return what becomes of load reports; ``records`` are what the endpoints said last, by id."""
        if not self.rules:
            return event
        reports: list[tuple[str, LoadReport]] = []
        for id_, report in event.reports:
            altered: LoadReport | None = report
            for rule in self.rules:
                if altered is not None and id_ in records and concerns(rule, records[id_]):
                    altered = SIGNALS[rule.kind].report(altered, rule)
            if altered is not None:
                reports.append((id_, altered))
        return LoadsReported(tuple(reports), event.at)

    def _withheld(self, record: EndpointRecord) -> bool:
        return self._withheld_by(self.rules, record)

    @staticmethod
    def _withheld_by(rules: tuple[FaultRule, ...], record: EndpointRecord) -> bool:
        return any(
            SIGNALS[rule.kind].withholds or SIGNALS[rule.kind].record(record, rule) is None
            for rule in rules
            if concerns(rule, record)
        )
