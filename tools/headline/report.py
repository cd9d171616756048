"""A measured profile in words: parameters, table, verdicts; and how it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sidecar.traffic.summary import LATE_S
from tools.headline.figures import CONFIDENCE, Compared, Figure, Row
from tools.restart.setups import CHECKED_S
from tools.restart.worker import ERROR_RATIO, SLOWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.headline.profiles import Profile
    from tools.restart.report import Verdict

_TABLES = {"coldstart": ("P50", "P95", "P99", "P99.9"), "dependency": ("P50", "P95", "P99")}


@dataclass(frozen=True)
class Result:
    """Everything that is kept of a profile. ``late_ms``: the most that the load was late by, at its 99th percentile."""

    name: str
    title: str
    machine: dict[str, str]
    versions: dict[str, str]
    parameters: dict[str, str]
    late_ms: float
    told: float
    compared: Compared

    @property
    def noisy(self) -> bool:
        """Whether the load could not keep its moments: its latencies are then partly its own."""
        return self.late_ms > 1000 * LATE_S

    @property
    def met(self) -> bool:
        """Whether every bound was."""
        return all(verdict.met for verdict in self.compared.verdicts)


def to_json(results: Sequence[Result]) -> bytes:
    """Return results as they are kept."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def from_json(data: bytes) -> list[Result]:
    """Read results that were kept.

    Raises:
        msgspec.ValidationError: they are of another version of this tool.
    """
    return msgspec.json.decode(data, type=list[Result])


def parameters(profile: Profile, rounds: int) -> dict[str, str]:
    """Return all that a reader needs to play the same."""
    plan = profile.plan
    said = {
        "workers": f"{plan.workers}, each a process of its own (tools/restart/worker.py)",
        "load time": f"{plan.load_s:g} s from a worker's start; until then it accepts and holds requests",
        "service time": f"{1000 * plan.service_s:g} ms in the mean, lognormal, standard deviation of the logarithm "
        f"{plan.spread:g}, drawn with the trace",
        "slots": f"{plan.width} requests at once at a worker; others wait there in order",
        "rate": f"{plan.rate:g} requests a second, Poisson, an open loop without retries: "
        f"{plan.share:.0%} of what all workers can serve",
        "readiness": "`/v2/health/ready` tells the truth: 503 until a worker has loaded",
        "checks": f"every {1000 * CHECKED_S:g} ms, one answer counts, where a proxy has any; warmroute also sends one "
        "warm-up request, to be answered within 200 ms",
        "retries": "each proxy: one, on another worker",
    }
    if profile.name == "coldstart":
        *restarts, added = plan.restarts
        said["restarts"] = (
            f"from {plan.lead_s:g} s on one worker every {plan.period_s:g} s is killed (SIGKILL) and started again "
            f"{plan.down_s:g} s later, {len(restarts)} in turn; then one is away for {added.down_s:g} s and comes "
            "back cold"
        )
    else:
        said["failure"] = (
            f"from {plan.lead_s:g} s on one worker answers {ERROR_RATIO:.0%} of its requests with 500 at once, takes "
            f"{SLOWER} times as long for the others, and says that it is ready"
        )
        said["readiness"] = "`/v2/health/ready` says 200 all the time"
    said["duration"] = (
        f"{rounds} interleaved rounds of {plan.duration_s:g} s for each contender, each round a trace of its own seed, "
        "the same for all"
    )
    said["cores"] = "workers and load on one, the proxy on another; each proxy has one process or thread that serves"
    return said


def table(result: Result) -> str:
    """Return the rows as Markdown."""
    names = _TABLES[result.name]
    calm = any(row.calm_ms is not None for row in result.compared.rows)
    heads = ["", "requests", *(["P95 before"] if calm else []), *names, "failed"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in result.compared.rows:
        before = ["" if row.calm_ms is None else ms(row.calm_ms)] if calm else []
        figures = [within(row.quantiles_ms.get(name)) for name in names]
        lines.append(_line([f"({row.key}) {row.about}", f"{row.requests:,}", *before, *figures, failed(row)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def ms(value: float) -> str:
    """Return milliseconds with as many digits as are worth reading."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def within(figure: Figure | None) -> str:
    """Return a figure in milliseconds, and where it lies."""
    if figure is None:
        return "too few"
    bounds = "" if figure.low is None or figure.high is None else f" ({ms(figure.low)}–{ms(figure.high)})"
    return ms(figure.value) + bounds


def failed(row: Row) -> str:
    """Return the share of failures, and where it lies."""
    figure = row.error_ratio
    if not row.failures:
        return "none" if figure.high is None else f"none (≤ {figure.high:.3%})"
    bounds = "" if figure.low is None or figure.high is None else f" ({figure.low:.2%}–{figure.high:.2%})"
    return f"{figure.value:.2%}{bounds}"


def judged(verdict: Verdict) -> str:
    """Return a verdict as a line."""
    return f"{'MET' if verdict.met else 'MISSED'}: {verdict.figure}: {verdict.reached}, {verdict.bound}"


def about_figures(result: Result) -> str:
    """Return how the table is to be read."""
    compared = result.compared
    noisy = " So the machine was part of these figures: let nothing else run on it." if result.noisy else ""
    return (
        f"Milliseconds, of what did not fail; in brackets where each lies, with a confidence of {CONFIDENCE:.0%}, by "
        f"drawing its {compared.blocks} blocks. The load was late by {result.late_ms:.1f} ms at most, at its 99th "
        f"percentile.{noisy}"
    )
