"""``warmroute attribute``: what callers saw beside what workers did."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sidecar.cli.outcome import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.sending import Json
from sidecar.cli.tables import show, table
from sidecar.traffic.attribution.attributing import Attribution
from sidecar.traffic.attribution.joining import CLOCK_S, DEADLINE_S, MAX_WAITING, WAIT_S
from sidecar.traffic.traces.trace import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

POLL_S: Final = 0.1
"""How often files are looked at that have nothing new."""
TERMINAL_S: Final = 1.0
LOG_S: Final = 10.0
"""How often figures are shown, on a terminal and elsewhere."""
_TIMES: Final = {"caller": ("p50", "p95", "p99"), "worker": ("p50", "p99"), "between": ("p50", "p99")}


def attribute(
    callers_file: Annotated[Path, Parameter(name="CALLERS", help="A trace of warmroute record.")],
    workers_file: Annotated[Path, Parameter(name="WORKERS", help="A worker's request log (docs/replay.md).")],
    /,
    *more_files: Annotated[Path, Parameter(name="MORE", help="Those of other workers.", show_default=False)],
    follow: Annotated[bool, Parameter(help="Go on as they grow, until Ctrl-C.", negative="")] = False,
    for_s: Annotated[
        float, Parameter(help="With --follow: end after so many seconds; 0: not.", validator=Number(gte=0))
    ] = 0.0,
    by: Annotated[Literal["version", "worker"], Parameter(help="What has a row of its own.")] = "version",
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
        int, Parameter(help="How many requests may be queued.", validator=Number(gte=1, lte=10_000_000))
    ] = MAX_WAITING,
    as_json: Json = False,
) -> int:
    """Join what callers saw with what workers did, by request id, and say for each version where the time went.

    Each line is counted once: joined, as a further attempt, without its other half and why, or repeated. Ends with 1
    where nothing joined.
    """
    if for_s and not follow:
        raise CliError("--for-s: only with --follow", EXIT_REFUSED)
    work = Attribution(
        callers_file,
        (workers_file, *more_files),
        (lambda half: half.label) if by == "version" else (lambda half: half.who),
        clock_ms / 1000,
        wait_ms / 1000,
        deadline_s,
        max_waiting,
    )
    try:
        if follow:
            uvloop.run(_follow(work, for_s, lambda: _parts(work.report(), by), silent=as_json))
        else:
            work.whole()
    except TraceError as error:
        raise CliError(str(error), EXIT_REFUSED) from None
    report = work.report()
    if as_json:
        print(msgspec.json.format(msgspec.json.encode({"by": by, **report})).decode())
    else:
        show(*_parts(report, by))
    return EXIT_OK if work.join.joined else EXIT_FAILED


async def _follow(work: Attribution, for_s: float, parts: Callable[[], list[RenderableType]], *, silent: bool) -> None:
    """Join what comes until Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for end in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(end, stop.set)
    if for_s:
        loop.call_later(for_s, stop.set)
    showing = asyncio.create_task(_show(work, parts, silent=silent), name="progress")
    try:
        while not stop.is_set():
            if work.step(time.monotonic()):
                await asyncio.sleep(0)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await stop.wait()
        while work.step(time.monotonic(), last=True):  # what was there when it was ended
            pass
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing
        work.close()


async def _show(work: Attribution, parts: Callable[[], list[RenderableType]], *, silent: bool) -> None:
    if sys.stdout.isatty() and not silent:
        console = Console(highlight=False, markup=False, emoji=False)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(Group(*parts()), refresh=True)
                await asyncio.sleep(TERMINAL_S)
    sys.stderr.write("joining what comes; Ctrl-C ends it\n")
    sys.stderr.flush()
    while True:
        await asyncio.sleep(LOG_S)
        join = work.join
        unmatched = join.orphans.total()
        sys.stderr.write(f"{join.joined:,} joined, {join.waiting:,} wait, {unmatched:,} halves without the other one\n")
        sys.stderr.flush()


def _parts(report: dict[str, Any], by: str) -> list[RenderableType]:
    counted = ("requests", "joined", "unmatched", "errors %", "95%")
    counts = table(by, *counted, right=counted)
    columns = tuple(f"{where}\n{name.upper()} ms" for where, names in _TIMES.items() for name in names)
    times = table(by, *columns, right=columns)
    for name, one in report["rows"].items():
        errors, between = "-", "-"
        if one["error_ratio"] is not None:
            errors = f"{100 * one['error_ratio']:.3f}"
            between = " to ".join(f"{100 * end:.3f}" for end in one["error_interval"])
        unmatched = sum(one["unmatched"].values())
        counts.add_row(name, f"{one['requests']:,}", f"{one['joined']:,}", f"{unmatched:,}", errors, between)
        if one["joined"]:
            shown = (one[f"{where}_ms"][quantile] for where, names in _TIMES.items() for quantile in names)
            times.add_row(name, *(f"{value:,.2f}" for value in shown))
    waiting = f", {report['waiting']:,} still wait" if report["waiting"] else ""
    parts: list[RenderableType] = [
        counts,
        *([times] if times.row_count else []),
        Text(f"{report['joined']:,} joined, {report['late']:,} of them late{waiting}"),
    ]
    for name, one in report["rows"].items():
        more = one["attempts"]
        if more["count"]:
            parts.append(Text(f"{name}: {more['count']:,} further attempts, {more['failed']:,} of them failed"))
        parts += [
            Text(f"{name}: without the caller's half, {why}: {count:,}") for why, count in one["unmatched"].items()
        ]
    parts += [
        Text(f"callers without a worker's half, {what.partition(': ')[2]}: {count:,}")
        for what, count in report["orphans"].items()
        if what.startswith("caller")
    ]
    parts += [Text(f"repeated, {side}: {count:,}") for side, count in report["repeated"].items()]
    parts += [Text(text, style="yellow") for text in _warnings(report)]
    return parts


def _warnings(report: dict[str, Any]) -> list[str]:
    """Return what makes figures say less than they seem to."""
    found = []
    if report["sampled_ratio"] < 1:
        ratio = f"{100 * report['sampled_ratio']:g}%"
        found.append(f"the trace holds {ratio} of the requests: workers' halves of the others have no caller's half")
    for who, one in report["clocks"].items():
        by = f"{1000 * one['least_s']:+,.1f} to {1000 * one['most_s']:+,.1f} ms"
        found.append(f"{who}: {one['count']:,} did not fit their caller's time; its clock is off by {by} at least")
    if report["before"]:
        found.append(f"left out: {report['before']:,} of workers, from before the callers' trace began")
    if report["lost"]:
        found.append(
            f"{report['lost']:,} lines of workers are missing: lost there, or rotated away before they were read"
        )
    for path, one in report["unreadable"].items():
        first = f", first {one['first']}" if one["first"] else ""
        found.append(f"{path}: {one['lines']:,} lines could not be read{first}")
    found += [f"{path}: is not there yet" for path in report["missing"]]
    return found
