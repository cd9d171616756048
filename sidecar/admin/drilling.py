"""The admin API's word on drills: one has this sidecar at a time, and says every few seconds that it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web
from msgspec import Meta

from sidecar.admin.bodies import read_body
from sidecar.admin.guard import RefusedError, json_response, who
from sidecar.settings.base import Base
from sidecar.state.drilling import DrillLease

if TYPE_CHECKING:
    from sidecar.admin.context import Context

MAX_LEASE_S = 60
_FORM = {"form": "1 to 64 letters, digits, dots, underscores or hyphens"}
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z", extra=_FORM)]
_EMPTY = 'send {"id": ID, "name": NAME}'


class DrillRequest(Base, frozen=True):
    """The body of ``POST /drill``. ``renew``: only where the drill has the sidecar already.

    It has it for ``for_s``, and ends within ``ends_in_s``, both in seconds.
    """

    id: Annotated[_Name, Meta(description="one that no other has")]
    name: Annotated[_Name, Meta(description="the drill's name")]
    for_s: Annotated[float, Meta(gt=0, le=MAX_LEASE_S)] = 10.0
    ends_in_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    renew: bool = False


class DrillHandlers:
    """All of them, over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the table of paths."""
        return [
            web.get("/drill", self.drill),
            web.post("/drill", self.take),
            web.delete("/drill/{id}", self.release),
        ]

    async def drill(self, _request: web.Request) -> web.Response:
        """Which drill has this sidecar."""
        lease, now = self._context.keeper.drill, self._context.clock()
        return json_response({"drill": None if lease is None or lease.until <= now else self._shown(lease)})

    async def take(self, request: web.Request) -> web.Response:
        """Give the sidecar to a drill, or let it have it for longer."""
        asked = read_body(await request.read(), DrillRequest, _EMPTY)
        keeper, now = self._context.keeper, self._context.clock()
        has = keeper.drill
        if has is not None and has.id != asked.id and now < has.until:
            most = f"for {max(has.until, has.ends_by) - now:.0f} s at most"
            least = f"for {has.until - now:.0f} s if it is not heard of again"
            raise RefusedError(
                409, f'the drill "{has.name}" ({has.by}) has this sidecar, {most}, {least}: wait for its end'
            )
        known = has is not None and has.id == asked.id  # though its time is over: nobody else has had it since
        if asked.renew and not known:
            raise RefusedError(404, gone(asked.id))
        lease = DrillLease(asked.id, asked.name, who(request), now + asked.for_s, now + asked.ends_in_s)
        keeper.lease(lease)
        return json_response({"drill": self._shown(lease)}, 200 if known else 201)

    async def release(self, request: web.Request) -> web.Response:
        """Let others have the sidecar; a drill that still runs ends when it hears of it."""
        drill_id, has = request.match_info["id"], self._context.keeper.drill
        if has is None or has.id != drill_id:
            raise RefusedError(404, gone(drill_id), known=[] if has is None else [has.id])
        self._context.keeper.lease(None)
        return json_response({"id": drill_id, "removed": True})

    def _shown(self, lease: DrillLease) -> dict[str, Any]:
        now = self._context.clock()
        return {
            "id": lease.id,
            "name": lease.name,
            "by": lease.by,
            "left_s": round(lease.until - now, 3),
            "ends_in_s": round(max(0.0, lease.ends_by - now), 3),
        }


def gone(drill_id: str) -> str:
    """Return why nothing is done for a drill that does not have this sidecar."""
    return f"no drill {drill_id[:64]!r} has this sidecar: it has begun anew since, or somebody ended or replaced it"
