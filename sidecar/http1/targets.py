"""From what a request says to its route: path, model header, body, the listener's default, the default model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from router.matching import Surface, match
from router.outcomes import Reason
from sidecar.http1.answers import SERVER_METADATA, model_object, models_list
from sidecar.http1.keying import key_step
from sidecar.http1.keys import key_source_of
from sidecar.http1.steps import special_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.cluster import Cluster
    from router.routes import Route
    from sidecar.http1.steps import Special, StepMaker
    from sidecar.http1.watch import Times
    from sidecar.telemetry.page import Page

NO_MODEL: Final = "_none"
"""Metrics row of requests that matched no model."""
MODEL_NOT_FOUND: Final = "model_not_found"
"""Code of the OpenAI error for a model that is not known."""

OWN_PATHS: Final = {b"/v2": SERVER_METADATA, b"/v2/health/live": b"", b"/v2/health/ready": b""}
"""What V2 clients ask the server as a whole, with the answer's body: answered here unless a default model takes it."""
_MODELS: Final = (b"/v1/models", b"/openai/v1/models")

_MEMO_TARGETS: Final = 4096
_MEMO_BYTES: Final = 256


class Target:
    """What a request asks for: the surface, the route (None: nothing matches) and the metrics row.

    ``otherwise`` is set where a JSON body may name the model: what it means where the body does not. ``own`` is a path
    that warmroute answers itself, with ``body``. ``why`` and ``code`` say why there is no route. ``key_source`` is
    set where the route's balancer goes by a key of the request. ``special`` is set where requests need more than a
    pick: the target that has the route stands in there, and here is none.
    """

    __slots__ = (
        "body",
        "code",
        "hedges",
        "key_source",
        "otherwise",
        "own",
        "reports",
        "route",
        "row",
        "special",
        "surface",
        "times",
        "watched",
        "why",
    )

    def __init__(self, surface: Surface, route: Route | None, row: int, why: str, times: Times) -> None:
        self.surface = surface
        self.route = route
        self.row = row
        self.times = times
        self.key_source = key_source_of(route)
        self.hedges = route is not None and route.hedging is not None
        self.reports = route is not None and route.policy.load_reports
        self.watched = times.bounded or self.hedges or self.reports  # each request has a watch
        self.why = why
        self.code = ""
        self.own = b""
        self.body = b""
        self.otherwise: Target | None = None
        self.special: Special | None = None


class Targets:
    """Resolves targets, and remembers what they meant until the routes change."""

    def __init__(
        self, cluster: Cluster, page: Page, times_of: Callable[[str], Times], step_makers: Sequence[StepMaker] = ()
    ) -> None:
        self._step_makers = (key_step, *step_makers)
        self._cluster = cluster
        self._page = page
        self._times_of = times_of
        self._known: dict[tuple[str | None, bytes, bytes], Target] = {}
        self._generation = -1
        self._models: tuple[str, ...] = ()

    def clear(self) -> None:
        """Forget what targets meant: times have changed."""
        self._known.clear()

    def resolve(self, target: bytes, default_model: str | None, asked: bytes = b"") -> Target:
        """Return what a request target means (RFC 3986 path only; the query decides nothing).

        ``default_model`` takes requests that name none; ``asked`` is what a field or a body names, NAME or
        NAME@VERSION, and counts where the path names none.
        """
        query = target.find(b"?")
        path = target if query < 0 else target[:query]
        generation = self._cluster.generation
        if generation != self._generation:
            self._known.clear()
            self._generation = generation
            self._models = self._cluster.models
        key = (default_model, path, asked)
        found = self._known.get(key)
        if found is None:
            found = self._resolve(path, default_model, asked)
            if len(path) + len(asked) <= _MEMO_BYTES:
                if len(self._known) >= _MEMO_TARGETS:
                    self._known.clear()
                self._known[key] = found
        return found

    def _resolve(self, path: bytes, default_model: str | None, asked: bytes) -> Target:
        surface, model, version = match(path)
        named = model != "" or asked != b""
        if not model and asked:
            model, _, version = asked.decode("utf-8", "replace").partition("@")
        cluster = self._cluster
        route: Route | None = None
        if named:
            route = cluster.route(model, version)
        elif default_model is not None:
            route = cluster.route(default_model)
        if route is None and not (named and cluster.missing(model, version) is Reason.WRONG_VERSION):
            route = cluster.default_route
        target = self._target(surface, route)
        if route is None:
            self._explain(target, path, model, version, named=named)
        if surface is Surface.OPENAI and not named and self._body_matters():
            otherwise = target
            target = self._target(surface, None)
            target.otherwise = otherwise
        return target

    def _target(self, surface: Surface, route: Route | None) -> Target:
        target = self.plain(surface, route)
        special = None if route is None else special_of(self._step_makers, target)
        if special is None:
            return target
        outer = self.before(target)
        outer.special = special
        return outer

    def before(self, target: Target) -> Target:
        """Return a target without a route to stand before one whose requests need more than a pick."""
        outer = self.plain(target.surface, None)
        outer.row, outer.times = target.row, target.times
        return outer

    def plain(self, surface: Surface, route: Route | None) -> Target:
        """Return a target of requests on a route that are picked for at once; for steps that replace a target."""
        name = NO_MODEL if route is None else route.model
        return Target(surface, route, self._page.model_row(name), "", self._times_of(name))

    def _body_matters(self) -> bool:
        """Return whether naming a model could lead elsewhere than naming none: not where one takes all and is alone."""
        default = self._cluster.default_route
        return bool(self._models) and (default is None or self._models != (default.model,))

    def _explain(self, target: Target, path: bytes, model: str, version: str, *, named: bool) -> None:
        """Say why there is no route, or that warmroute answers itself. A name may be empty before its version."""
        if named:
            target.why = f"model {model[:128]!r}" + (f" version {version[:128]!r}" if version else "") + " is not known"
            target.code = MODEL_NOT_FOUND
        elif path in OWN_PATHS:
            target.own, target.body = path, OWN_PATHS[path]
        elif path in _MODELS:
            target.own, target.body = path, models_list(self._models)
        elif path.startswith(_MODELS) and path.rpartition(b"/models/")[0] in (b"/v1", b"/openai/v1"):
            model = unquote_to_bytes(path.partition(b"/models/")[2]).decode("utf-8", "replace")
            if model in self._models:
                target.own, target.body = path, model_object(model)
            else:
                target.why = f"model {model[:128]!r} is not known"
                target.code = MODEL_NOT_FOUND
        elif target.surface is Surface.OPENAI:
            target.why = (
                'there is no default model, and none is named: name one in the field "model" of a JSON body, '
                "or in the listener's model header"
            )
        if not target.why:
            target.why = "the path names no model and there is no default"
