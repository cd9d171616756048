"""Where a drill takes place: the sidecar's admin API, asked in threads so that load and clock go on."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from sidecar.cli.client import decoded, segment
from sidecar.cli.outcome import EXIT_FAILED, CliError
from sidecar.cli.shapes import Endpoints, Faults, Refusal, Routes, VersionsDocument
from sidecar.drills.aside import aside
from sidecar.drills.scenario import Act, Do
from sidecar.drills.watching import look_of, scrape_of
from sidecar.state.steering import ROLLOUT, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.cli.client import Admin
    from sidecar.cli.shapes import ModelVersions
    from sidecar.drills.record import Look, Scrape
    from sidecar.faults.rules import FaultShown

T = TypeVar("T")

LEASE_S = 10.0
"""What a sidecar does for a drill, and that it does it for this one alone, ends by itself so long after it was heard of
last."""
RENEW_S = 2.5


class PlaceError(Exception):
    """The sidecar cannot be asked, or refuses; the text is one line, ``code`` that of a command that fails with it."""

    def __init__(self, text: str, code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.code = code


class Place:
    """One sidecar. Everything here raises :class:`PlaceError` where it does not answer or refuses."""

    def __init__(self, admin: Admin, target: str) -> None:
        self._admin = admin
        self.target = target
        """Where requests go, HOST:PORT."""
        self._id = secrets.token_hex(8)
        """What the sidecar knows the drill by, once it has it."""

    async def look(self, at: float, *, with_ready: bool) -> Look:
        """Return what the sidecar shows now."""
        routes = await self._read("/routes", Routes)
        return look_of(at, routes, ready=await self._ready() if with_ready else None)

    async def scrape(self, at: float) -> Scrape:
        """Return the sidecar's counters."""
        return scrape_of(at, (await self._get("/metrics")).decode("utf-8", "replace"))

    async def endpoints(self) -> list[str]:
        """Return the ids of the endpoints that it knows."""
        return [one.id for one in (await self._read("/endpoints", Endpoints)).endpoints]

    async def models(self) -> list[str]:
        """Return the keys of its routes."""
        return [route.key for route in (await self._read("/routes", Routes)).routes]

    async def faults(self) -> list[FaultShown]:
        """Return the faults in force."""
        return list((await self._read("/faults", Faults)).faults)

    async def take(self, name: str, ends_in_s: float) -> None:
        """Have the sidecar for the drill of this name alone; to be prolonged (:meth:`keep`)."""
        await self._change("POST", "/drill", self._lease(name, ends_in_s))

    async def keep(self, name: str, ends_in_s: float) -> str:
        """Have it for longer; return why the drill has it no longer, "" where it has."""
        try:
            token = self._admin.token()
            lease = self._lease(name, ends_in_s) | {"renew": True}
            answer = await aside(self._admin.ask, "POST", "/drill", lease, token=token, accept_errors=True)
            if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                return decoded(answer.body, Refusal).error
        except CliError as error:
            raise PlaceError(str(error), error.code) from None
        return ""

    async def release(self) -> None:
        """Let others have it."""
        await self._change("DELETE", f"/drill/{self._id}")

    def _lease(self, name: str, ends_in_s: float) -> dict[str, Any]:
        return {"id": self._id, "name": name, "for_s": LEASE_S, "ends_in_s": max(0.0, ends_in_s)}

    async def put_fault(self, rule: dict[str, Any]) -> None:
        """Put a fault in force, or prolong it; refused where the sidecar is another one than the drill had."""
        await self._change("POST", f"/faults?drill={self._id}", rule)

    async def remove_fault(self, id_: str) -> None:
        """End a fault; one that has ended is ended."""
        if any(one.id == id_ for one in await self.faults()):
            try:
                await self._change("DELETE", f"/faults/{segment(id_)}")
            except PlaceError:
                if any(one.id == id_ for one in await self.faults()):
                    raise

    async def as_before(self, do: Do) -> Do:
        """Return what an operator would do to bring back what is so now, and ``do`` is about to change."""
        if do.act in {Act.DRAIN, Act.RESUME}:
            found = await self._read("/endpoints", Endpoints)
            held = {one.id for one in found.endpoints if one.held}.union(found.held_and_away)
            return Do(act=Act.DRAIN if do.endpoint in held else Act.RESUME, endpoint=do.endpoint)
        versions = (await self._read(f"/versions?model={quote(do.model, safe='')}", VersionsDocument)).models
        return steered_as(do.model, versions)

    async def act(self, do: Do) -> None:
        """Do what an operator does."""
        if do.act in {Act.DRAIN, Act.RESUME}:
            await self._change("POST", f"/endpoints/{segment(do.endpoint)}/{do.act.value}")
            return
        content: dict[str, Any] = {}
        if do.act is Act.SPLIT:
            content = {"split": [{"version": name, "weight": weight} for name, weight in do.split.items()]}
        elif do.version:
            content = {"version": do.version}
        await self._change("POST", f"/versions/{segment(do.model)}/{do.act.value}", content)

    async def _read(self, path: str, kind: type[T]) -> T:
        try:
            return decoded(await self._get(path), kind)
        except CliError as error:
            raise PlaceError(str(error), error.code) from None

    async def _get(self, path: str) -> bytes:
        try:
            return await aside(self._admin.get, path)
        except CliError as error:
            raise PlaceError(str(error), error.code) from None

    async def _ready(self) -> bool:
        try:
            answer = await aside(self._admin.ask, "GET", "/readyz", accept_errors=True)
        except CliError as error:
            raise PlaceError(str(error), error.code) from None
        return answer.status == HTTPStatus.OK

    async def _change(self, method: str, path: str, content: object = None) -> None:
        try:
            await aside(self._admin.change, method, path, content)
        except CliError as error:
            raise PlaceError(str(error), error.code) from None


def undoing(do: Do, before: Do) -> Do | None:
    """Return what takes ``do`` back at the drill's end; None where it changes nothing that is to be taken back.

    ``before`` is what brings about how it was before the drill: an endpoint that an operator had drained stays drained,
    or is again, and versions that were steered by hand are steered so again.
    """
    return None if do == before else before


def steered_as(model: str, versions: Sequence[ModelVersions]) -> Do:
    """Return what steers a model's versions as they are now: by their configuration, or as somebody has by hand.

    A rollout that runs is the configuration's and begins again; what one that has ended left is steered by hand.
    """
    found = next((one for one in versions if one.model == model), None)
    if found is None or found.steered is None:
        return Do(act=Act.RESET, model=model)
    if found.steered.by == ROLLOUT and found.rollout is not None and found.rollout.stage == Stage.RUNNING.value:
        return Do(act=Act.RESET, model=model)
    split = {one.version: one.weight for one in found.versions if one.weight is not None}
    if split:
        return Do(act=Act.SPLIT, model=model, split=split)
    return Do(act=Act.PROMOTE, model=model, version=found.serve.removeprefix("version "))
