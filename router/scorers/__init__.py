"""Each signal to [0, 1]: one module for each scorer, found by its name. What is unknown is None here.

A module has ``make_scorer(policy) -> Scorer``. It is imported only where its coefficient is greater than 0.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from router.policy import PolicyError

if TYPE_CHECKING:
    from router.policy import ScoringPolicy
    from router.protocols import Scorer

NEUTRAL = 0.5
"""The score where a signal is unknown for every candidate, or says nothing that tells them apart."""


def scorer_names() -> tuple[str, ...]:
    """Return the names of all scorers there are, in order: those of the modules in this package."""
    return tuple(sorted({module.name for module in iter_modules(__path__) if not module.name.startswith("_")}))


def default_scorers(policy: ScoringPolicy) -> tuple[tuple[Scorer, float], ...]:
    """Return each scorer that counts, with its coefficient.

    Raises:
        PolicyError: there is no scorer of a name that has a coefficient.
    """
    chosen = {name: coefficient for name, coefficient in policy.by_name().items() if coefficient > 0}
    known = scorer_names()
    for name, coefficient in chosen.items():
        if name not in known:
            raise PolicyError(f"scoring.coefficients.{name}", coefficient, f"no such scorer; there are {_list(known)}")
    return tuple(
        (import_module(f"{__name__}.{name}").make_scorer(policy), coefficient) for name, coefficient in chosen.items()
    )


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
