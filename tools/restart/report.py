"""The table of a rolling restart and what is judged of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tools.restart.play import Outcome, Plan
    from tools.restart.setups import Setup

    Played = Mapping[tuple[Setup, bool], Outcome]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "routing.md"
BEGIN = "<!-- measured: written by make restart -->"
END = "<!-- end of measured -->"
LOWER_BY = 12.3


@dataclass(frozen=True)
class Verdict:
    """One bound and what was reached."""

    figure: str
    bound: str
    reached: str
    met: bool

    def __str__(self) -> str:
        """Return a line for people."""
        return f"{'✓' if self.met else '✗ MISSED'}  {self.figure}: {self.reached} ({self.bound})"


def verdicts(played: Played) -> list[Verdict]:
    """Judge warmroute beside the others; nothing where it or they are missing."""
    return [*_truthful(played), *_lying(played)]


def _truthful(played: Played) -> Iterator[Verdict]:
    ours = next((one for (setup, lying), one in played.items() if setup.ours and not lying), None)
    others = [(one, setup) for (setup, lying), one in played.items() if not setup.name.startswith("warmroute")]
    others = [(one, setup) for one, setup in others if (setup, False) in played and played[setup, False] is one]
    if ours is None or not others:
        return
    for name in ("p99_ms", "p999_ms"):
        best, who = min(((getattr(one, name), setup.name) for one, setup in others), key=lambda pair: pair[0])
        reached = getattr(ours, name)
        label = "P99.9" if name == "p999_ms" else "P99"
        yield Verdict(
            f"readiness tells the truth: {label}",
            f"at most the best other's, {best:.1f} ms: {who}",
            f"{reached:.1f} ms",
            reached <= best,
        )
    yield _no_errors("tells the truth", ours)


def _lying(played: Played) -> Iterator[Verdict]:
    ours = next((one for (setup, lying), one in played.items() if setup.ours and lying), None)
    if ours is None:
        return
    others = [
        (one, setup)
        for (setup, lying), one in played.items()
        if not setup.name.startswith("warmroute") and (lying or not setup.checks)
    ]
    if others:
        best, who = min(((one.p999_ms, setup.name) for one, setup in others), key=lambda pair: pair[0])
        yield Verdict(
            "readiness lies: P99.9 lower than every other's",
            f"at least {LOWER_BY} times; closest: {who}, {best:.0f} ms",
            f"{best / ours.p999_ms:.1f} times, {ours.p999_ms:.1f} ms",
            best >= LOWER_BY * ours.p999_ms,
        )
    yield _no_errors("lies", ours)


def _no_errors(readiness: str, ours: Outcome) -> Verdict:
    return Verdict(f"readiness {readiness}: errors", "none", f"{ours.failures} of {ours.requests}", ours.failures == 0)


def table(played: Played) -> str:
    """Return all rows as Markdown."""
    lines = ["| proxy | readiness | P50 ms | P99 ms | P99.9 ms | failed |", "| --- | --- | --- | --- | --- | --- |"]
    for (setup, lying), one in played.items():
        readiness = ("lies" if lying else "tells the truth") if setup.checks else "not asked"
        failed = f"{one.failures / one.requests:.2%}" if one.failures else "none"
        figures = " | ".join(f"{ms:,.1f}" if ms < 100 else f"{ms:,.0f}" for ms in (one.p50_ms, one.p99_ms, one.p999_ms))
        lines.append(f"| {setup.name} | {readiness} | {figures} | {failed} |")
    return "\n".join(lines)


def write_docs(played: Played, plan: Plan, *, realtime: bool) -> Path:
    """Put the table between its marks in docs/routing.md; return the path. ``realtime``: it went before all else.

    Raises:
        ValueError: the marks are not there.
    """
    text = DOCS.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{DOCS.name} has no marks for it: {BEGIN} and {END}")
    judged = "\n".join(f"- {verdict}" for verdict in verdicts(played))
    late = max(one.late_ms for one in played.values())
    said = (
        f"{plan.workers} workers, {plan.rate:g} requests a second, one killed every {plan.period_s:g} s; the load was "
        f"at most {late:.0f} ms late{', all at real-time priority' if realtime else ''}."
    )
    DOCS.write_text(f"{before}{BEGIN}\n\n{said}\n\n{judged}\n\n{table(played)}\n\n{END}{after}", encoding="utf-8")
    return DOCS
