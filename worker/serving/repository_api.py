"""The model repository extension of the V2 protocol: what there is, and loading and unloading by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from aiohttp import web

from worker import json_text
from worker.models import UnknownModelError
from worker.repository import LoadFailedError, NotGivenBackError, RefusedError, StillInUseError
from worker.serving.errors import RequestError
from worker.serving.reading import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from worker.log import EventLog
    from worker.repository import Repository
    from worker.serving.body import Bodies

PATH = "/v2/repository"
MAX_BODY_BYTES = 256 << 10
"""Of a request here: read at once, in the event loop. None carries files or a configuration."""
_UNLOAD_PARAMETERS = ("unload_dependents",)
"""Whether models that depend on it go too: none does here."""


_T = TypeVar("_T", bound=msgspec.Struct)


class _Index(msgspec.Struct, frozen=True):
    ready: bool = False


class _Change(msgspec.Struct, frozen=True):
    parameters: Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=dict)


class RepositoryApi:
    """Handlers over one repository."""

    def __init__(self, repository: Repository, bodies: Bodies, draining: Callable[[], bool], log: EventLog) -> None:
        self._repository = repository
        self._bodies = bodies
        self._draining = draining
        self._log = log

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
        return _json(await self.rows(ready_only=said.ready))

    async def load(self, request: web.Request) -> web.Response:
        """``POST /v2/repository/models/NAME/load``: answered when it is warm, or has failed."""
        said = await self._read(request, _Change)
        await self.load_model(request.match_info["model"], said.parameters)
        return _json({})

    async def unload(self, request: web.Request) -> web.Response:
        """``POST /v2/repository/models/NAME/unload``: answered when all that it held is given back."""
        said = await self._read(request, _Change)
        await self.unload_model(request.match_info["model"], said.parameters)
        return _json({})

    # --- the same for every surface -------------------------------------------------------------------------------

    async def rows(self, *, ready_only: bool) -> list[dict[str, str]]:
        """Return every version with its state and why; ``ready_only``: those that answer."""
        entries = await self._repository.index(ready_only=ready_only)
        return [
            {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
            for entry in entries
        ]

    async def load_model(self, name: str, parameters: Iterable[str]) -> None:
        """Load a model; returns when it is warm.

        Raises:
            RequestError: it failed, was refused, or one of the ``parameters``, by name, is not known.
        """
        for parameter in parameters:
            raise RequestError(f"parameter {parameter[:128]!r}: {_why_not(parameter)}")
        await self._change(name, load=True)

    async def unload_model(self, name: str, parameters: Iterable[str]) -> None:
        """Unload a model; returns when all that it held is given back.

        Raises:
            RequestError: it was refused, or one of the ``parameters``, by name, is not known.
        """
        unknown = next((parameter for parameter in parameters if parameter not in _UNLOAD_PARAMETERS), None)
        if unknown is not None:
            raise RequestError(f"parameter {unknown[:128]!r}: unknown; known: {', '.join(_UNLOAD_PARAMETERS)}")
        await self._change(name, load=False)

    async def _change(self, name: str, *, load: bool) -> None:
        if self._draining():
            raise RequestError("the worker is draining", 503, 1)
        try:
            await (self._repository.load(name) if load else self._repository.unload(name))
        except UnknownModelError as error:
            raise RequestError(str(error), 404) from None
        except RefusedError as error:
            raise RequestError(str(error), 400) from None
        except (LoadFailedError, NotGivenBackError) as error:
            raise RequestError(str(error), 500) from None
        except StillInUseError as error:
            raise RequestError(str(error), 503, 1) from None

    async def _read(self, request: web.Request, kind: type[_T]) -> _T:
        with reading(self._log, request.path), self._bodies.hold(request, MAX_BODY_BYTES) as body:
            return _decoded(await body.read(), request.path, kind)


def _decoded(data: bytearray | memoryview, path: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise RequestError(f"{path[:256]}: {error}") from None
    except RecursionError:
        raise RequestError(f"{path[:256]}: the body is nested too deep") from None


def _why_not(parameter: str) -> str:
    if parameter == "config":
        return "a configuration sent with a load is not supported; write it to the version's model.yaml and load again"
    if parameter.startswith("file:"):
        return "files sent with a load are not supported; put them into the repository and load again"
    return "unknown; a load has no parameters here"


def _json(value: object) -> web.Response:
    return web.Response(body=json_text.encode(value), content_type="application/json")
