"""Public traces of LLM services: CSV files of moments and numbers of tokens, without a word of what was asked.

Azure's LLM inference traces of 2023 and 2024 have ``TIMESTAMP,ContextTokens,GeneratedTokens``, where moments are dates.
BurstGPT has ``Timestamp`` in seconds, ``Model``, ``Request tokens``, ``Response tokens`` and more that is not needed
here; requests that failed have no response tokens. Bodies are made from a template.
"""

from __future__ import annotations

import csv
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.traffic.requests import Timed, check
from sidecar.traffic.samples import Ended
from sidecar.traffic.traces.templates import prompt_of
from sidecar.traffic.traces.trace import MAX_REQUESTS, MAX_SPAN_S, Trace, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sidecar.traffic.traces.templates import BodyTemplate

MAX_TOKENS: Final = 10_000_000
MAX_MOMENT_S: Final = 1e11
MAX_BACK_S: Final = 60.0
"""Rows may be out of order by this much, as several writers leave them; they are sorted."""
JSON_TYPE: Final = (("Content-Type", "application/json"),)


class Columns(NamedTuple):
    """The names of a trace's columns, in lower case; ``model`` is empty where there is none."""

    moment: str
    context: str
    generated: str
    model: str


AZURE: Final = Columns("timestamp", "contexttokens", "generatedtokens", "")
BURST_GPT: Final = Columns("timestamp", "request tokens", "response tokens", "model")


class Row(NamedTuple):
    """One request. ``at_s`` is of any origin. ``blocks``: what its prompt is made of, where the trace says that."""

    at_s: float
    context: int
    generated: int
    model: str = ""
    blocks: Sequence[int] = ()


def columns_of(header: str) -> Columns | None:
    """Return which trace a first line is of, None: of none of these."""
    names = {name.strip().lower() for name in header.split(",")}
    return next((one for one in (AZURE, BURST_GPT) if names >= set(one) - {""}), None)


def read(
    name: str, lines: Iterable[str], template: BodyTemplate, target: str, model: str, headers: Sequence[tuple[str, str]]
) -> Trace:
    """Read such a trace. ``model``, where it is given, stands for the trace's own models.

    Raises:
        TraceError: a line is none of it, or the template needs a model and there is none.
    """
    rows = csv.DictReader(lines, skipinitialspace=True)
    columns = columns_of(",".join(rows.fieldnames or ()))
    if columns is None:
        raise TraceError(f"{name}:1: columns are none of Azure's LLM inference traces or BurstGPT's")
    rows.fieldnames = [field.strip().lower() for field in rows.fieldnames or ()]
    if "model" in template.needs and not model and not columns.model:
        raise TraceError(f"{name}: the body needs a model and this trace names none: give --model")
    kind = "Azure LLM inference" if columns is AZURE else "BurstGPT"
    found = (_row(f"{name}:{rows.line_num}", row, columns, model) for row in _bounded(name, rows))
    return trace_of_rows(kind, in_order(name, ((rows.line_num, row) for row in found)), template, target, headers)


def in_order(name: str, rows: Iterable[tuple[int, Row]]) -> list[Row]:
    """Return rows, each with its line, in the order of their moments.

    Raises:
        TraceError: a moment is far before one above it, or far from the first.
    """
    found: list[Row] = []
    latest_s = 0.0
    for line, row in rows:
        if not found:
            latest_s = row.at_s
        if row.at_s < latest_s - MAX_BACK_S:
            raise TraceError(
                f"{name}:{line}: timestamp {row.at_s:.15g} runs back by {latest_s - row.at_s:.15g} s, over"
                f" {MAX_BACK_S:g}; sort the file by it, or cut it into several"
            )
        if found and row.at_s - found[0].at_s > MAX_SPAN_S:
            raise TraceError(
                f"{name}:{line}: timestamp {row.at_s:.15g} is over {MAX_SPAN_S:g} s after the first one; take the"
                " line out"
            )
        latest_s = max(latest_s, row.at_s)
        found.append(row)
    found.sort(key=lambda row: row.at_s)
    return found


def trace_of_rows(
    kind: str, rows: list[Row], template: BodyTemplate, target: str, headers: Sequence[tuple[str, str]]
) -> Trace:
    """Return the trace of rows that are in order.

    Raises:
        TraceError: requests to ``target`` cannot be sent.
    """
    first_s = rows[0].at_s if rows else 0.0
    fields = (*JSON_TYPE, *headers)
    wrong = check(Timed(0.0, "POST", target, fields))
    if wrong:
        raise TraceError(wrong)

    def make() -> Iterator[Timed]:
        for number, row in enumerate(rows, 1):
            values: dict[str, str | int] = {
                "model": row.model,
                "context_tokens": row.context,
                "generated_tokens": max(1, row.generated),
                "number": number,
            }
            if row.blocks and "prompt" in template.needs:
                values["prompt"] = prompt_of(row.blocks, row.context)
            yield Timed(
                row.at_s - first_s,
                "POST",
                target,
                fields,
                template.fill(values),
                row.model,
                recorded=Ended.OK if row.generated else Ended.STATUS_5XX,
            )

    return Trace(kind, len(rows), rows[-1].at_s - first_s if rows else 0.0, make, Counter())


def _bounded(name: str, rows: csv.DictReader[str]) -> Iterator[dict[str, str | None]]:
    try:
        for number, row in enumerate(rows):
            if number >= MAX_REQUESTS:
                raise TraceError(f"{name}: more than {MAX_REQUESTS} requests; cut the file into several")
            yield row
    except csv.Error as error:
        raise TraceError(f"{name}:{rows.line_num}: {error}") from None


def _row(where: str, row: dict[str, str | None], columns: Columns, model: str) -> Row:
    context, generated = (_tokens(where, name, row[name]) for name in (columns.context, columns.generated))
    own = (row[columns.model] or "").strip() if columns.model else ""
    return Row(_moment(where, row[columns.moment]), context, generated, model or own)


def _tokens(where: str, name: str, text: str | None) -> int:
    try:
        tokens = int(text or "")
    except ValueError:
        tokens = -1
    if not 0 <= tokens <= MAX_TOKENS:
        raise TraceError(
            f"{where}: {name} {text if text is None else text[:40]!r} must be a whole number from 0 to {MAX_TOKENS}"
        )
    return tokens


def _moment(where: str, text: str | None) -> float:
    """Return seconds of any origin. Dates have up to seven digits behind the second; without a zone they are UTC."""
    text = (text or "").strip()
    try:
        moment = float(text)
        if abs(moment) <= MAX_MOMENT_S:  # also no NaN
            return moment
    except ValueError:
        pass
    whole, point, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    try:
        date = datetime.fromisoformat(whole + (rest[digits:] if point else ""))
        fraction = float(f"0.{rest[:digits]}") if digits else 0.0
    except ValueError:
        raise TraceError(
            f"{where}: timestamp {text[:40]!r} is neither seconds (up to {MAX_MOMENT_S:g}) nor a date; correct it, or"
            " take the line out"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() + fraction
