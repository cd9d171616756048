"""``warmroute versions``: which versions take requests that name none; promote, roll back, split."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from sidecar.cli.client import ADMIN, Admin, decoded, segment
from sidecar.cli.outcome import EXIT_REFUSED, CliError
from sidecar.cli.routes import Json, raw
from sidecar.cli.shapes import ModelVersions, VersionsDocument
from sidecar.cli.tables import show, table

app = App(name="versions", help="Show which versions take requests that name none; steer that.", version_flags=())

Name = Annotated[str, Parameter(help="Model, as `warmroute routes` names it.")]


@app.command(name="list")
def list_versions(
    model: Annotated[str, Parameter(help="This model only.", show_default=False)] = "",
    /,
    *,
    admin: Admin = ADMIN,
    as_json: Json = False,
) -> int:
    """List the versions of each model: their share of the requests that name none, replicas, attempts, and why."""
    answer = admin.get("/versions" + (f"?model={segment(model)}" if model else ""))
    if as_json:
        return raw(answer)
    models = decoded(answer, VersionsDocument).models
    if not models:
        print("no model known")
        return 0
    show(_table(models), *(Text(line) for one in models for line in _notes(one)))
    return 0


@app.command
def promote(
    model: Name,
    version: Annotated[str, Parameter(help="Version; else the new one of its split, else the newest.")] = "",
    /,
    *,
    admin: Admin = ADMIN,
) -> int:
    """Have one version take all requests that name none. It must have a replica that may be picked."""
    return _steer(admin, model, "promote", {"version": version})


@app.command
def rollback(
    model: Name,
    version: Annotated[str, Parameter(help="Version; else the one from before the last change.")] = "",
    /,
    *,
    admin: Admin = ADMIN,
) -> int:
    """Have the version from before take all requests that name none."""
    return _steer(admin, model, "rollback", {"version": version})


@app.command
def split(
    model: Name,
    shares: Annotated[tuple[str, ...], Parameter(help="VERSION=WEIGHT, as many as there are to be.")],
    /,
    *,
    admin: Admin = ADMIN,
) -> int:
    """Divide the requests that name no version by weights."""
    return _steer(admin, model, "split", {"split": [_share(share) for share in shares]})


@app.command
def reset(model: Name, /, *, admin: Admin = ADMIN) -> int:
    """Go by the configuration again. A rollout begins anew."""
    return _steer(admin, model, "reset", None)


def _share(text: str) -> dict[str, object]:
    version, separator, weight = text.rpartition("=")
    try:
        if separator and version:
            return {"version": version, "weight": float(weight)}
    except ValueError:
        pass
    raise CliError(f'versions split: "{text}": must be VERSION=WEIGHT, say 2=5', EXIT_REFUSED)


def _steer(admin: Admin, model: str, what: str, content: object) -> int:
    answer = decoded(admin.change("POST", f"/versions/{segment(model)}/{what}", content), ModelVersions)
    print(f"{answer.model}: requests that name no version go to: {answer.serve}")
    return 0


def _table(models: tuple[ModelVersions, ...]) -> Table:
    numbers = ("share", "ready", "attempts", "failed")
    made = table("model", "version", *numbers, "note", right=numbers)
    for one in models:
        name = one.model if one.serve == "any" else f"{one.model} ({one.serve})"
        for row in one.versions:
            share = "-" if row.share is None else f"{row.share:.1%}"
            failed = f"{row.failed / row.attempts:.2%}" if row.attempts else "-"
            ready = f"{row.ready} of {row.replicas}"
            made.add_row(name, row.version or "none", share, ready, str(row.attempts), failed, row.note)
            name = ""
        if not one.versions:
            made.add_row(name, "-", "-", "-", "-", "-", "no endpoint serves it")
    return made


def _notes(one: ModelVersions) -> list[str]:
    lines: list[str] = []
    if one.steered is not None:
        lines.append(f"{one.model}: {one.steered.why}, by {one.steered.by}, {one.steered.at}")
        lines.append(
            f"{one.model}: configured is {one.configured}; warmroute versions reset {one.model} goes back to it"
        )
    if one.rollout is not None:
        detail = f": {one.rollout.finding}; {one.rollout.detail}" if one.rollout.finding else ""
        lines.append(f"{one.model}: rollout {one.rollout.stage}, at {one.rollout.share:.0%}{detail}")
    return lines
