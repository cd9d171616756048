"""Virtual time: calls in the order of their moments, each at its own; the clock jumps from one to the next."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Timeline:
    """What will happen. Of two calls at one moment the one that was put down first comes first."""

    __slots__ = ("_order", "_pending", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._pending: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def at(self, moment: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Have ``call(argument)`` happen at ``moment``, which is not before now."""
        self._order += 1
        heappush(self._pending, (moment, self._order, call, argument))

    def every(self, interval_s: float, call: Callable[[float], None], first: float) -> None:
        """Have ``call(now)`` happen at ``first`` and each ``interval_s`` from then on."""

        def again(_: None) -> None:
            self.at(self.now + interval_s, again)
            call(self.now)

        self.at(first, again)

    def run(self, until: float) -> None:
        """Let everything happen up to ``until``."""
        pending = self._pending
        while pending and pending[0][0] <= until:
            self.now, _, call, argument = heappop(pending)
            call(argument)
        self.now = until
