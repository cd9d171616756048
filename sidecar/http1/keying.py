"""Requests whose key or prompt is in their body, or whose key says which shard has them: a step before they go out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.outcomes import Outcome
from sidecar.http1.keys import key_source_of
from sidecar.http1.steps import KEYED

if TYPE_CHECKING:
    from router.cluster import Cluster
    from router.routes import Route
    from sidecar.http1.head import RequestHead
    from sidecar.http1.keys import KeySource
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course, Step
    from sidecar.http1.targets import Target


class KeyStep:
    """Finds a request's key, and the shard that has it where each shard of the model answers for itself.

    Such a request must have a key, as nobody else could answer it. One whose balancer goes by keys may do without.
    """

    __slots__ = ("_source", "_targets", "body_bytes", "rank")

    def __init__(self, source: KeySource, body_bytes: int) -> None:
        self.rank = KEYED
        self.body_bytes = body_bytes
        self._source = source
        self._targets: dict[Route, Target] = {}

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Set the key, and turn to the shard's route."""
        source = self._source
        course.key = key = source.find(caller.head, course.body)
        target = caller.target
        route = target.route
        if route is None or not route.shards:
            return True
        if key is not None:
            shard = caller.plane.cluster.shard_route(route, key)
            found = self._targets.get(shard)
            if found is None:
                found = self._targets[shard] = caller.plane.targets.plain(target.surface, shard)
            caller.turn_to(found)
            within = found.key_source  # what tells requests apart there may be another key
            if within is not None:
                course.key = within.find(caller.head, course.body)
            return True
        if source.body is not None and (course.body is None or len(course.body) > source.body_bytes):
            most = f"over {source.body_bytes} bytes (models[].key.body_bytes)"
            caller.end_unanswered(Outcome.BODY_TOO_LARGE, f"{most}, and {source.text} must say which shard has it")
        else:
            caller.end_unanswered(Outcome.BAD_REQUEST, no_key(route, source))
        return False


def within(cluster: Cluster, head: RequestHead, body: bytes | None, route: Route) -> Route | None:
    """Return a route that a request can be picked for on: a shard's, where each answers for itself.

    None where the request does not say which shard has it.
    """
    if not route.shards:
        return route
    source = key_source_of(route)
    key = None if source is None else source.find(head, body)
    return None if key is None else cluster.shard_route(route, key)


def no_key(route: Route, source: KeySource) -> str:
    """Say that a request for a model whose shards answer for themselves has no key."""
    return f"{source.text} must say which shard of {route.key} has it, and says nothing"


def key_step(target: Target) -> Step | None:
    """Return what requests of a target need: nothing where no shard is to be found, and nothing in their body."""
    source, route = target.key_source, target.route
    if source is None or route is None or (source.body is None and not route.shards):
        return None
    affinity = route.policy.affinity
    return KeyStep(source, max(source.body_bytes, 0 if affinity is None else affinity.body_bytes))
