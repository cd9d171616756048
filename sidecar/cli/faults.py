"""``warmroute fault``: list, add and remove injected faults."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from sidecar.cli.client import ADMIN, Admin, decoded, segment
from sidecar.cli.outcome import EXIT_REFUSED, CliError
from sidecar.cli.routes import Json, raw
from sidecar.cli.shapes import FaultAdded, Faults
from sidecar.cli.tables import faults_table, seconds, show
from sidecar.faults.asking import Wrong
from sidecar.faults.asking import asked as asked_for

app = App(name="fault", help="List, add and remove injected faults.", version_flags=())

_MS = Number(gt=0, lte=300_000)


app.command(
    "sidecar.cli.process_faults:process",
    name="process",
    help="Do a fault to a process or a state store of yours, in the foreground.",
)


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
    kind: Annotated[str, Parameter(help="What it does: delay, abort, reset, black_hole, ..., see docs/faults.md.")],
    /,
    *,
    id: Annotated[str | None, Parameter(help="Its name; made up where left out.")] = None,  # noqa: A002
    for_s: Annotated[
        float, Parameter(help="Seconds until it ends by itself, at most 3600.", validator=Number(gt=0, lte=3600))
    ] = 60.0,
    ratio: Annotated[
        float, Parameter(help="Share of the attempts it strikes, 0 to 1.", validator=Number(gte=0, lte=1))
    ] = 1.0,
    direction: Annotated[
        Literal["request", "response"] | None, Parameter(help="Which way it is in; left out, as its kind is.")
    ] = None,
    model: Annotated[str | None, Parameter(help="Strike attempts for this model only.")] = None,
    version: Annotated[str | None, Parameter(help="... on replicas of this version only.")] = None,
    shard: Annotated[int | None, Parameter(help="... of this shard only.", validator=Number(gte=0))] = None,
    endpoint: Annotated[str | None, Parameter(help="... on this endpoint only.")] = None,
    tenant: Annotated[str | None, Parameter(help="... of this tenant only.")] = None,
    header: Annotated[
        str | None, Parameter(help="... of requests with this field only: NAME, or 'NAME: VALUE'.")
    ] = None,
    status: Annotated[
        int | None, Parameter(help="Status that abort answers, 503 where left out.", validator=Number(gte=400, lte=599))
    ] = None,
    grpc_status: Annotated[
        int | None, Parameter(help="Code that abort answers gRPC calls, 1 to 16.", validator=Number(gte=1, lte=16))
    ] = None,
    delay_ms: Annotated[float | None, Parameter(help="Milliseconds that something is late.", validator=_MS)] = None,
    jitter_ms: Annotated[float | None, Parameter(help="How far delays are from --delay-ms.", validator=_MS)] = None,
    distribution: Annotated[
        Literal["uniform", "normal", "exponential"] | None, Parameter(help="How they are drawn; uniform if left out.")
    ] = None,
    after_bytes: Annotated[
        int | None, Parameter(help="Bytes that pass before it acts.", validator=Number(gte=0))
    ] = None,
    after_events: Annotated[
        int | None,
        Parameter(help="Events, or gRPC messages, that pass before it acts.", validator=Number(gte=0)),
    ] = None,
    bytes_per_s: Annotated[float | None, Parameter(help="How fast bytes pass.", validator=Number(gte=1))] = None,
    piece_bytes: Annotated[int | None, Parameter(help="Bytes that pass at a time.", validator=Number(gte=1))] = None,
    every_bytes: Annotated[
        int | None, Parameter(help="One of so many bytes is touched.", validator=Number(gte=1))
    ] = None,
    skew_ms: Annotated[
        float | None, Parameter(help="How much older an endpoint's words seem; 10000 if left out.", validator=_MS)
    ] = None,
    free_ratio: Annotated[
        float | None,
        Parameter(help="How much of its memory seems free at most; 0 if left out.", validator=Number(gte=0, lte=1)),
    ] = None,
    admin: Admin = ADMIN,
) -> int:
    """Inject a fault. It ends by itself, and `warmroute fault remove` ends it sooner."""
    asked: dict[str, object] = {
        "kind": kind,
        "id": id,
        "for_s": for_s,
        "ratio": ratio,
        "direction": direction,
        "model": model,
        "version": version,
        "shard": shard,
        "endpoint": endpoint,
        "tenant": tenant,
        "header": header,
        "status": status,
        "grpc_status": grpc_status,
        "delay_ms": delay_ms,
        "jitter_ms": jitter_ms,
        "distribution": distribution,
        "after_bytes": after_bytes,
        "after_events": after_events,
        "bytes_per_s": bytes_per_s,
        "piece_bytes": piece_bytes,
        "every_bytes": every_bytes,
        "skew_ms": skew_ms,
        "free_ratio": free_ratio,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    _, wrong = asked_for(asked)
    if wrong:
        raise CliError(f"fault add {kind}: {'; '.join(map(_told, wrong))}", EXIT_REFUSED)
    fault = admin.change("POST", "/faults", asked)
    made = decoded(fault, FaultAdded)
    print(f"{made.id}: {made.kind} in force for {seconds(made.left_s)}; warmroute fault remove {made.id} ends it")
    for warning in made.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return 0


@app.command
def remove(
    fault: Annotated[str, Parameter(help="Fault, as `warmroute fault list` names it.")],
    /,
    *,
    admin: Admin = ADMIN,
) -> int:
    """End a fault now."""
    admin.change("DELETE", f"/faults/{segment(fault)}")
    print(f"{fault}: removed")
    return 0


def _told(one: Wrong) -> str:
    if one.field == "kind":
        return one.remedy
    flag = f"--{one.field.replace('_', '-')}"
    return f"{flag} {one.remedy}" if one.value == "missing" else f"{flag} {one.value}: {one.remedy}"
