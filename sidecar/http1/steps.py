"""What requests need that need more than a pick: steps that are taken before one is dispatched, in one order.

A target of such requests has no route of its own but a :class:`Special`, which stands in the slow path beside targets
that lead nowhere; so requests of models that need none of this pay for none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.http1.degrading import RequestDescent
    from sidecar.http1.mirrors import MirrorStep
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.targets import Target


class Step(Protocol):
    """One thing that is done with a request before it is dispatched; one for all requests of a target.

    Steps are taken in the order of ``rank`` (the constants below). ``body_bytes``: it wants the whole body, where that
    is no longer; 0 where it does without.
    """

    @property
    def rank(self) -> int:
        """Its place among the steps."""

    @property
    def body_bytes(self) -> int:
        """How long a body it waits for may be."""

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Do it; True where the request may go on at once.

        False: it has ended, or waits until somebody calls ``caller.proceed(course)``.
        """


class StepMaker(Protocol):
    """Looks at a target that has a route."""

    def __call__(self, target: Target) -> Step | None:
        """Return what its requests need, None where nothing."""


VERSION: Final = 10
"""Which version of the model: replaces the target."""
KEYED: Final = 20
"""What it is picked by: sets the key, or replaces the target by its shard's."""
SHAPED: Final = 25
"""Which replicas are proven for it: replaces the target by its shape class's."""
CACHED: Final = 30
"""Under what its answer is kept."""
ADMITTED: Final = 40
"""Whether there is room, or a place in the queue."""
MIRRORED: Final = 50
"""What else happens to it, once it is surely dispatched."""


class Special:
    """What the requests of a target need. ``target`` is the one that has the route."""

    __slots__ = ("body_bytes", "steps", "target")

    def __init__(self, target: Target, steps: Sequence[Step]) -> None:
        self.target = target
        self.steps = tuple(sorted(steps, key=_rank))
        self.body_bytes = max(step.body_bytes for step in self.steps)


def special_of(makers: Sequence[StepMaker], target: Target) -> Special | None:
    """Return what requests of a target with a route need, None where nothing but a pick."""
    steps = [step for maker in makers if (step := maker(target)) is not None]
    return Special(target, steps) if steps else None


def _rank(step: Step) -> int:
    return step.rank


class Ended(Protocol):
    """Hears of a request's end."""

    def request_ended(self, course: Course) -> None:
        """The request is over, however it ended. Called once."""


class Course:
    """How far one request has come. It ends with the request's watch.

    ``body`` is what the body carries, without framing, where a step wanted it and it was not too long. ``key`` is what
    the balancer goes by, where a step found it. ``names_version``: workers that hold several versions are told theirs.
    ``mirror`` copies the request once it is whole. ``descent`` is how far down its model's ladder it is, where that has
    one. ``turned``: it was sent to another version than its own, which had nobody left. ``hears`` are told when the
    request is over.
    """

    __slots__ = ("at", "body", "descent", "hears", "key", "mirror", "names_version", "over", "special", "turned")

    def __init__(self, special: Special) -> None:
        self.special = special
        self.at = 0
        self.body: bytes | None = None
        self.key: bytes | None = None
        self.names_version = False
        self.mirror: MirrorStep | None = None
        self.descent: RequestDescent | None = None
        self.over = False
        self.turned = False
        self.hears: list[Ended] = []

    def close(self) -> None:
        """The request is over."""
        if not self.over:
            self.over = True
            for one in self.hears:
                one.request_ended(self)
