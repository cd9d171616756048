"""How many series there may be: which names have some of their own, and what becomes of the rest. The one place for it.

Workers name models, versions and endpoints, and anybody who can write to the store is a worker. So each label has at
most so many values. Names of the configuration come first, then those that were there first, and who has series keeps
them. What the others count is added up under ``_other`` where a sum means something; else it is left out, and counted
by :attr:`Bounds.left_out`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from router.turns import KEYS
from sidecar.http1.targets import NO_MODEL
from sidecar.telemetry.page import ENDPOINT_ROWS, MODEL_ROWS, OVERFLOW_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.routes import Route
    from router.turns import Turns
    from sidecar.settings import Settings
    from sidecar.state.keeper import Keeper

MODELS: Final = MODEL_ROWS
"""Values of the label ``model``, with ``_none`` and ``_other``."""
ENDPOINTS: Final = ENDPOINT_ROWS
"""Values of the label ``endpoint``, with ``_other``."""
VERSIONS: Final = 1024
"""Pairs of ``model`` and ``version``, with ``_other``."""
ROUTES: Final = 2048
"""Values of the label ``route``."""
REPLICAS: Final = 32_768
"""Replicas: sets of ``endpoint``, ``model``, ``version`` and ``shard``."""

BOUNDED: Final = ("model", "endpoint", "version", "route", "replica")
"""What may be left out."""


class Names:
    """Up to ``most - 1`` names that have series of their own, beside ``_other``."""

    def __init__(self, most: int) -> None:
        self._most = most - 1
        self._kept: dict[str, None] = {}

    def settle(self, first: Iterable[str], others: Iterable[str]) -> int:
        """Go by the names that there are now; return how many of them share ``_other``.

        Those of ``first`` come before all, then those that have series already, then the rest in the order given.
        """
        there = dict.fromkeys(first)
        late = dict.fromkeys(others)
        for source in (self._kept, late):
            there.update((name, None) for name in source if name in late)
        there.pop(OVERFLOW_KEY, None)
        kept = list(there)
        self._kept = dict.fromkeys(kept[: self._most])
        return max(0, len(kept) - self._most)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def takes(self, name: str) -> bool:
        """Say whether a name has series of its own, for one that may have come since too: it has them where is room."""
        if name not in self._kept and len(self._kept) < self._most:
            self._kept[name] = None
        return name in self._kept

    def label(self, name: str) -> str:
        """Return the name, or ``_other`` where it shares that."""
        return name if name in self._kept else OVERFLOW_KEY


class _Seen(Protocol):
    settings: Settings
    keeper: Keeper


class Bounds:
    """Which names have series of their own, from one exposition to the next."""

    def __init__(self) -> None:
        self.models = Names(MODELS)
        self.endpoints = Names(ENDPOINTS)
        self.versions = Names(VERSIONS)
        self.left_out: Counter[str] = Counter()
        """How many names of each of ``BOUNDED`` have no series of their own, as of the last exposition."""
        self._replicas = 0
        self._strangers = 0
        self._routes = 0
        self._configured: frozenset[str] = frozenset()

    def settle(self, seen: _Seen, models: Iterable[str], endpoints: Iterable[str]) -> Turns[None]:
        """Go by the fleet as it is now, and by what the data processes count: rows of ``models`` and ``endpoints``."""
        keeper = seen.keeper
        configured = [model.name for model in seen.settings.models]
        self._configured = frozenset(configured)
        self.left_out = Counter()
        static = [record.id for record, _, _ in keeper.roster.records() if record.static]
        self.left_out["endpoint"] = self.endpoints.settle(static, [*keeper.roster.ids, *endpoints])
        yield None
        named: dict[str, None] = dict.fromkeys(models)
        versions: dict[tuple[str, str], None] = dict.fromkeys(keeper.steering.attempts)
        own = looked = 0
        for endpoint in tuple(keeper.cluster.endpoints.values()):
            for candidate in tuple(endpoint.candidates.values()):
                named[candidate.model] = None
                versions[candidate.model, candidate.version] = None
                own += candidate.model in self._configured and endpoint.id in self.endpoints
                looked += 1
                if looked % KEYS == 0:
                    yield None
        self.left_out["model"] = self.models.settle([NO_MODEL, *configured], named)
        yield None
        first = [f"{model}@{version}" for model, version in versions if model in self._configured]
        kept = [f"{model}@{version}" for model, version in versions if model in self.models]
        self.left_out["version"] = self.versions.settle(first, kept) + len(versions) - len(kept)
        self._replicas, self._routes = REPLICAS, ROUTES
        self._strangers = max(0, REPLICAS - own)

    def of_version(self, model: str, version: str) -> tuple[str, str]:
        """Return the labels ``model`` and ``version`` of what is counted of a version."""
        model = self.models.label(model)
        return model, version if model != OVERFLOW_KEY and f"{model}@{version}" in self.versions else OVERFLOW_KEY

    def shows(self, route: Route) -> bool:
        """Say whether a route has series; asked of each once. Where it has none, neither have its replicas."""
        known = self.models.takes(route.model)
        if known and route.version:
            known = self.versions.takes(f"{route.model}@{route.version}")
        if known and self._routes > 0:
            self._routes -= 1
            return True
        self.left_out["route"] += 1
        if not route.version:
            self.left_out["replica"] += len(route.candidates)
        return False

    def shows_replica(self, endpoint: str, model: str) -> bool:
        """Say whether a replica of a route that is shown has series; asked of each once."""
        own = model in self._configured
        if self.endpoints.takes(endpoint) and self._replicas > 0 and (own or self._strangers > 0):
            self._replicas -= 1
            self._strangers -= not own
            return True
        self.left_out["replica"] += 1
        return False
