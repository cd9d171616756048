"""A replica's state machine: the transitions of ``router.model.STATE_NEXT``, and who is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.model import STATE_NEXT, State

if TYPE_CHECKING:
    from collections.abc import Callable


class TransitionError(Exception):
    """A transition that the table does not have: a defect of the program, not of its input."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step: from where, where to, why, and how long the state before it had lasted, in seconds."""

    before: State
    after: State
    reason: str
    lasted_s: float


class Lifecycle:
    """One replica's state. ``now`` is seconds on a monotonic clock."""

    def __init__(self, now: float, on_transition: Callable[[Transition], None]) -> None:
        self._state = State.COLD
        self._since = now
        self._reason = ""
        self._on_transition = on_transition

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the state was entered, where there is a reason to give."""
        return self._reason

    def in_state_s(self, now: float) -> float:
        """Return for how many seconds the state has lasted."""
        return max(0.0, now - self._since)

    def to(self, state: State, now: float, reason: str = "") -> None:
        """Enter ``state`` and tell of it.

        Raises:
            TransitionError: ``STATE_NEXT`` has no such step.
        """
        if state not in STATE_NEXT[self._state]:
            raise TransitionError(f"{self._state.value} -> {state.value}")
        transition = Transition(self._state, state, reason, self.in_state_s(now))
        self._state, self._since, self._reason = state, now, reason
        self._on_transition(transition)
