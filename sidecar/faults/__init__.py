"""Faults that warmroute injects into its own data path: small, removable, bounded in time.

A fault is one class behind :class:`Fault`; :data:`KINDS` names them. A rule (``FaultRule``) says which kind, for which
model or endpoint, how often and until when. Off, the data path pays one test of an empty tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.channel import FaultRule


@dataclass(frozen=True, slots=True)
class FaultAction:
    """What to do to one attempt: wait ``delay_s``, then answer ``status`` (0: go on as usual)."""

    delay_s: float = 0.0
    status: int = 0


class Fault(Protocol):
    """One kind of fault."""

    def act(self, rule: FaultRule) -> FaultAction:
        """Return what ``rule`` does to an attempt that it strikes."""


class AbortFault:
    """Answers with the rule's status instead of asking the worker."""

    def act(self, rule: FaultRule) -> FaultAction:
        """Return an action that answers at once."""
        return FaultAction(status=rule.status)


class DelayFault:
    """Holds the attempt back, then lets it go on."""

    def act(self, rule: FaultRule) -> FaultAction:
        """Return an action that waits."""
        return FaultAction(delay_s=rule.delay_ms / 1000)


KINDS: dict[str, Fault] = {"abort": AbortFault(), "delay": DelayFault()}


def strike(
    rules: Iterable[FaultRule], model: str, endpoint: str, now: float, rng: Callable[[], float]
) -> FaultAction | None:
    """Return what the first rule that applies and strikes does, or None.

    ``rng`` is asked once per rule that applies; a rule strikes where it returns less than the rule's ratio.
    """
    for rule in rules:
        if now >= rule.until or (rule.model and rule.model != model) or (rule.endpoint and rule.endpoint != endpoint):
            continue
        kind = KINDS.get(rule.kind)
        if kind is not None and rng() < rule.ratio:
            return kind.act(rule)
    return None
