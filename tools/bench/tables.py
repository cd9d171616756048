"""The tables of a run as rows of text, the heading first: for the terminal and for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.bench.contenders import AGAIN, COMPILED, DIRECT, FAULT, NO_FAULT, OURS
from tools.bench.profiles import FAULTS, PROFILES
from tools.bench.targets import TARGETS, Verdict

if TYPE_CHECKING:
    from tools.bench.results import Run

Rows = list[tuple[str, ...]]

MET, MISSED = "✓", "✗ missed"


def target_rows(run: Run) -> Rows:
    """Return each target beside what each build reached; empty where the run says nothing about a target."""
    rows: Rows = [("figure", "to reach", "interpreted", "compiled")]
    for target in TARGETS:
        cells = []
        for build in (OURS, COMPILED):
            reached = target.reached(run, build)
            if reached is None:
                cells.append("")
            elif build in target.most:
                cells.append(f"{target.written(reached)} {MET if Verdict(target, build, reached).met else MISSED}")
            else:
                cells.append(target.written(reached))  # the bound is not for this build: only to compare
        if any(cells):
            rows.append((target.figure, target.bounds, *cells))
    return rows


def profile_rows(run: Run, profile: str) -> Rows:
    """Return one row a contender: its cost, its ratios, its rate or its latencies."""
    of_profile = run.samples[profile]
    unit = PROFILES[profile].unit
    ours = [name for name in (OURS, COMPILED) if of_profile.get(name)]
    paced = PROFILES[profile].kind in ("requests", "streams")
    what = ("added p50 µs", "added p99 µs") if paced else (f"{unit}s/s on one core",)
    if unit == "event":
        what = (*what, "events/read")
    heads = (f"{name} is" for name in ours)
    rows: Rows = [("proxy", f"CPU µs/{unit}", *heads, *what, "in the kernel", f"sleeps/{unit}", "core busy")]
    for name, samples in of_profile.items():
        if not samples or (name == DIRECT and not paced):
            continue
        cpu = run.spread(profile, name, lambda sample: sample.cpu_us)
        assert cpu is not None  # noqa: S101 - there are samples
        if paced:
            cells = tuple(_added(run, profile, name, figure) for figure in ("p50_us", "p99_us"))
        else:
            rate = run.spread(profile, name, lambda sample: sample.units / sample.seconds)
            cells = (f"{rate.median:,.0f}" if rate else "",)
        if unit == "event":
            together = run.spread(profile, name, lambda sample: sample.units_per_read)
            cells = (*cells, f"{together.median:.2f}" if together else "")
        shares = [
            run.spread(profile, name, lambda sample: sample.system_ratio),
            run.spread(profile, name, lambda sample: sample.switches),
            run.spread(profile, name, lambda sample: sample.cpu_ratio),
        ]
        kernel, switches, busy = (one.median if one else 0.0 for one in shares)
        if name == DIRECT:
            rows.append(("no proxy", "", *("" for _ in ours), *cells, "", "", ""))
            continue
        rows.append(
            (
                f"{name} {run.versions.get(name, '')}".strip(),
                cpu.text(),
                *(_ratio(run, profile, one, name) for one in ours),
                *cells,
                f"{kernel:.0%}",
                f"{switches:.2f}",
                f"{busy:.0%}",
            )
        )
    return rows


_FAULTS = {
    OURS: "no fault ever",
    AGAIN: "no fault ever, a second sidecar",
    FAULT: "a fault of another model is in force",
    NO_FAULT: "it was in force, and has been removed",
}


def fault_rows(run: Run) -> Rows:
    """Return what faults cost that strike nobody: CPU less that of a sidecar that never had one, round by round.

    The second sidecar without one shows how far two processes that do the same are from each other.
    """
    rows: Rows = [("warmroute, interpreted", "CPU µs/request", "more µs/request", "more %")]
    for name, what in _FAULTS.items():
        cpu = run.spread(FAULTS, name, lambda sample: sample.cpu_us)
        more = run.compared(FAULTS, name, OURS, lambda a, b: a.cpu_us - b.cpu_us)
        share = run.compared(FAULTS, name, OURS, lambda a, b: 100 * (a.cpu_us / b.cpu_us - 1))
        if cpu is not None:
            beside = ("", "") if name == OURS or not more or not share else (more.text(), share.text(1))
            rows.append((what, cpu.text(), *beside))
    return rows


def rows_of(run: Run, profile: str) -> Rows:
    """Return the table of a profile."""
    return fault_rows(run) if profile == FAULTS else profile_rows(run, profile)


def _ratio(run: Run, profile: str, ours: str, name: str) -> str:
    ratio = run.ratio(profile, ours, name) if ours != name else None
    return f"{ratio.median:.2f} ×" if ratio else ""


def _added(run: Run, profile: str, name: str, figure: str) -> str:
    """Return a latency less the same one without a proxy, round by round; as it is where that was not measured."""
    if name == DIRECT:
        own = run.spread(profile, name, lambda sample: float(getattr(sample, figure)))
        return f"({own.text(1)} in all)" if own else ""
    added = run.compared(profile, name, DIRECT, lambda a, b: float(getattr(a, figure) - getattr(b, figure)))
    return added.text(1) if added else ""


def memory_rows(run: Run) -> Rows:
    """Return one row a contender: the process that serves, all processes, what connections add."""
    rows: Rows = [("proxy", "serving process, idle MB", "all processes, idle MB", "added by idle connections MB")]
    for name, memory in run.memory.items():
        figures = (memory.idle_bytes, memory.tree_bytes, memory.added_bytes)
        rows.append((f"{name} {run.versions.get(name, '')}".strip(), *(f"{one / 1e6:.1f}" for one in figures)))
    return rows


def kinds_rows(run: Run, name: str, most: int = 8) -> Rows:
    """Return what the idle memory of one contender's serving process is, largest first."""
    rows: Rows = [("mapped", "MB")]
    kinds = sorted(run.memory[name].kinds.items(), key=lambda item: -item[1])
    rows += [(kind, f"{size / 1e6:.1f}") for kind, size in kinds[:most]]
    if rest := sum(size for _, size in kinds[most:]):
        rows.append(("others", f"{rest / 1e6:.1f}"))
    return rows


def choice_rows(run: Run) -> Rows:
    """Return what one choice costs, by the size of the fleet."""
    rows: Rows = [("endpoints", "one choice µs", "with the end of its attempt µs")]
    rows += [(f"{one.endpoints:,}", f"{one.choose_us:.2f}", f"{one.both_us:.2f}") for one in run.choices]
    return rows


def parts_rows(run: Run, profile: str) -> Rows:
    """Return what each sampled contender spends in each part, µs a unit; empty where nothing could be sampled."""
    found = {name: one.parts for name, one in run.explained.get(profile, {}).items() if one.parts}
    if not found:
        return []
    whole = {name: _serving_us(run, profile, name) for name in found}
    spent = {name: {part: share * whole[name] for part, share in parts.items()} for name, parts in found.items()}
    parts = sorted({part for one in spent.values() for part in one})
    parts.sort(key=lambda part: -max(one.get(part, 0.0) for one in spent.values()))
    rows: Rows = [("part", *spent)]
    rows += [(part, *(f"{one[part]:.1f}" if part in one else "" for one in spent.values())) for part in parts]
    return [*rows, ("in all", *(f"{whole[name]:.1f}" for name in spent))]


def functions_rows(run: Run, profile: str) -> Rows:
    """Return the functions in which the interpreted build spends most, what they call in C counted in."""
    found = run.explained.get(profile, {}).get(OURS)
    if found is None or not found.functions:
        return []
    whole = _serving_us(run, profile, OURS)
    rows: Rows = [("interpreted build: function, with what it calls in C", "share", f"µs/{PROFILES[profile].unit}")]
    return [*rows, *((name, f"{share:.0%}", f"{share * whole:.1f}") for name, share in found.functions.items())]


def _serving_us(run: Run, profile: str, name: str) -> float:
    """Return the part of the CPU per unit that the serving process has; all of it where there is only one."""
    cpu = run.spread(profile, name, lambda sample: sample.by_process.get("data", sample.cpu_us))
    return cpu.median if cpu else 0.0
