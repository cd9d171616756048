"""The admin API's requests, one function each."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from aiohttp import web

from sidecar.admin import documents, status_page
from sidecar.admin.bodies import read_json
from sidecar.admin.drilling import gone
from sidecar.admin.guard import JSON, RefusedError, json_response
from sidecar.channel import CacheCleared
from sidecar.faults.aim import misses
from sidecar.faults.asking import asked as asked_for
from sidecar.faults.checking import document_of, rule_of
from sidecar.state.roster import RosterError
from sidecar.telemetry import exposition, prometheus
from sidecar.telemetry.bounds import Bounds
from sidecar.telemetry.page import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.admin.answers import Answers
    from sidecar.admin.context import Context

RELOAD_S = 4.0
"""Longest wait of a reload for its result; the command line waits 5 s for an answer."""
_PROTOCOLS = ("", "http", "grpc")


class Handlers:
    """All of them, over one context."""

    def __init__(self, context: Context, answers: Answers) -> None:
        self._context = context
        self._answers = answers
        self._bounds = Bounds()

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the table of paths."""
        return [
            web.get("/", self.page),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/routes", self.route_table),
            web.get("/routes/explain", self.explain),
            web.get("/endpoints", self.endpoints),
            web.get("/config", self.config),
            web.get("/config/status", self.config_status),
            web.get("/faults", self.faults),
            web.get("/cache", self.cache),
            web.post("/config/reload", self.reload),
            web.post("/endpoints/{id}/drain", self.drain),
            web.post("/endpoints/{id}/resume", self.resume),
            web.post("/faults", self.add_fault),
            web.delete("/faults/{id}", self.remove_fault),
            web.delete("/cache", self.clear_cache),
        ]

    # --- reads --------------------------------------------------------------------------------------------------

    async def _written(self, request: web.Request, make: Callable[[], Iterator[bytes | None]]) -> web.StreamResponse:
        return await self._answers.answer(request, request.path_qs, make, {"Content-Type": JSON})

    async def page(self, request: web.Request) -> web.StreamResponse:
        """The status page."""
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        }
        context = self._context
        return await self._answers.answer(
            request, "page", lambda: status_page.render(context, context.clock()), headers
        )

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """200 as long as this process answers at all; with ``?detail`` the breakers too."""
        context, now = self._context, self._context.clock()
        document = documents.health(context, now)
        if "detail" in request.query:
            document["breakers"] = await self._answers.work(documents.breakers(context, now))
        return json_response(document)

    async def readyz(self, _request: web.Request) -> web.Response:
        """200, or 503 with the reasons."""
        reasons = await self._answers.work(documents.not_ready(self._context, self._context.clock()))
        return json_response({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """The Prometheus exposition."""
        context = self._context
        headers = {"Content-Type": prometheus.CONTENT_TYPE}
        return await self._answers.answer(
            request, "metrics", lambda: exposition.render(context, context.clock(), self._bounds), headers
        )

    async def route_table(self, request: web.Request) -> web.StreamResponse:
        """Every route with its candidates."""
        context = self._context
        return await self._written(request, lambda: documents.routes(context, context.clock()))

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """One decision, laid open."""
        model = request.query.get("model", "")
        if not model:
            raise RefusedError(400, "name a model: /routes/explain?model=NAME or NAME@VERSION")
        key, protocol, context = request.query.get("key", ""), request.query.get("protocol", ""), self._context
        if protocol not in _PROTOCOLS:
            raise RefusedError(400, f"protocol is {protocol[:32]!r}: must be http or grpc, or left out")
        try:
            return await self._written(
                request, lambda: documents.explain(context, model, context.clock(), key, protocol)
            )
        except documents.UnknownModelError as error:
            raise RefusedError(404, str(error), known=error.known) from error

    async def endpoints(self, request: web.Request) -> web.StreamResponse:
        """Every endpoint as it last reported."""
        context = self._context
        return await self._written(request, lambda: documents.endpoints(context, context.clock()))

    async def config(self, _request: web.Request) -> web.Response:
        """The effective settings."""
        return json_response(documents.config(self._context))

    async def config_status(self, _request: web.Request) -> web.Response:
        """Which configuration is in force, and what is wrong with the one that should be."""
        return json_response(documents.config_status(self._context))

    async def faults(self, _request: web.Request) -> web.Response:
        """The faults in force."""
        return json_response(documents.faults(self._context, self._context.clock()))

    async def cache(self, _request: web.Request) -> web.Response:
        """What is kept for bad times."""
        return json_response(documents.cache(self._context, self._context.clock()))

    # --- writes -------------------------------------------------------------------------------------------------

    async def reload(self, _request: web.Request) -> web.Response:
        """Look at the configuration again, and answer once every data process runs with it: 200, or 409 where bad."""
        context = self._context
        before = context.config
        if not before.reloadable:
            raise RefusedError(409, f"the configuration comes from {before.source} and cannot be loaded again")
        asked_at = context.clock()
        if not context.ask_reload():
            raise RefusedError(409, "the sidecar is draining")
        until = asked_at + RELOAD_S
        while context.config.asked_at < asked_at or not self._all_current():
            if context.clock() > until:
                raise RefusedError(503, f"not every process took it over within {RELOAD_S:g} s: GET /config/status")
            await asyncio.sleep(0.02)
        document = documents.config_status(context)
        if context.config.bad_since is not None:
            revision, problems = before.revision, list(context.config.problems)
            raise RefusedError(409, f"refused, {revision} stays in force", problems=problems)
        result = "unchanged"
        if context.config.would_break:
            result = "withheld"
        elif context.config.taken > before.taken:
            result = "taken"
        return json_response({"result": result, **document})

    def _all_current(self) -> bool:
        """Whether each data process that is up runs with what is in force."""
        context, now = self._context, self._context.clock()
        return all(
            page.words[page.scalar(Scalar.CONFIG_NOW)] == context.config.sequence
            for process, page in zip(context.keeper.processes, context.pages, strict=True)
            if process.speaks(now)
        )

    async def drain(self, request: web.Request) -> web.Response:
        """Send no new requests to an endpoint."""
        return self._hold(request.match_info["id"], held=True)

    async def resume(self, request: web.Request) -> web.Response:
        """Send requests to a drained endpoint again."""
        return self._hold(request.match_info["id"], held=False)

    def _hold(self, endpoint_id: str, *, held: bool) -> web.Response:
        keeper = self._context.keeper
        if endpoint_id not in keeper.roster and endpoint_id not in keeper.roster.held:
            raise RefusedError(404, f"no endpoint {endpoint_id!r}", known=sorted(keeper.roster.ids))
        try:
            keeper.hold(endpoint_id, held=held)
        except RosterError as error:
            raise RefusedError(409, str(error)) from error
        return json_response({"id": endpoint_id, "held": held})

    async def add_fault(self, request: web.Request) -> web.Response:
        """Put a fault in force for a while; with ``?drill=ID`` only as long as that drill has this sidecar."""
        drill, has = request.query.get("drill", ""), self._context.keeper.drill
        if drill and (has is None or has.id != drill):
            raise RefusedError(409, gone(drill))
        asked, wrong = asked_for(read_json(await request.read(), 'send {"kind": KIND}'))
        if asked is None:
            raise RefusedError(400, "; ".join(map(str, wrong)))
        keeper, now = self._context.keeper, self._context.clock()
        fault_id = asked.id or secrets.token_hex(4)
        most = self._context.settings.faults.most
        if len(keeper.roster.faults) >= most and fault_id not in keeper.roster.faults:
            remedy = "remove some first, or raise it" if most else "raise it"
            raise RefusedError(409, f"faults.most ({most}) faults are in force already: {remedy}")
        rule = rule_of(asked, fault_id, now)
        keeper.add_fault(rule)
        known = (record for record, _, _ in keeper.roster.records())
        warnings = misses(asked, known, self._context.settings.policies.admission.tenant.header)
        return json_response({**document_of(rule, now), "warnings": warnings}, 201)

    async def remove_fault(self, request: web.Request) -> web.Response:
        """End a fault before its time."""
        fault_id = request.match_info["id"]
        if not self._context.keeper.remove_fault(fault_id):
            raise RefusedError(404, f"no fault {fault_id!r}", known=sorted(self._context.keeper.roster.faults))
        return json_response({"id": fault_id, "removed": True})

    async def clear_cache(self, request: web.Request) -> web.Response:
        """Have every data process forget what it keeps, of one model or of all; the second tier always forgets all."""
        model = request.query.get("model", "")
        known = [one["model"] for one in documents.cache(self._context, self._context.clock())["models"]]
        if model and model not in known:
            raise RefusedError(404, f"no model {model!r} keeps answers", known=known)
        answers = self._context.answers
        if answers is not None and not await answers.clear():
            raise RefusedError(503, "the store does not answer: nothing was cleared, for its answers would come back")
        self._context.keeper.feed.send(CacheCleared(model))
        return json_response({"model": model, "cleared": True})
