"""``warmroute endpoints``: list, drain and resume."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from sidecar.cli.client import ADMIN, Admin, decoded, segment
from sidecar.cli.routes import Json, raw
from sidecar.cli.shapes import Endpoints
from sidecar.cli.tables import endpoints_table, show

app = App(name="endpoints", help="List, drain and resume endpoints.", version_flags=())

Id = Annotated[str, Parameter(help="Endpoint, as `warmroute endpoints list` names it.")]


@app.command(name="list")
def list_endpoints(*, admin: Admin = ADMIN, as_json: Json = False) -> int:
    """List every endpoint that the sidecar knows, and what it holds."""
    answer = admin.get("/endpoints")
    if as_json:
        return raw(answer)
    show(endpoints_table(decoded(answer, Endpoints)))
    return 0


@app.command
def drain(endpoint: Id, /, *, admin: Admin = ADMIN) -> int:
    """Send an endpoint no more requests from this sidecar; those under way finish. Lasts until resumed."""
    admin.change("POST", f"/endpoints/{segment(endpoint)}/drain")
    print(f"{endpoint}: gets no more requests here; warmroute endpoints resume {endpoint} undoes it")
    return 0


@app.command
def resume(endpoint: Id, /, *, admin: Admin = ADMIN) -> int:
    """Let an endpoint have requests again."""
    admin.change("POST", f"/endpoints/{segment(endpoint)}/resume")
    print(f"{endpoint}: may get requests again")
    return 0
