"""``warmroute cache``: show and clear the answers that are kept for bad times."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from sidecar.cli.client import ADMIN, Admin, decoded, segment
from sidecar.cli.routes import Json, raw
from sidecar.cli.shapes import Caches
from sidecar.cli.tables import caches_table, show

app = App(name="cache", help="Show and clear the answers that are kept for bad times.", version_flags=())


@app.command(name="show")
def show_cache(*, admin: Admin = ADMIN, as_json: Json = False) -> int:
    """Show how many answers each model keeps, over all data processes, and how they were used."""
    answer = admin.get("/cache")
    if as_json:
        return raw(answer)
    caches = decoded(answer, Caches).models
    if caches:
        show(caches_table(caches))
    else:
        print("no model keeps answers")
    return 0


@app.command
def clear(
    *,
    model: Annotated[str, Parameter(help="Forget the answers of this model only.", show_default=False)] = "",
    admin: Admin = ADMIN,
) -> int:
    """Have every data process forget the answers that it keeps."""
    admin.change("DELETE", "/cache" + (f"?model={segment(model)}" if model else ""))
    print(f"{model or 'all models'}: cleared")
    return 0
