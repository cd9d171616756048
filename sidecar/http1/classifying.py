"""Requests that prefer replicas proven for their shape class: a step before they are dispatched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.http1.keys import KeySource
from sidecar.http1.steps import SHAPED

if TYPE_CHECKING:
    from router.policy import ShapePolicy
    from router.routes import Route
    from sidecar.http1.head import RequestHead
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course, Step
    from sidecar.http1.targets import Target


class ShapeStep:
    """Finds a request's shape class, and turns to the route for it. What names none takes the model's own route."""

    __slots__ = ("_names", "_policy", "_source", "_targets", "body_bytes", "rank")

    def __init__(self, policy: ShapePolicy) -> None:
        self.rank = SHAPED
        self.body_bytes = 0
        self._policy = policy
        self._names = {name.encode(): name for name, _ in policy.classes}
        self._source = None if policy.header is None else KeySource(policy.header)
        self._targets: dict[Route, Target] = {}

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Turn to the route of the request's class."""
        target = caller.target
        route = target.route
        shape = self.class_of(caller.head)
        if shape and route is not None:
            shaped = caller.plane.cluster.shaped_route(route, shape, now)
            found = self._targets.get(shaped)
            if found is None:
                found = self._targets[shaped] = caller.plane.targets.plain(target.surface, shaped)
            caller.turn_to(found)
        return True

    def class_of(self, head: RequestHead) -> str:
        """Return a request's class: the one that its field names, else the first that takes its length; or nothing."""
        if self._source is not None:
            named = self._source.of(head)
            if named is not None:
                return self._names.get(named, "")
        length = head.length
        if length >= 0:
            for name, most in self._policy.classes:
                if most is not None and length <= most:
                    return name
        return ""


def shape_step(target: Target) -> Step | None:
    """Return what the requests of a target need where they prefer those proven for their class."""
    route = target.route
    shapes = None if route is None else route.policy.shapes
    return None if shapes is None else ShapeStep(shapes)
