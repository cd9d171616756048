"""The admin API's word on versions: which take requests that name none, and steering that by hand."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from router.explain_versions import described
from router.policy import VersionShare
from router.rollout import Sample, in_force
from router.versions import version_key
from sidecar.admin.bodies import read_body
from sidecar.admin.guard import JSON, RefusedError, json_response, who
from sidecar.admin.moments import moment
from sidecar.admin.written import Rows, write
from sidecar.state.steering import SteeringError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.turns import Turns
    from sidecar.admin.answers import Answers
    from sidecar.admin.context import Context
    from sidecar.state.steering import Progress, Steered, Steering

_Version = Annotated[str, Meta(max_length=128)]


class VersionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /versions/NAME/promote`` and ``/rollback``; it may be left out."""

    version: _Version = ""


class WeightRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version's part in the body of ``POST /versions/NAME/split``."""

    version: _Version
    weight: Annotated[float, Meta(ge=0, le=1e6)]


class SplitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /versions/NAME/split``."""

    split: tuple[WeightRequest, ...]


_EMPTY = 'send {"version": VERSION}, or nothing'
_SPLIT_EMPTY = 'send {"split": [{"version": VERSION, "weight": WEIGHT}, ...]}'


class VersionHandlers:
    """All of them, over one context."""

    def __init__(self, context: Context, answers: Answers) -> None:
        self._context = context
        self._answers = answers

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the table of paths."""
        return [
            web.get("/versions", self.versions),
            web.post("/versions/{model}/promote", self.promote),
            web.post("/versions/{model}/rollback", self.rollback),
            web.post("/versions/{model}/split", self.split),
            web.post("/versions/{model}/reset", self.reset),
        ]

    async def versions(self, request: web.Request) -> web.StreamResponse:
        """Every model's versions, or those of ``?model=NAME``."""
        wanted = request.query.get("model", "")
        return await self._answers.answer(
            request, request.path_qs, lambda: self._written(wanted), {"Content-Type": JSON}
        )

    def _written(self, wanted: str) -> Iterator[bytes | None]:
        models = self._models()
        if wanted:
            models = iter([(yield from self._model(wanted))])
        yield from write({"models": Rows(models)})

    def _models(self) -> Iterator[dict[str, Any] | None]:
        for name in self._context.keeper.cluster.models:
            with suppress(RefusedError):  # it left since
                yield (yield from self._model(name))

    async def promote(self, request: web.Request) -> web.Response:
        """Have one version take all requests that name none."""
        asked = await _version(request)
        return await self._steered(
            request, lambda steering, model, by, now: steering.promote(model, asked.version, by, now)
        )

    async def rollback(self, request: web.Request) -> web.Response:
        """Have the version from before take them."""
        asked = await _version(request)
        return await self._steered(
            request, lambda steering, model, by, now: steering.rollback(model, asked.version, by, now)
        )

    async def split(self, request: web.Request) -> web.Response:
        """Divide them by weights."""
        body = await request.read()
        asked = read_body(body, SplitRequest, _SPLIT_EMPTY).split if body else ()
        shares = tuple(VersionShare(share.version, share.weight) for share in asked)
        return await self._steered(request, lambda steering, model, by, now: steering.split(model, shares, by, now))

    async def reset(self, request: web.Request) -> web.Response:
        """Go by the configuration again."""
        return await self._steered(request, lambda steering, model, by, _now: steering.reset(model, by))

    async def _steered(
        self, request: web.Request, change: Callable[[Steering, str, str, float], object]
    ) -> web.Response:
        model = request.match_info["model"]
        keeper = self._context.keeper
        try:
            change(keeper.steering, model, who(request), self._context.clock())
        except SteeringError as error:
            status = 404 if keeper.cluster.versions(model, self._context.clock()) is None else 409
            raise RefusedError(status, str(error), known=error.known) from error
        keeper.steered()
        return json_response(await self._answers.work(self._model(model)))

    def _model(self, model: str) -> Turns[dict[str, Any]]:
        """Return all about one model's versions.

        Raises:
            RefusedError: there is no such model.
        """
        now = self._context.clock()
        keeper = self._context.keeper
        steering = keeper.steering
        rows = yield from keeper.cluster.versions_in_turns(model, now)
        if rows is None:
            raise RefusedError(404, f"no model {model!r}", known=sorted(keeper.cluster.models, key=version_key))
        record = steering.records.get(model)
        configured = steering.serve_of(model)
        stage = steering.stage_of(model)
        document: dict[str, Any] = {
            "model": model,
            "serve": described(in_force(configured, None if record is None else record.steering)),
            "configured": described(in_force(configured, None)),
            "steered": None if record is None else _record(record),
            "rollout": None,
            "versions": [],
        }
        if stage is not None and configured.rollout is not None:
            document["rollout"] = {
                "stage": stage[0].value,
                "share": configured.rollout.steps[stage[1]] / 100,
                **_progress(steering.progress.get(model), now),
            }
        for row in rows:
            attempts = steering.attempts.get((model, row.version), [0, 0])
            document["versions"].append({**msgspec.to_builtins(row), "attempts": sum(attempts), "failed": attempts[1]})
        return document


async def _version(request: web.Request) -> VersionRequest:
    body = await request.read()
    return read_body(body, VersionRequest, _EMPTY) if body else VersionRequest()


def _record(record: Steered) -> dict[str, Any]:
    return {"by": record.by, "at": moment(record.at_unix_s), "why": record.why}


def _progress(progress: Progress | None, now: float) -> dict[str, Any]:
    """Return how far the present step is, where the rollout runs."""
    if progress is None:
        return {}
    ruling = progress.ruling
    finding = "" if ruling is None else ruling.finding.value
    detail = "" if ruling is None else ruling.detail
    if progress.stuck:
        finding = "no_way_back"
        detail = f"no other version has a replica that may be picked; {detail}"
    elif progress.lacks:
        finding = "no_replica"
        detail = f"the new one has {progress.lacks}; {detail}"
    return {
        "for_s": round(max(0.0, now - progress.since), 1),
        "finding": finding,
        "detail": detail,
        "new": _sample(progress.new),
        "old": _sample(progress.old),
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {"attempts": sample.size, "failed": sample.failures}
