"""What all kinds of faults on the request path have in common, and what they are made into. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import cos, log, pi, sqrt
from typing import TYPE_CHECKING, ClassVar

from sidecar.faults.framing import AnswerReader, MessageReader
from sidecar.settings.faults import Distribution, FaultDirection

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.faults.framing import Reader
    from sidecar.faults.rules import FaultRule
    from sidecar.faults.stages import Stage

REQUEST = FaultDirection.REQUEST
RESPONSE = FaultDirection.RESPONSE
MOST_DELAY_S = 300.0
MOST_PIECES = 4096
"""Some bytes are cut into so many at most; those of many bytes are larger for it."""


class Plan:
    """What is done to one attempt: stages for either direction, and who is at its other end.

    ``abort``: nobody is asked, this rule's error is answered. ``nowhere``: nobody is there at all. ``bodiless``: it is
    a HEAD. ``call``: it is a gRPC call, whose heads stand apart from its bytes.
    """

    def __init__(self, draw: Callable[[], float], *, bodiless: bool = False, call: bool = False) -> None:
        self.draw = draw
        self.bodiless = bodiless
        self.call = call
        self.request: list[Stage] = []
        self.response: list[Stage] = []
        self.abort: FaultRule | None = None
        self.nowhere = False

    def put(self, rule: FaultRule, kind: Kind, stage: Stage) -> None:
        """Put a stage behind those that are there, in its rule's direction."""
        (self.request if kind.direction_of(rule) is REQUEST else self.response).append(stage)

    def reader(self, *, request: bool = False) -> Reader:
        """Return what tells the body in the bytes of one direction."""
        if self.call:
            return MessageReader()
        return AnswerReader(bodiless=self.bodiless and not request, request=request)


class Kind(ABC):
    """One kind of fault. ``takes`` are the parameters that it goes by, ``needs`` those that it has no default for.

    The first of its ``directions`` is its default. ``spoils``: an answer may seem whole, and be wrong; it is kept
    nowhere, so that no harm outlasts the fault.
    """

    directions: ClassVar[tuple[FaultDirection, ...]] = (RESPONSE,)
    takes: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    spoils: ClassVar[bool] = False

    @abstractmethod
    def plan(self, rule: FaultRule, plan: Plan) -> None:
        """Add to ``plan`` what ``rule`` does to an attempt that it strikes."""

    def direction_of(self, rule: FaultRule) -> FaultDirection:
        """Return which way a rule of this kind is in."""
        return FaultDirection(rule.direction) if rule.direction else self.directions[0]


def delay_s(rule: FaultRule, draw: Callable[[], float]) -> float:
    """Draw a rule's delay, seconds: of ``delay_ms``, ``jitter_ms`` and ``distribution``; never below 0."""
    delay_ms, jitter_ms = rule.delay_ms or 0.0, rule.jitter_ms or 0.0
    if jitter_ms:
        distribution = Distribution(rule.distribution or Distribution.UNIFORM)
        if distribution is Distribution.UNIFORM:
            delay_ms += jitter_ms * (2 * draw() - 1)
        elif distribution is Distribution.NORMAL:
            delay_ms += jitter_ms * sqrt(-2 * log(1 - draw())) * cos(2 * pi * draw())
        else:
            delay_ms -= jitter_ms * log(1 - draw())
    return min(max(0.0, delay_ms / 1000), MOST_DELAY_S)
