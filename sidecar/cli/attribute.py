"""``warmroute attribute``: what callers saw beside what workers did."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from sidecar.cli.outcome import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.sending import Json
from sidecar.cli.tables import show, table
from sidecar.traffic.attribution.files import as_they_became_known, callers, workers
from sidecar.traffic.attribution.joining import CLOCK_S, DEADLINE_S, MAX_WAITING, WAIT_S, Join, Joined
from sidecar.traffic.report import quantiles_ms
from sidecar.traffic.traces.trace import TraceError

if TYPE_CHECKING:
    from rich.console import RenderableType

_WHERE: Final = ("caller", "worker", "between")


def attribute(
    callers_file: Annotated[Path, Parameter(name="CALLERS", help="A trace of warmroute record.")],
    workers_file: Annotated[Path, Parameter(name="WORKERS", help="JSON lines of what workers did (docs/replay.md).")],
    /,
    *,
    clock_ms: Annotated[
        float, Parameter(help="By how much clocks may differ.", validator=Number(gte=0, lte=60_000))
    ] = (1000 * CLOCK_S),
    wait_ms: Annotated[
        float, Parameter(help="How long the other half is simply waited for.", validator=Number(gt=0, lte=60_000))
    ] = 1000 * WAIT_S,
    deadline_s: Annotated[
        float, Parameter(help="How long it is queued for after that.", validator=Number(gt=0, lte=86_400))
    ] = DEADLINE_S,
    max_waiting: Annotated[
        int, Parameter(help="How many halves may be queued.", validator=Number(gte=1, lte=10_000_000))
    ] = MAX_WAITING,
    as_json: Json = False,
) -> int:
    """Join what callers saw with what workers did, by request id, and say for each worker where the time went.

    Each line is counted once: joined, without its other half and why, or repeated. Ends with 1 where nothing joined.
    """
    joined: dict[str, list[Joined]] = defaultdict(list)
    join = Join(
        lambda one: joined[one.worker.who].append(one),
        clock_s=clock_ms / 1000,
        wait_s=wait_ms / 1000,
        deadline_s=deadline_s,
        max_waiting=max_waiting,
    )
    try:
        halves = [*callers(callers_file), *workers(workers_file)]
    except TraceError as error:
        raise CliError(str(error), EXIT_REFUSED) from None
    for now_s, half in as_they_became_known(halves):
        join.offer(half, now_s)
    join.close()
    report = {
        "offered": join.offered,
        "joined": join.joined,
        "late": join.late,
        "orphans": {f"{side}: {why}": count for (side, why), count in sorted(join.orphans.items())},
        "repeated": {side.value: count for side, count in sorted(join.repeated.items())},
        "workers": {who: _figures(found) for who, found in sorted(joined.items())},
    }
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(*_parts(report))
    return EXIT_OK if join.joined else EXIT_FAILED


def _figures(found: list[Joined]) -> dict[str, Any]:
    return {
        "requests": len(found),
        "failed": sum(one.caller.failed for one in found),
        "caller_ms": quantiles_ms(one.caller.took_s for one in found),
        "worker_ms": quantiles_ms(one.worker.took_s for one in found),
        "between_ms": quantiles_ms(max(0.0, one.caller.took_s - one.worker.took_s) for one in found),
    }


def _parts(report: dict[str, Any]) -> list[RenderableType]:
    columns = ("requests", "failed", *(f"{where} {quantile} ms" for where in _WHERE for quantile in ("P50", "P99")))
    rows = table("worker", *columns, right=columns)
    for who, one in report["workers"].items():
        times = [
            f"{one[key][quantile]:,.2f}" for key in (f"{where}_ms" for where in _WHERE) for quantile in ("p50", "p99")
        ]
        rows.add_row(who, f"{one['requests']:,}", f"{one['failed']:,}", *times)
    parts: list[RenderableType] = [rows, Text(f"{report['joined']:,} joined, {report['late']:,} of them late")]
    parts += [Text(f"without the other half, {what}: {count:,}") for what, count in report["orphans"].items()]
    parts += [Text(f"repeated, {side}: {count:,}") for side, count in report["repeated"].items()]
    return parts
