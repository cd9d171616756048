"""How fast a sidecar asks its endpoints: so many questions a second, whoever they are for. Pure."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""Where nothing was asked for a while, as many questions as this time allows go at once."""


class Pace:
    """Hands out moments. Times are monotonic seconds; what is booked is kept in the order of booking."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next = float("-inf")
        self.late = 0
        """Bookings that had to wait."""

    def configure(self, per_s: float) -> None:
        """Go by another rate from the next booking on."""
        self._per_s = per_s

    def spare(self, now: float) -> bool:
        """Return whether as many questions are left as half of the burst: those who hurry take of no others' share."""
        return self._next <= now - BURST_S / 2

    def book(self, questions: int, now: float) -> float:
        """Take so many questions; return how many seconds to wait before they are asked."""
        at = max(self._next, now - BURST_S)
        self._next = at + questions / self._per_s
        wait_s = at - now
        if wait_s <= 0:
            return 0.0
        self.late += 1
        return wait_s
