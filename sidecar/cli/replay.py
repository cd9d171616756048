"""``warmroute replay``: sends a trace again, at its own moments."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from sidecar.cli.outcome import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, CliError
from sidecar.cli.sending import Json, Sending, unconnected, watched
from sidecar.cli.tables import show, table
from sidecar.traffic.report import QUANTILES, figures
from sidecar.traffic.summary import Summary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sidecar.traffic.samples import Sample
    from sidecar.traffic.sender import Sender
    from sidecar.traffic.traces.trace import Trace

DEFAULT_TO: Final = "http://127.0.0.1:8080"
_SENDING: Final = Sending()


def replay(
    file: Annotated[Path, Parameter(help="A trace: of warmroute record, an access log, or an LLM trace.")],
    /,
    *,
    to: Annotated[
        str, Parameter(help="Where to: http://, https://, grpc:// or grpcs://HOST:PORT, or unix:/PATH.")
    ] = DEFAULT_TO,
    sending: Sending = _SENDING,
    tolerate: Annotated[
        float, Parameter(help="Share of new failures with which it still ends with 0.", validator=Number(gte=0, lte=1))
    ] = 0.0,
    out: Annotated[Path | None, Parameter(help="Write each request's times and end there, as JSON lines.")] = None,
    as_json: Json = False,
) -> int:
    """Send a trace's requests again with their original spacing, and say what became of them.

    An open loop: requests go out at their moments, whatever became of those before, and latencies count from these
    moments. Requests that failed when they were recorded, and callers' retries, are sent as well. Ends with 1 where
    more than --tolerate failed which had not failed when they were recorded.
    """
    trace = sending.read(file, to)
    summary = Summary()
    with ExitStack() as closing:
        writer = None
        if out is not None:
            try:
                writer = closing.enter_context(out.open("wb"))
            except OSError as error:
                raise CliError(f"--out: {out}: {error.strerror}", EXIT_REFUSED) from None
        encode = msgspec.json.Encoder().encode_into
        buffer = bytearray()

        def take(sample: Sample) -> None:
            summary.add(sample)
            if writer is not None:
                encode(sample, buffer)
                buffer.extend(b"\n")
                writer.write(buffer)

        sender = sending.sender(to, take, "--to")
        complete = uvloop.run(_run(sender, sending, trace, summary))
    report = {
        "trace": {
            "file": str(file),
            "kind": trace.kind,
            "requests": trace.requests,
            "duration_s": round(trace.duration_s, 3),
            "left_out": dict(trace.left_out),
        },
        "to": to,
        "speed": sending.speed,
        "complete": complete,
        **figures(summary),
        "unasked_answers": sender.unasked_answers,
    }
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(*_parts(report))
    if not complete:
        return EXIT_INTERRUPTED
    worst = tolerate * summary.requests
    return EXIT_OK if summary.requests and summary.new_failures <= worst else EXIT_FAILED


async def _run(sender: Sender, sending: Sending, trace: Trace, summary: Summary) -> bool:
    ends_s = trace.duration_s / sending.speed
    if sending.for_s:
        ends_s = min(ends_s, sending.for_s)

    def line() -> str:
        return (
            f"{min(sender.now_s(), ends_s):,.0f} of {ends_s:,.0f} s: {sender.begun:,} sent,"
            f" {sender.in_flight:,} under way, {summary.failures:,} failed"
        )

    return await watched(lambda: asyncio.ensure_future(sender.run(sending.requests(trace))), sender.stop, line)


def _parts(report: dict[str, Any]) -> list[RenderableType]:
    trace = report["trace"]
    first = f"{trace['file']} ({trace['kind']}, {trace['requests']:,} requests in {trace['duration_s']:,.1f} s)"
    parts: list[RenderableType] = [Text(f"{first} to {report['to']} at speed {report['speed']:g}", style="bold")]
    parts += [Text(f"left out: {count:,} {why}", style="yellow") for why, count in trace["left_out"].items()]
    columns = ("", *QUANTILES)
    times = table(*columns, right=columns[1:])
    for name, key in (("latency ms", "latency_ms"), ("first byte ms", "first_byte_ms"), ("sent late by ms", "lag_ms")):
        if report[key]:
            times.add_row(name, *(f"{report[key][quantile]:,.1f}" for quantile in QUANTILES))
    ends = ", ".join(f"{count:,} {end}" for end, count in report["ends"].items())
    failed = ", ".join(f"{count:,} {error}" for error, count in report["errors"].items())
    parts += [times, Text(f"{report['requests']:,} requests: {ends or 'none'}")]
    if failed:
        parts.append(Text(f"failed: {failed}; {report['new_failures']:,} of them had not failed when recorded"))
    parts += [Text(line, style="red") for line in unconnected(report["reasons"], report["to"])]
    if report["degraded"]:
        parts.append(Text(f"degraded: {report['degraded']:,} answers from the cache or made up"))
    if report["unasked_answers"]:
        parts.append(Text(f"{report['unasked_answers']:,} answers came that nobody had asked for", style="red"))
    if report["late"]:
        parts.append(Text("sent late: this machine, or --max-connections, was part of these latencies", style="yellow"))
    if not report["complete"]:
        parts.append(Text("interrupted: the rest of the trace was not sent", style="yellow"))
    return parts
