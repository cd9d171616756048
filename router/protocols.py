"""The router's extension points. Each has one job, no state of its own, and no way to reach a socket or a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from router.latency import Latency
    from router.model import EndpointRecord, Replica, StoreMode
    from router.outcomes import Reason
    from router.pickers import HandPicker

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
    def lasting(self) -> float: ...  # noqa: D102
    @property
    def p95_ms(self) -> float | None: ...  # noqa: D102
    @property
    def held(self) -> bool: ...  # noqa: D102
    @property
    def quarantined(self) -> bool: ...  # noqa: D102
    @property
    def broke_at(self) -> float: ...  # noqa: D102
    @property
    def breaker_open(self) -> bool: ...  # noqa: D102
    @property
    def busy(self) -> bool: ...  # noqa: D102
    @property
    def lacks(self) -> Sequence[object]: ...  # noqa: D102
    @property
    def entry(self) -> bool: ...  # noqa: D102
    @property
    def outlier(self) -> bool: ...  # noqa: D102
    @property
    def inconsistent(self) -> bool: ...  # noqa: D102


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


class Choosable(Protocol):
    """What balancers see of a candidate. Read only, but for ``passed_over`` of its endpoint."""

    @property
    def endpoint(self) -> Endpoint: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def latency(self) -> Latency: ...  # noqa: D102
    @property
    def prior_ms(self) -> float: ...  # noqa: D102
    @property
    def open_until(self) -> float: ...  # noqa: D102
    @property
    def fit_until(self) -> float: ...  # noqa: D102
    @property
    def panic_until(self) -> float: ...  # noqa: D102
    @property
    def load(self) -> float: ...  # noqa: D102


PickerFactory = Callable[[Sequence[Choosable], Sequence[float], int], "Picker"]
"""Builds a picker over candidates and their weights, which are finite and 0 or more; there is at least one.

The number counts the tables that were made for the route: whoever has to round may round another way each time.
"""


class Picker(Protocol):
    """Draws by weight those that one choice compares; built once per rebuild, asked once per choice."""

    def draw(self, rng: Rng) -> Sequence[Choosable]:
        """Return one or more of the candidates that this picker was built from, in O(1)."""


class Fit(Protocol):
    """Says who may be picked in one choice: who is open at that moment, was not tried before, and is not full."""

    def admits(self, candidate: Choosable) -> bool:
        """Return whether ``candidate`` may be picked; count it as passed over where it is merely full."""

    def left(self, candidates: Sequence[Choosable]) -> list[int]:
        """Return the indices of all that may be picked; counts nothing."""


Measure = tuple[str, str, float]
"""Name, unit and value of something that a balancer goes by."""


class Balancer(Protocol):
    """Picks one of a route's candidates. Each route has its own, made with the route; it knows no clock.

    ``arrange`` is called whenever the route's table is made, before anything else. All other methods are for
    explanations, on a :meth:`twin`, and change nothing that a choice goes by.
    """

    name: str
    goes_by: str
    """What a choice goes by, in a sentence without its end. For explanations."""
    first: str
    """What comes before that, empty for most. For explanations."""
    table: HandPicker | None
    """The table of which ``Cluster.choose`` draws itself and compares waits; None where it is to ask ``pick``."""

    def arrange(self, candidates: Sequence[Choosable], weights: Sequence[float]) -> None:
        """Take those that may be picked, in order of endpoint id and version, with weights where :meth:`weighs`."""

    def pick(self, fit: Fit, rng: Rng, key: bytes | None) -> Choosable | None:
        """Return the one to send a request with this key to, None where ``fit`` admits none."""

    def weighs(self, key: bytes | None) -> bool:
        """Return whether a choice for such a key goes by weights; :meth:`arrange` gets some where it does for None."""

    def twin(self) -> Balancer:
        """Return one that would pick alike, to be arranged anew and asked without consequences."""

    def sample(self, fit: Fit, rng: Rng, key: bytes | None) -> Sample | None:
        """Return what :meth:`pick` would pick with these random numbers, and why."""

    def shares(self, key: bytes | None) -> list[float]:
        """Return the probability of one draw for each of those arranged."""

    def measures(self, key: bytes | None) -> list[tuple[Measure, ...]]:
        """Return what a choice goes by for each of those arranged, weights apart."""


class Compared(StrEnum):
    """By what the best of those drawn is found."""

    WAIT = "wait"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class Sample:
    """One choice as it would be made: who was drawn, who is picked, and why: they are compared, or ``why`` says it.

    ``alike``: so many beside the best were as good, and whoever of them was picked longest ago wins.
    """

    drawn: tuple[Choosable, ...]
    winner: Choosable
    why: str
    compared: Compared | None = None
    alike: int = 0
