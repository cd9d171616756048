"""What became of a worker's models lately: told to the shared state, so that every sidecar's log has it."""

from __future__ import annotations

from collections import Counter, deque

from router.wire import MAX_NEWS, NEWS_FIELD, ModelEvent, ModelNews, encode_news

_REASON_CHARS = 200


class News:
    """The last few things that became of models. Used on the event loop only."""

    def __init__(self) -> None:
        self._last: deque[ModelNews] = deque(maxlen=MAX_NEWS)
        self._number = 0
        self.counts: Counter[ModelEvent] = Counter()
        """How often each became of any model since the process started."""
        self.not_given_back = 0
        """How often an engine failed to give back what it had of a model that nobody used any more."""
        self._fields: dict[str, str] = {}

    def add(self, event: ModelEvent, model: str, version: str, reason: str = "") -> None:
        """Note that ``event`` became of a model version."""
        self._number += 1
        self.counts[event] += 1
        self._last.append(ModelNews(self._number, event, model, version, reason[:_REASON_CHARS]))
        self._fields = {NEWS_FIELD: encode_news(self._last)}

    def fields(self) -> dict[str, str]:
        """Return what the record says of it; nothing as long as there is nothing."""
        return self._fields
