"""``warmroute faults``: list, add and remove injected faults."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from sidecar.cli.client import ADMIN, Admin, decoded, segment
from sidecar.cli.outcome import EXIT_REFUSED, CliError
from sidecar.cli.routes import Json, raw
from sidecar.cli.shapes import Fault, Faults
from sidecar.cli.tables import faults_table, seconds, show

app = App(name="faults", help="List, add and remove injected faults.", version_flags=())


@app.command(name="list")
def list_faults(*, admin: Admin = ADMIN, as_json: Json = False) -> int:
    """List the faults in force, and how long each has left."""
    answer = admin.get("/faults")
    if as_json:
        return raw(answer)
    faults = decoded(answer, Faults).faults
    if faults:
        show(faults_table(faults))
    else:
        print("no faults in force")
    return 0


@app.command
def add(
    kind: Annotated[Literal["abort", "delay"], Parameter(help="abort answers --status, delay waits --delay-ms first.")],
    /,
    *,
    ratio: Annotated[
        float, Parameter(help="Share of the requests it hits, 0 to 1.", validator=Number(gte=0, lte=1))
    ] = 1.0,
    ttl_s: Annotated[
        float, Parameter(help="Seconds until it ends by itself, at most 3600.", validator=Number(gt=0, lte=3600))
    ] = 60.0,
    model: Annotated[str, Parameter(help="Hit this model only.", show_default=False)] = "",
    endpoint: Annotated[str, Parameter(help="Hit attempts on this endpoint only.", show_default=False)] = "",
    status: Annotated[
        int | None, Parameter(help="Status that abort answers, 503 where left out.", validator=Number(gte=400, lte=599))
    ] = None,
    delay_ms: Annotated[
        float | None, Parameter(help="Milliseconds that delay waits.", validator=Number(gt=0, lte=300_000))
    ] = None,
    admin: Admin = ADMIN,
) -> int:
    """Inject a fault. It ends by itself, and `warmroute faults remove` ends it sooner."""
    fault = admin.change("POST", "/faults", _request(kind, ratio, ttl_s, model, endpoint, status, delay_ms))
    made = decoded(fault, Fault)
    print(f"{made.id}: {made.kind} in force for {seconds(made.left_s)}; warmroute faults remove {made.id} ends it")
    return 0


@app.command
def remove(
    fault: Annotated[str, Parameter(help="Fault, as `warmroute faults list` names it.")],
    /,
    *,
    admin: Admin = ADMIN,
) -> int:
    """End a fault now."""
    admin.change("DELETE", f"/faults/{segment(fault)}")
    print(f"{fault}: removed")
    return 0


def _request(
    kind: str, ratio: float, ttl_s: float, model: str, endpoint: str, status: int | None, delay_ms: float | None
) -> dict[str, object]:
    if kind == "delay" and delay_ms is None:
        raise CliError("faults add delay: needs --delay-ms", EXIT_REFUSED)
    for wanted, flag, given in (("abort", "--status", status), ("delay", "--delay-ms", delay_ms)):
        if given is not None and kind != wanted:
            raise CliError(f"faults add {kind}: {flag} belongs to {wanted}", EXIT_REFUSED)
    request: dict[str, object] = {"kind": kind, "ratio": ratio, "ttl_s": ttl_s, "model": model, "endpoint": endpoint}
    if status is not None:
        request["status"] = status
    if delay_ms is not None:
        request["delay_ms"] = delay_ms
    return request
