"""Which version of its model a request gets that names none, and how a worker that holds several learns which.

Under ``latest``, or with one version in force, the route knows: it draws from that version's replicas alone. A split is
decided here, request by request. A path of the Open Inference Protocol has a place for the version; it is put there,
attempt by attempt, where the endpoint holds more than one version of the model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from router.matching import Surface
from router.model import HTTP
from router.policy import ServeRule
from sidecar.http1.keys import KeySource
from sidecar.http1.steps import VERSION
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.endpoint import Candidate
    from router.routes import Route
    from sidecar.http1.plane import Plane
    from sidecar.http1.special import SpecialConnection
    from sidecar.http1.steps import Course, Step
    from sidecar.http1.targets import Target

_MODEL: Final = re.compile(rb"[^ ]+ /v2/models/([^/? #]+)(?!/versions/)")
"""What a head begins with whose path names a model and no version."""


def with_version(head: bytes, candidate: Candidate) -> bytes:
    """Return a head whose path names the version of a candidate, where its endpoint holds others of the model too.

    A path that names another model, or none, stays: whoever made it knows what it means.
    """
    endpoint = candidate.endpoint
    if candidate.model not in endpoint.several or not candidate.version:
        return head
    found = _MODEL.match(head)
    if found is None or unquote_to_bytes(found[1]) != candidate.model.encode():
        return head
    end = found.end(1)
    return head[:end] + b"/versions/" + quote(candidate.version, safe="").encode() + head[end:]


class Split:
    """Divides the requests of a target over versions. One for all of them, until routes change."""

    def __init__(self, target: Target) -> None:
        route = target.route
        header = None if route is None or route.serve is None else route.serve.header
        self.key_source: KeySource | None = None if header is None else KeySource(header)
        self.target = target
        self.targets: dict[str, Target] = {}

    def target_for(
        self, plane: Plane, key: bytes | None, now: float, plain: Callable[[Surface, Route | None], Target]
    ) -> Target:
        """Return the target that a request takes: its version's, or that of all where no version has anybody.

        ``plain`` makes a target of a route (:meth:`Targets.plain`).
        """
        route = self.target.route
        if route is None:
            return self.target
        pick = plane.cluster.version_of(route, now, plane.rng, key)
        if pick.moved:
            plane.count(Scalar.VERSION_MOVED_TOTAL)
        turned = self.targets.get(pick.version)
        if turned is None:
            turned = self.targets[pick.version] = plain(self.target.surface, pick.route)
        return turned


class VersionStep:
    """Gives each request of a target its version, or has it named to the worker."""

    def __init__(self, split: Split | None) -> None:
        self.rank = VERSION
        self.body_bytes = 0
        self._split = split

    def take(self, caller: SpecialConnection, course: Course, now: float) -> bool:
        """Find the version; the request goes on with its route."""
        target = caller.target
        course.names_version = target.surface is Surface.V2 and target.route is not None and target.route.mixed > 0
        split = self._split
        if split is not None:
            key = None if split.key_source is None else split.key_source.of(caller.head)
            caller.turn_to(split.target_for(caller.plane, key, now, caller.plane.targets.plain))
        return True


def version_step(target: Target) -> Step | None:
    """Return what the requests of a target need where their version is to be found out, or named to the worker."""
    route = target.route
    if is_split(route):
        return VersionStep(Split(target))
    told = route is not None and route.serve is not None and route.mixed > 0 and target.surface is Surface.V2
    return VersionStep(None) if told else None


def fallback_route(plane: Plane, name: str, version: str, now: float, protocol: str = HTTP) -> Route | None:
    """Return the route of a fallback, None where there is none; where it is split, that of a version that is drawn."""
    route = plane.cluster.route(name, version, protocol)
    if route is None or not is_split(route):
        return route
    return plane.cluster.version_of(route, now, plane.rng).route


def is_split(route: Route | None) -> bool:
    """Return whether requests on a route are divided over versions."""
    return route is not None and route.serve is not None and route.serve.rule is ServeRule.SPLIT
