"""The router's extension points. Each has one job, no state of its own, and no way to reach a socket or a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.model import EndpointRecord, Replica, StoreMode
    from router.outcomes import Reason

Rng = Callable[[], float]
"""Returns a float in [0, 1)."""


class Candidate(Protocol):
    """What filters and scorers see of one replica on one endpoint. Read only."""

    @property
    def record(self) -> EndpointRecord: ...  # noqa: D102
    @property
    def replica(self) -> Replica: ...  # noqa: D102
    @property
    def age_s(self) -> float: ...  # noqa: D102
    @property
    def warm_for_s(self) -> float: ...  # noqa: D102
    @property
    def p95_ms(self) -> float | None: ...  # noqa: D102
    @property
    def held(self) -> bool: ...  # noqa: D102
    @property
    def quarantined(self) -> bool: ...  # noqa: D102
    @property
    def breaker_open(self) -> bool: ...  # noqa: D102
    @property
    def busy(self) -> bool: ...  # noqa: D102


class Filter(Protocol):
    """Says why a replica may not be picked, or None where it may."""

    name: str

    def __call__(self, candidate: Candidate, mode: StoreMode) -> Reason | None:
        """Return the reason to leave ``candidate`` out under store mode ``mode``, or None."""


class Scorer(Protocol):
    """Turns one signal into [0, 1] for each candidate; the weights stand outside, in ScoringPolicy."""

    name: str
    unit: str
    """Unit of what :meth:`raw` returns, for people."""
    observed: bool
    """True where this sidecar measured the signal itself, so that it stays good while the store is silent."""

    def raw(self, candidate: Candidate) -> float | None:
        """Return the signal before scoring, in ``unit``; None where it is unknown. For explanations."""

    def __call__(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Return one score in [0, 1] per candidate, None where the signal is unknown for it."""


PickerFactory = Callable[[Sequence[float]], "Picker"]
"""Builds a picker over weights, which are finite and 0 or more, at least one of them."""


class Picker(Protocol):
    """Draws one index; built once per rebuild from the weights, asked once per choice."""

    def draw(self, rng: Rng) -> int:
        """Return an index into the weights that this picker was built from, in O(1)."""
