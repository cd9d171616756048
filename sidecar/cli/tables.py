"""What the admin API answers, as tables for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from router.texts import spelled_out
from sidecar.cli.shapes import Cache, Candidate, Endpoint, Endpoints, Explanation, Ladder, Replica, Route, Term
from sidecar.faults.rules import FaultShown
from sidecar.settings.faults import PARAMETERS, SCOPE

_UNLIMITED = 10_000
"""Columns of nothing real: how wide a table would like to be is measured in it."""
_STATE_STYLES = {"warm": "green", "warming": "yellow", "loading": "yellow", "failed": "red", "draining": "dim"}


class Rows(Table):
    """A table whose cells hold no control characters: what others named themselves moves nobody's cursor."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; see :class:`rich.table.Table`."""
        super().add_row(*map(_plain, cells), **options)


def _plain(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return spelled_out(cell)
    return _line(cell) if isinstance(cell, Text) else cell


def _line(text: Text) -> Text:
    said = "\n".join(map(spelled_out, text.plain.split("\n")))
    return text if said == text.plain else Text(said, style=text.style)


def show(*parts: RenderableType) -> None:
    """Write tables and lines to standard output: wrapped to a terminal where they can be, unabridged into a pipe.

    Control characters in lines are spelled out, as in the cells of :func:`table`.
    """
    terminal = sys.stdout.isatty()
    for part in parts:
        part = _line(part) if isinstance(part, Text) else part
        size = Console(width=_UNLIMITED).measure(part)
        width = max(shutil.get_terminal_size().columns, size.minimum) if terminal else max(1, size.maximum)
        Console(width=width, highlight=False, markup=False, emoji=False).print(part, soft_wrap=isinstance(part, Text))


def table(*columns: str, right: Iterable[str] = ()) -> Rows:
    """Return an empty table; the columns in ``right`` hold numbers, the last one is text that may wrap."""
    made = Rows(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        wraps = column == columns[-1]
        made.add_column(column, justify="right" if column in right else "left", no_wrap=not wraps, overflow="fold")
    return made


def routes_table(routes: Iterable[Route]) -> Table:
    """Return a line for each replica of each route."""
    numbers = ("weight", "share", "p95", "in flight", "freshness")
    made = table("model", "endpoint", "state", *numbers, "why", right=numbers)
    for route in routes:
        marks = (
            ("default", route.default),
            (route.protocol, route.protocol != "http"),
            (route.balancer, route.balancer != "warm"),
            (route.serve, route.serve != "any"),
        )
        notes = [note for note, there in marks if there]
        name = f"{route.key} ({', '.join(notes)})" if notes else route.key
        several = len({candidate.version for candidate in route.candidates}) > 1
        for candidate in route.candidates:
            made.add_row(
                name,
                _place(candidate, several=several),
                _state(candidate),
                f"{candidate.weight:.3f}",
                f"{candidate.share:.1%}",
                milliseconds(candidate.p95_ms),
                str(candidate.in_flight + candidate.peers_in_flight),
                f"{candidate.freshness:.2f}" if candidate.reason is None else "-",
                why(candidate),
            )
            name = ""
        if not route.candidates:
            made.add_row(name, "-", "-", "-", "-", "-", "-", "-", "no endpoint serves it")
    return made


def explanation_parts(explanation: Explanation) -> list[RenderableType]:
    """Return everything about one decision: the law, the candidates, each term, and a draw."""
    parts: list[RenderableType] = [
        Text(f"{explanation.route}, store {explanation.mode}", style="bold"),
        Text(explanation.law),
        *_versions_parts(explanation),
        Text(),
        _candidates_table(explanation.rows, several=len(explanation.versions) > 1),
    ]
    if any(row.terms for row in explanation.rows):
        parts += [Text(), _terms_table(explanation.rows)]
    if any(row.warmth for row in explanation.rows):
        parts += [Text(), _warmth_table(explanation.rows)]
    parts.append(Text())
    if explanation.probe is not None:
        parts.append(Text(f"next: {explanation.probe}, whose quarantine is over, gets one request as a probe"))
    elif explanation.draw is not None:
        draw = explanation.draw
        drawn = ", ".join(draw.drawn) + (f": {draw.winner}" if len(draw.drawn) > 1 else "")
        parts.append(Text(f"a draw now: {drawn}, {draw.why}"))
    elif explanation.nobody is not None:
        nobody = explanation.nobody
        waits = explanation.queue is not None and explanation.queue.on_no_candidate != "fail"
        then = "requests wait" if waits else f"503, Retry-After {seconds(nobody.retry_after_s)}"
        parts.append(Text(f"nobody: {nobody.detail}; {then}", style="red"))
    if explanation.ladder is not None:
        parts.append(ladder_line(explanation.ladder))
    if explanation.faults:
        said = ", ".join(f"{one.id} ({one.kind}, {one.ratio:.0%})" for one in explanation.faults)
        parts.append(Text(f"injected faults that may strike: {said}", style="yellow"))
    queue = explanation.queue
    if queue is not None and queue.limit is not None:
        parts.append(Text(f"in flight of the model: {queue.in_flight} of {queue.limit}"))
    if queue is not None and (queue.waiting or queue.turned_away):
        parts.append(Text(f"queue: {queue.waiting} waiting, {queue.turned_away} turned away so far"))
    return parts


def _versions_parts(explanation: Explanation) -> list[RenderableType]:
    """Return how requests that name no version get one, where that is a question."""
    if explanation.serve == "any":
        return []
    made = table("version", "share", "ready", "note", right=("share", "ready"))
    for row in explanation.versions:
        share = "-" if row.share is None else f"{row.share:.1%}"
        made.add_row(row.version or "none", share, f"{row.ready} of {row.replicas}", row.note)
    return [Text(), Text(f"requests that name no version: {explanation.serve}"), made]


def ladder_line(ladder: Ladder) -> Text:
    """Return who answers a model's requests, since when, and what it keeps."""
    kept = ladder.cache
    degraded = ladder.step != "replica"
    text = f"degraded: {ladder.step}" if degraded else "not degraded"
    text = f"{ladder.model} {text} for {seconds(ladder.for_s)}; kept: {kept.entries} answers, {_mebibytes(kept.bytes)}"
    return Text(f"{text}, {kept.hits} told, {kept.misses} not found", style="red" if degraded else "")


def caches_table(caches: Iterable[Cache]) -> Table:
    """Return a line for each model that keeps answers."""
    numbers = ("answers", "size", "filled", "told", "not found", "evicted")
    made = table("model", *numbers, "not kept because", right=numbers)
    for one in caches:
        why = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in one.refused.items())
        counts = (one.fills, one.hits, one.misses, one.evicted)
        made.add_row(one.model, str(one.entries), _mebibytes(one.bytes), *map(str, counts), why or "-")
    return made


def _candidates_table(rows: Iterable[Candidate], *, several: bool) -> Table:
    numbers = ("share", "weight", "freshness", "ramp", "EWMA", "in flight", "wait", "reported")
    made = table("candidate", "state", *numbers, "why", right=numbers)
    for row in rows:
        in_flight = f"{row.in_flight}+{row.peers_in_flight}" if row.peers_in_flight else str(row.in_flight)
        ewma = milliseconds(row.ewma_ms) + ("" if row.ewma_known or row.ewma_ms is None else " (median)")
        out = row.reason is not None
        made.add_row(
            _place(row, several=several),
            _state(row),
            f"{row.share:.1%}",
            f"{row.weight:.3f}" + (" (floor)" if row.floored else ""),
            "-" if out else f"{row.freshness:.2f}",
            "-" if out else f"{row.ramp:.2f}",
            ewma,
            in_flight,
            milliseconds(row.expected_wait_ms),
            "-" if row.age_s is None else f"{seconds(row.age_s)} ago",
            why(row),
        )
    return made


def _terms_table(rows: Iterable[Candidate]) -> Table:
    numbers = ("value", "score", "x coefficient", "= part", "age")
    made = table("candidate", "term", *numbers, "note", right=numbers)
    for row in rows:
        name = row.endpoint
        for term in row.terms:
            made.add_row(
                name,
                term.name,
                _value(term),
                _number(term.score, ".3f"),
                _number(term.coefficient, "g"),
                _number(term.contribution, ".3f"),
                seconds(term.age_s),
                "unknown: the candidates' median" if term.unknown else _of_whom(row, term),
            )
            name = ""
    return made


def _of_whom(row: Candidate, term: Term) -> str:
    """Return what stands in a latency beside the worker's speed here: its queue, and other sidecars' attempts."""
    if term.name != "speed":
        return ""
    notes = []
    if row.queue_time_ms:
        notes.append(f"{milliseconds(row.p95_ms)} less {milliseconds(row.queue_time_ms)} in its queue")
    if row.sidecars:
        own = "nothing measured here" if row.own_p95_ms is None else f"{milliseconds(row.own_p95_ms)} here"
        notes.append(f"with {row.sidecars} other sidecar{'s' * (row.sidecars > 1)}; {own}")
    return "; ".join(notes)


def _warmth_table(rows: Iterable[Candidate]) -> Table:
    numbers = ("proven", "idle", "left of it")
    made = table("candidate", "shape classes", *numbers, right=numbers)
    for row in rows:
        if row.warmth:
            made.add_row(
                row.endpoint,
                ", ".join(f"{name} {ratio:.0%}" for name, ratio in row.warmth),
                "-" if row.proven_ago_s is None else f"{seconds(row.proven_ago_s)} ago",
                seconds(row.idle_s),
                f"{row.lasting:.0%}",
            )
    return made


def endpoints_table(answer: Endpoints) -> Table:
    """Return a line for each endpoint."""
    numbers = ("free memory", "queue", "in flight", "reported")
    made = table("endpoint", "address", "from", "holds", *numbers, "note", right=numbers)
    for one in answer.endpoints:
        notes = {
            "draining": one.draining,
            "drained here": one.held,
            "quarantined": one.quarantined,
        }
        made.add_row(
            one.id,
            one.address,
            one.source,
            ", ".join(_replica(replica) for replica in one.replicas) or "nothing",
            _free(one),
            "-" if one.queue_depth is None else str(one.queue_depth),
            str(one.in_flight),
            "-" if one.age_s is None else f"{seconds(one.age_s)} ago",
            ", ".join(note for note, holds in notes.items() if holds),
        )
    for name in answer.held_and_away:
        made.add_row(name, *["-"] * 7, "drained here, and not there")
    return made


def faults_table(faults: Iterable[FaultShown]) -> Table:
    """Return a line for each fault."""
    made = table("fault", "kind", "direction", "does", "share", "where", "left", right=("share", "left"))
    for fault in faults:
        does = [f"{name}={value}" for name in PARAMETERS if (value := getattr(fault, name)) is not None]
        where = [f"{name}={value}" for name in SCOPE if (value := getattr(fault, name)) not in ("", None)]
        made.add_row(
            fault.id,
            fault.kind,
            fault.direction,
            " ".join(does) or "-",
            f"{fault.ratio:.0%}",
            " ".join(where) or "anywhere",
            seconds(fault.left_s),
        )
    return made


def why(candidate: Candidate) -> str:
    """Say why a replica may not be picked, and for how long; or what holds its weight down."""
    breaker = candidate.breaker
    if candidate.reason is None:
        if breaker.state == "closed":
            return "ramping up" if candidate.ramp < 1 else ""
        state = "open, picked all the same" if breaker.state == "open" else breaker.state.replace("_", " ")
        return f"breaker {state}; {breaker.why}"
    text = candidate.reason.replace("_", " ")
    if candidate.group:
        text += f" of {candidate.group}"
    if candidate.for_s is not None:
        text += f" for {seconds(candidate.for_s)}"
    if candidate.left_s is not None:
        text += f", {seconds(candidate.left_s)} left" if candidate.left_s > 0 else ", a probe is due"
    if candidate.reason == "breaker_open":
        text += f"; {breaker.why}"
    if candidate.lacks:
        text += f": {candidate.lacks[0]}" + (f", and {len(candidate.lacks) - 1} more" if candidate.lacks[1:] else "")
    return text


def seconds(value: float | None) -> str:
    """Render a duration in the unit that fits it."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def milliseconds(value: float | None) -> str:
    """Render a latency."""
    return "-" if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def _place(candidate: Candidate, *, several: bool) -> str:
    """Name a candidate: its endpoint, its version where the model is there in ``several``, its shard."""
    version = f" @{candidate.version}" if several and candidate.version else ""
    return candidate.endpoint + version + ("" if candidate.shard is None else f" #{candidate.shard}")


def _state(candidate: Candidate) -> Text:
    return Text(candidate.state, style=_STATE_STYLES.get(candidate.state, ""))


def _value(term: Term) -> str:
    if term.raw is None:
        return "-"
    if term.unit == "ms":
        return milliseconds(term.raw)
    if term.unit == "bytes":
        return _mebibytes(term.raw)
    return f"{term.raw:.3g}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _replica(replica: Replica) -> str:
    name = f"{replica.model}@{replica.version}" if replica.version else replica.model
    if replica.shard_count > 1:
        name += f"#{replica.shard} of {replica.shard_count}" + (f" in {replica.group}" if replica.group else "")
    notes = [replica.reason] if replica.reason else []
    what = "inconsistent" if replica.out == "inconsistent" else "group incomplete"
    notes += [f"{what}: {lack}" for lack in replica.lacks[:1]]
    if replica.breaker.state != "closed":
        notes.append(f"breaker {replica.breaker.state.replace('_', ' ')}")
    if replica.p95_ms is not None:
        notes.append(f"P95 {milliseconds(replica.p95_ms)}")
    return f"{name} {replica.state}" + (f" ({', '.join(notes)})" if notes else "")


def _free(one: Endpoint) -> str:
    if one.free_memory_bytes is None and one.free_memory_ratio is not None:
        return f"{one.free_memory_ratio:.0%} of its cache"
    return _mebibytes(one.free_memory_bytes)


def _mebibytes(value: float | None) -> str:
    return "-" if value is None else f"{value / (1 << 20):,.0f} MiB"
