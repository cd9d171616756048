"""What every policy is checked by."""

from __future__ import annotations


class PolicyError(ValueError):
    """A policy value that makes no sense; ``field`` names it, ``remedy`` says what would."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


def ratio(owner: str, name: str, value: float) -> None:
    """Refuse what is no ratio.

    Raises:
        PolicyError: it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise PolicyError(f"{owner}.{name}", value, "a ratio lies between 0 and 1")


def positive(owner: str, name: str, value: float) -> None:
    """Refuse what is not a number over 0.

    Raises:
        PolicyError: it is not.
    """
    if not value > 0 or value == float("inf"):
        raise PolicyError(f"{owner}.{name}", value, "must be greater than 0")
