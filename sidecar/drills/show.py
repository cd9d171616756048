"""What a drill tells while it runs: a line for each phase, and what callers see, in place on a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from sidecar.drills.faulting import told
from sidecar.drills.scenario import kind_of
from sidecar.drills.watching import expected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.drills.record import Check, Look
    from sidecar.drills.scenario import Phase
    from sidecar.drills.traffic import Figures

PLAIN_S = 5.0
"""How often callers' figures are told where they cannot be told in place."""


class Show:
    """Writes to one stream. One whose reader has gone ends no drill: it has faults to take back."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._in_place = self._out.isatty()
        self._told_at = 0.0
        self._status = ""

    def line(self, text: str = "") -> None:
        """Write one line."""
        self._write(("\r\x1b[K" if self._status else "") + text + "\n")
        self._status = ""

    def note(self, text: str) -> None:
        """Write one line that belongs to no phase."""
        self.line(f"         {text}")

    def phase(self, at: float, phase: Phase) -> None:
        """Say that a phase begins."""
        self.line(f"{at:7.1f}s {phase.name}: {about(phase)}")

    def check(self, check: Check) -> None:
        """Say whether what was expected came to be."""
        self.note(f"so after {check.took_s:.1f} s" if check.held else f"NOT so: {check.last}")

    def status(self, at: float, seen: Figures, look: Look | None, faults: Sequence[str]) -> None:
        """Say what callers see now."""
        parts = [f"{seen.requests} answers of late"]
        if seen.error_ratio is not None:
            parts.append(f"errors {100 * seen.error_ratio:.1f}%")
        if seen.p50_ms is not None and seen.p95_ms is not None:
            parts.append(f"P50 {seen.p50_ms:.0f} ms, P95 {seen.p95_ms:.0f} ms")
        if look is None:
            parts.append("admin API silent")
        else:
            out = [f"{name} {one.out}" for name, one in sorted(look.endpoints.items()) if one.out]
            parts += out[:4]
        parts += [f"fault {id_}" for id_ in faults]
        text = f"{at:7.1f}s " + " · ".join(parts)
        if self._in_place:
            self._write("\r\x1b[K" + text[:160])
            self._status = text
        elif at - self._told_at >= PLAIN_S:
            self._told_at = at
            self.line(text)

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()


def about(phase: Phase) -> str:
    """Return what a phase does, in words."""
    if phase.load is not None:
        return f"{phase.load.method} {phase.load.path}, {phase.load.rate_per_s:g} requests a second"
    if phase.fault is not None:
        return f"fault {told(phase.fault)} for {phase.fault['for_s']:g} s at most"
    if phase.end is not None:
        return f"fault {phase.end.fault} ends"
    if phase.wait is not None:
        return f"wait {phase.wait.for_s:g} s"
    if phase.expect is not None:
        return f"expect {expected(phase.expect)}"
    if phase.do is not None:
        return f"{phase.do.act.value} {phase.do.endpoint or phase.do.model}"
    return kind_of(phase)
