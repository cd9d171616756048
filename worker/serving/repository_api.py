"""The model repository extension of the V2 protocol over HTTP: what there is, and loading and unloading by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from worker.models import UnknownModelError
from worker.repository import LoadFailedError, RefusedError
from worker.serving.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.repository import Repository
    from worker.serving.body import Bodies

PATH = "/v2/repository"
_UNLOAD_PARAMETERS = ("unload_dependents",)
"""Whether models that depend on it go too: none does here."""


_T = TypeVar("_T", bound=msgspec.Struct)


class _Index(msgspec.Struct, frozen=True):
    ready: bool = False


class _Change(msgspec.Struct, frozen=True):
    parameters: Annotated[dict[str, Any], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=dict)


class RepositoryApi:
    """Handlers over one repository."""

    def __init__(self, repository: Repository, bodies: Bodies, draining: Callable[[], bool]) -> None:
        self._repository = repository
        self._bodies = bodies
        self._draining = draining

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered where."""
        return [
            web.post(f"{PATH}/index", self.index),
            web.post(f"{PATH}/models/{{model}}/load", self.load),
            web.post(f"{PATH}/models/{{model}}/unload", self.unload),
        ]

    async def index(self, request: web.Request) -> web.Response:
        """``POST /v2/repository/index``: every version with its state and why; ``ready``: those that answer."""
        said = await self._read(request, _Index)
        entries = await self._repository.index(ready_only=said.ready)
        rows = [
            {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
            for entry in entries
        ]
        return _json(rows)

    async def load(self, request: web.Request) -> web.Response:
        """``POST /v2/repository/models/NAME/load``: answered when it is warm, or has failed."""
        said = await self._read(request, _Change)
        for parameter in said.parameters:
            raise RequestError(f"parameter {parameter[:128]!r}: {_why_not(parameter)}")
        await self._change(request.match_info["model"], load=True)
        return _json({})

    async def unload(self, request: web.Request) -> web.Response:
        """``POST /v2/repository/models/NAME/unload``: answered when all that it held is given back."""
        said = await self._read(request, _Change)
        unknown = next((name for name in said.parameters if name not in _UNLOAD_PARAMETERS), None)
        if unknown is not None:
            raise RequestError(f"parameter {unknown[:128]!r}: unknown; known: {', '.join(_UNLOAD_PARAMETERS)}")
        await self._change(request.match_info["model"], load=False)
        return _json({})

    async def _change(self, name: str, *, load: bool) -> None:
        if self._draining():
            raise RequestError("the worker is draining", 503, 1)
        try:
            await (self._repository.load(name) if load else self._repository.unload(name))
        except UnknownModelError as error:
            raise RequestError(str(error), 404) from None
        except RefusedError as error:
            raise RequestError(str(error), 400) from None
        except LoadFailedError as error:
            raise RequestError(str(error), 500) from None

    async def _read(self, request: web.Request, kind: type[_T]) -> _T:
        with self._bodies.hold(request) as body:
            data = await body.read()
        try:
            return msgspec.json.decode(data or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise RequestError(f"{request.path[:256]}: {error}") from None


def _why_not(parameter: str) -> str:
    if parameter == "config":
        return "a configuration sent with a load is not supported; write it to the version's model.yaml and load again"
    if parameter.startswith("file:"):
        return "files sent with a load are not supported; put them into the repository and load again"
    return "unknown; a load has no parameters here"


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
