"""What a drill came to, as JSON, as JUnit XML, and as one HTML page that needs nothing else. Pure but for ``write``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.drills.drawing import legend, timeline
from sidecar.drills.traffic import figures, slices
from sidecar.drills.verdict import failed_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sidecar.drills.record import Record
    from sidecar.drills.scenario import Drill
    from sidecar.drills.traffic import Figures
    from sidecar.drills.verdict import Verdict

_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 does not allow, escaped neither (its production 2, Char)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A drill that has ended. ``started`` is its begin in ISO 8601; ``variant`` how it was run, if not as shipped."""

    drill: Drill
    record: Record
    verdict: Verdict
    started: str
    variant: str = ""
    file: str = ""


def try_out(directory: Path) -> None:
    """Find out whether reports can be written to ``directory``, which is made where it is not there.

    Raises:
        OSError: they cannot.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=directory, prefix=".warmroute-") as probe:
        probe.write(b"reports are written here")


def write(outcome: Outcome, directory: Path) -> list[Path]:
    """Write all three to ``directory`` under the drill's name; return where they are.

    Raises:
        OSError: they cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = stem(outcome.drill.name, outcome.variant)
    made = []
    for suffix, content in (("json", as_json(outcome)), ("xml", as_junit(outcome)), ("html", as_html(outcome))):
        path = directory / f"{name}.{suffix}"
        path.write_bytes(content)
        made.append(path)
    return made


def stem(drill: str, variant: str) -> str:
    """Return what the files of a drill's reports are called, less their suffixes."""
    return drill + (f"-{variant.replace(' ', '-')}" if variant else "")


def as_json(outcome: Outcome) -> bytes:
    """Return everything but the single requests, for programs."""
    record, verdict = outcome.record, outcome.verdict
    document = {
        "drill": outcome.drill.name,
        "title": outcome.drill.title,
        "file": outcome.file,
        "variant": outcome.variant,
        "started": outcome.started,
        "length_s": round(record.length_s, 3),
        "passed": verdict.passed,
        "failed_on": failed_on(verdict),
        "cut_short": verdict.cut_short,
        "left_behind": verdict.left_behind,
        "objectives": [
            {
                "measure": one.name,
                "asked": one.asked,
                "measured": _finite(one.measured),
                "shown": one.shown,
                "passed": one.passed,
            }
            for one in verdict.results
        ],
        "expectations": msgspec.to_builtins(verdict.checks),
        "figures": _figures(figures(record, [(0.0, record.length_s)])),
        "accounts": msgspec.to_builtins(record.accounts),
        "outcomes": _outcomes(record),
        "phases": msgspec.to_builtins(record.spans),
        "faults": msgspec.to_builtins(record.faults),
        "faults_injected": _injected(record),
        "timeline": [{"at": begin, **_figures(part)} for begin, part in slices(record)],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def as_junit(outcome: Outcome) -> bytes:
    """Return one suite with a case for each objective and expectation, and one for the drill itself."""
    verdict, name = outcome.verdict, outcome.drill.name
    cases = [(one.asked, 0.0, "" if one.passed else f"measured {one.shown}") for one in verdict.results]
    cases += [
        (f"{check.phase}: {check.text}", check.took_s, "" if check.held else f"at last: {check.last}")
        for check in verdict.checks
    ]
    cases.append(("the script ran to its end", outcome.record.length_s, verdict.cut_short))
    cases.append(("nothing is left behind", 0.0, "; ".join(verdict.left_behind)))
    failures = sum(bool(why) for _, _, why in cases)
    about = f'name={_quoted(f"drill.{name}")} tests="{len(cases)}" failures="{failures}" errors="0" skipped="0"'
    when = f'time="{outcome.record.length_s:.3f}" timestamp={_quoted(outcome.started)}'
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>", f"<testsuite {about} {when}>"]
    for text, took_s, why in cases:
        head = f'<testcase classname={_quoted(f"drill.{name}")} name={_quoted(text)} time="{took_s:.3f}"'
        lines.append(f"{head}><failure message={_quoted(why)}/></testcase>" if why else f"{head}/>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>", ""]).encode()


def as_html(outcome: Outcome) -> bytes:
    """Return one page with the verdict, the timeline and the tables; no scripts, nothing is loaded."""
    drill, verdict = outcome.drill, outcome.verdict
    word = "passed" if verdict.passed else "failed"
    variant = f" ({escape(outcome.variant)})" if outcome.variant else ""
    body = [
        f'<h1>{escape(drill.title)} <span class="{word}">{word}</span></h1>',
        f"<p>{escape(drill.name)}{variant}, {escape(outcome.started)}, {outcome.record.length_s:.1f} s</p>",
    ]
    body += [f"<p>{escape(drill.about)}</p>"] if drill.about else []
    body += [f'<p class="failed">Cut short: {escape(verdict.cut_short)}</p>'] if verdict.cut_short else []
    body += [f'<p class="failed">Left behind: {escape(text)}</p>' for text in verdict.left_behind]
    body += _table(
        ("objective", "measured", "verdict"),
        ((one.asked, one.shown, _word(passed=one.passed)) for one in verdict.results),
    )
    if verdict.checks:
        body += _table(
            ("phase", "expected", "after", "verdict"),
            (
                (one.phase, one.text, f"{one.took_s:.1f} s" if one.held else one.last, _word(passed=one.held))
                for one in verdict.checks
            ),
        )
    body.append(timeline(outcome.record))
    colours = "".join(f'<span style="background:{colour}"></span>{state} ' for state, colour in legend())
    body.append(f'<p class="legend">P50, P95 and P99 of callers by second; {colours}</p>')
    body += _table(("outcome", "requests"), ((name, str(count)) for name, count in _outcomes(outcome.record).items()))
    page = _PAGE.format(title=escape(f"{drill.name}: {word}"), style=_STYLE, body="\n".join(body))
    return page.encode()


def summary(outcome: Outcome) -> Iterator[str]:
    """Yield the lines that end a drill on a terminal."""
    verdict = outcome.verdict
    for one in verdict.results:
        yield f"  {_word(passed=one.passed):<6} {one.asked}: {one.shown}"
    for check in verdict.checks:
        if not check.held:
            yield f"  FAILED {check.phase}: {check.text}: {check.last}"
    if verdict.cut_short:
        yield f"  FAILED cut short: {verdict.cut_short}"
    for text in verdict.left_behind:
        yield f"  FAILED left behind: {text}"
    seen = figures(outcome.record, [(0.0, outcome.record.length_s)])
    faults = f"{_injected(outcome.record)} met a fault"
    yield f"  {seen.requests} requests, {seen.errors} failed, {seen.degraded} answered degraded, {faults}"
    yield f"{'PASSED' if verdict.passed else 'FAILED'} {outcome.drill.name}"


def _word(*, passed: bool) -> str:
    return "ok" if passed else "FAILED"


def _figures(part: Figures) -> dict[str, Any]:
    return {name: _finite(value) for name, value in msgspec.to_builtins(part).items()}


def _finite(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value, 6)


def _outcomes(record: Record) -> dict[str, int]:
    counts: dict[str, int] = {}
    if record.calls:
        for call in record.calls:
            name = f"{call.outcome} ({call.degraded})" if call.degraded else call.outcome
            counts[name] = counts.get(name, 0) + 1
    elif len(record.scrapes) > 1:
        first, last = record.scrapes[0], record.scrapes[-1]
        for name, count in last.outcomes.items():
            counts[name] = round(count - first.outcomes.get(name, 0.0))
    return dict(sorted(((name, count) for name, count in counts.items() if count), key=lambda pair: -pair[1]))


def _injected(record: Record) -> int:
    """Return how many requests met a fault, which is counted apart from what failed by itself."""
    pairs = pairwise(one.injected for one in record.scrapes)
    return round(sum(max(0.0, after - before) for before, after in pairs))  # a sidecar that starts anew begins at 0


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    made = ["<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"]
    for row in rows:
        kinds = [' class="failed"' if cell == "FAILED" else "" for cell in row]
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        made.append(f"<tr>{cells}</tr>")
    return [*made, "</table>"]


def _quoted(text: str) -> str:
    """Return ``text`` as the value of an XML attribute, without what XML cannot hold."""
    return f'"{escape(_UNFIT.sub("", text))}"'


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:1em 0}th,td{text-align:left;padding:.2em .8em .2em 0;border-bottom:1px solid #ddd}
svg{width:100%;height:auto;background:#fff}.grid{stroke:#e4e4e4}.phase{stroke:#bbb;stroke-dasharray:2 3}
.fault{fill:#c0504d;fill-opacity:.12}.fault-name{fill:#a33}polyline{stroke-width:1.4}
.title{font:600 12px system-ui,sans-serif;fill:#333}.small{font:10px system-ui,sans-serif;fill:#666}
.passed{color:#2c7a2c}.failed{color:#a33;font-weight:600}
.legend span{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .6em}
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{style}</style></head>
<body>
{body}
</body></html>
"""
