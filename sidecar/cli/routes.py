"""``warmroute routes``: where requests go, and why."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter

from sidecar.cli.client import ADMIN, Admin, decoded, segment
from sidecar.cli.shapes import Explanation, Routes
from sidecar.cli.tables import explanation_parts, ladder_line, routes_table, show

app = App(name="routes", help="Show where requests go, with weights and why.", version_flags=())

Json = Annotated[bool, Parameter(name="--json", help="Print the admin API's answer as it is.", show_default=False)]


@app.default
def routes(*, admin: Admin = ADMIN, as_json: Json = False) -> int:
    """Show every route: model, endpoint, state, weight, share of the requests, P95, in-flight, freshness and why.

    A share is the probability of one draw; by default two are drawn and the one with the lower expected wait is taken.
    """
    answer = admin.get("/routes")
    if as_json:
        return raw(answer)
    known = decoded(answer, Routes)
    if known.draining:
        print("draining: nothing new is accepted")
    if not known.routes:
        print(f"no routes yet: no worker has reported and none is configured (store {known.store_mode})")
        return 0
    show(routes_table(known.routes), *(ladder_line(one) for one in known.ladders if one.step != "replica"))
    return 0


@app.command
def explain(
    *,
    model: Annotated[str, Parameter(help="NAME, or NAME@VERSION, with #SHARD where each shard answers for itself.")],
    key: Annotated[str, Parameter(help="Key of a request, or its prompt with affinity, where one matters.")] = "",
    protocol: Annotated[
        Literal["http", "grpc"] | None, Parameter(help="What it comes over, where a model has workers of both kinds.")
    ] = None,
    admin: Admin = ADMIN,
    as_json: Json = False,
) -> int:
    """Explain one decision: every term with its value, score, part in the weight and age, and the runners-up.

    Where the balancer of the model is another than warm, the terms are what it goes by.
    """
    asked = {"key": key, "protocol": protocol}
    more = [f"&{name}={segment(value)}" for name, value in asked.items() if value]
    answer = admin.get(f"/routes/explain?model={segment(model)}{''.join(more)}")
    if as_json:
        return raw(answer)
    show(*explanation_parts(decoded(answer, Explanation)))
    return 0


def raw(answer: bytes) -> int:
    """Write ``answer`` to standard output, with a line break at its end."""
    sys.stdout.write(answer.decode("utf-8", "replace").rstrip("\n") + "\n")
    return 0
