"""Who of a route's candidates may be picked, whatever balancer picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.endpoint import Endpoint
    from router.protocols import Choosable


class FitAt:
    """Who may be picked at one moment: who is open then, has room, and is not ``tried``.

    ``busy``: those that pushed back, because nobody else is left. ``panic``: those that are ejected too, because too
    few are left. ``spare``: so many free places of whoever is picked are left to others.
    """

    __slots__ = ("_busy", "_now", "_panic", "_spare", "_tried")

    def __init__(
        self, now: float, tried: Endpoint | None, *, busy: bool = False, panic: bool = False, spare: int = 0
    ) -> None:
        self._panic = panic
        self._now = now
        self._tried = tried
        self._busy = busy
        self._spare = spare

    def admits(self, candidate: Choosable) -> bool:
        """Return whether ``candidate`` may be picked; count it as passed over where it is merely full."""
        endpoint = candidate.endpoint
        if self._now < self._until(candidate) and endpoint is not self._tried:
            if endpoint.in_flight + self._spare < endpoint.cap:
                return True
            if endpoint.full:
                endpoint.passed_over += 1
        return False

    def _until(self, candidate: Choosable) -> float:
        if self._busy:
            return candidate.fit_until
        return candidate.panic_until if self._panic else candidate.open_until

    def left(self, candidates: Sequence[Choosable]) -> list[int]:
        """Return the indices of all that may be picked; counts nothing."""
        return [
            index
            for index, candidate in enumerate(candidates)
            if self._now < self._until(candidate)
            and candidate.endpoint is not self._tried
            and candidate.endpoint.in_flight + self._spare < candidate.endpoint.cap
        ]


class FitBeside(FitAt):
    """Who may be picked for work of our own: who is open, has half of its places free with it, and has nobody waiting.

    Nobody counts as passed over: no caller wanted it.
    """

    __slots__ = ()

    def __init__(self, now: float) -> None:
        super().__init__(now, None)

    def admits(self, candidate: Choosable) -> bool:
        """Return whether ``candidate`` may be picked."""
        endpoint = candidate.endpoint
        return (
            self._now < candidate.open_until
            and (endpoint.in_flight + 1) * 2 <= endpoint.cap
            and not endpoint.waited_for()
        )

    def left(self, candidates: Sequence[Choosable]) -> list[int]:
        """Return the indices of all that may be picked."""
        return [index for index, candidate in enumerate(candidates) if self.admits(candidate)]


class Anyone:
    """Everybody may be picked: those that an explanation asks about have been looked at before."""

    __slots__ = ()

    def admits(self, candidate: Choosable) -> bool:
        """Return True."""
        return True

    def left(self, candidates: Sequence[Choosable]) -> list[int]:
        """Return all."""
        return list(range(len(candidates)))
