"""Having models loaded that requests wait for: once per sidecar, on one endpoint, by the V2 repository API.

Where a model is ``lazy``, data processes say that somebody waits (``LoadWanted``), again and again. Here that becomes
one load at a time. A server is first asked what it has (``POST /v2/repository/index``), since one that is loading
already must not be told again, and then told (``POST /v2/repository/models/NAME/load``), which Triton in explicit mode
and MLServer answer when it is done. One that does not answer in time may hang: the next one is asked then, and it is
passed over while it says that it is loading. Whether the model is ready is then for probes and reports to find out.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from router.model import HTTP, State
from sidecar.settings import Wait
from sidecar.telemetry.logs import get_log
from sidecar.upstreams.adapters import BODY_BYTES, Question, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.cluster import Cluster
    from router.endpoint import Candidate, Endpoint
    from sidecar.settings import Settings
    from sidecar.upstreams.adapters import Answer
    from sidecar.upstreams.probes import Ask

INDEX_S: Final = 5.0
SETTLE_S: Final = 10.0
"""After a load, for so long none is begun again: it takes a probe or a report until the replica counts as warm."""
RETRY_S: Final = 1.0
RETRY_MOST_S: Final = 60.0
"""After one that failed everywhere: the first time, doubled with each further one up to the second."""
RESULTS: Final = ("loaded", "already", "failed", "nobody")
"""How what was wanted ended; label values of a metric."""
_JSON: Final = (("Content-Type", "application/json"),)
_INDEX: Final = Question("/v2/repository/index", body_bytes=BODY_BYTES, method="POST", fields=_JSON, body=b"{}")
_SHOWN: Final = 200

_log = get_log("loading")

Wanted = tuple[str, str]
"""A model and a version, which may be empty."""


class Loader:
    """Has models loaded, by what ``cluster`` knows. ``ask`` asks endpoints; ``clock`` gives monotonic seconds.

    ``bounds`` says for how many seconds a load is waited for, by model.
    """

    def __init__(
        self,
        cluster: Cluster,
        ask: Ask,
        *,
        clock: Callable[[], float],
        bounds: Mapping[str, float],
        rng: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self._cluster = cluster
        self._ask = ask
        self._clock = clock
        self._rng = rng
        self._bounds = bounds
        self._overdue: set[tuple[str, str, str]] = (
            set()
        )  # model, id and epoch of who was told to load, and said nothing
        self._running: set[Wanted] = set()
        self._not_before: dict[Wanted, float] = {}
        self._failures: Counter[Wanted] = Counter()
        self._news: asyncio.Queue[Wanted] = asyncio.Queue()
        self.counts: Counter[str] = Counter()

    def configure(self, bounds: Mapping[str, float]) -> None:
        """Wait for loads that begin from now on for other times."""
        self._bounds = bounds

    def wanted(self, model: str, version: str) -> None:
        """Take note that requests wait for a model; the first word of many that has to be acted on is."""
        key = (model, version)
        if key in self._running or self._clock() < self._not_before.get(key, -inf):
            return
        if self._cluster.route(model, version) is None:  # its configuration or its endpoints have gone since
            return
        self._running.add(key)
        self._news.put_nowait(key)

    async def run(self) -> None:
        """Load what is wanted, several models at once, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                key = await self._news.get()
                tasks.create_task(self._load(key), name=f"load {key[0]}")

    async def _load(self, key: Wanted) -> None:
        try:
            result = await self._load_somewhere(key)
        finally:
            self._running.discard(key)
        self.counts[result] += 1
        if result in ("loaded", "already"):
            self._failures.pop(key, None)
            pause_s = SETTLE_S
        else:
            self._failures[key] += 1
            pause_s = min(RETRY_S * 2.0 ** min(self._failures[key] - 1, 16), RETRY_MOST_S) * (0.8 + 0.4 * self._rng())
        now = self._clock()
        self._not_before = {other: at for other, at in self._not_before.items() if at > now}
        self._not_before[key] = now + pause_s

    async def _load_somewhere(self, key: Wanted) -> str:
        """Have one endpoint load it, the one with the most free memory first; return how that ended."""
        model, version = key
        self._overdue = {one for one in self._overdue if self._is_there(one)}
        route = self._cluster.route(model, version)
        candidates = [] if route is None else [one for one in route.candidates if may_load(one)]
        if any(under_way(one) for one in (route.candidates if route is not None else ())):
            return "already"
        result = "nobody"
        for candidate in sorted(candidates, key=_roomiest):
            endpoint = candidate.endpoint
            state = await self._state(endpoint, model)
            told = (model, endpoint.id, endpoint.epoch)
            if state == "LOADING" and told in self._overdue:
                result = "failed"
                continue
            self._overdue.discard(told)
            if state in ("READY", "LOADING"):
                return "already"
            if state is None:
                continue
            _log.info("model.loading", model=model, endpoint=endpoint.id)
            (answer,) = await self._ask(
                endpoint.address, (load_question(model),), self._bounds.get(model, Wait().load_s)
            )
            if answer.good:
                _log.info("model.loaded", model=model, endpoint=endpoint.id)
                return "loaded"
            result = "failed"
            if answer.status is None:
                self._overdue.add(told)
            _log.warning("model.load_failed", model=model, endpoint=endpoint.id, why=_why(answer))
        if result == "nobody":
            _log.warning("model.nobody_loads", model=model, endpoints=len(candidates))
        return result

    def _is_there(self, told: tuple[str, str, str]) -> bool:
        endpoint = self._cluster.endpoints.get(told[1])
        return endpoint is not None and endpoint.epoch == told[2]

    async def _state(self, endpoint: Endpoint, model: str) -> str | None:
        """Return what a server says of a model: READY, LOADING, or anything else; None where it loads none."""
        (answer,) = await self._ask(endpoint.address, (_INDEX,), INDEX_S)
        entries = answer.document()
        if not isinstance(entries, list):
            _log.info("model.index_failed", model=model, endpoint=endpoint.id, why=_why(answer))
            return None
        states = [
            str(entry.get("state", "")).upper()
            for entry in entries
            if isinstance(entry, dict) and entry.get("name") == model
        ]
        return next((state for state in ("READY", "LOADING") if state in states), "UNAVAILABLE")


def load_question(model: str) -> Question:
    """Return what has a V2 server load a model (docs: KServe, "Model Repository Extension")."""
    path = f"/v2/repository/models/{quoted(model)}/load"
    return Question(path, body_bytes=BODY_BYTES, method="POST", fields=_JSON, body=b"{}")


def load_bounds(settings: Settings) -> dict[str, float]:
    """Return for how many seconds a load is waited for, by model."""
    return {model.name: model.wait.load_s for model in settings.models}


def may_load(candidate: Candidate) -> bool:
    """Return whether an endpoint may be told to load a replica: it is not warm there, nor does it leave.

    A static endpoint's probe cannot tell "not loaded" from "is loading": that is what the index is asked for.
    """
    record = candidate.endpoint.record
    if record.draining or candidate.held or record.protocol != HTTP:
        return False
    state = candidate.replica.state
    return state in (State.COLD, State.FAILED) or (record.static and state is State.LOADING)


def under_way(candidate: Candidate) -> bool:
    """Return whether a replica is coming by its own word."""
    return candidate.replica.state in (State.LOADING, State.WARMING) and not candidate.endpoint.record.static


def _roomiest(candidate: Candidate) -> tuple[int, str]:
    return -(candidate.endpoint.record.free_memory_bytes or 0), candidate.endpoint.id


def _why(answer: Answer) -> str:
    if answer.status is None:
        return answer.error
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        said = None
    text = said.get("error") if isinstance(said, dict) else None
    return f"HTTP {answer.status}" + (f": {str(text)[:_SHOWN]}" if text else "")
