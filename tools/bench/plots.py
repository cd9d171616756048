"""The plots of a run: horizontal bars in groups, drawn as the pictures of docs/ are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.bench.contenders import COMPILED, DIRECT, OURS
from tools.bench.profiles import PROFILES
from tools.pictures.svg import Drawing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.bench.results import Run
    from tools.pictures.svg import Kind

_WIDTH, _NAMES, _NUMBERS = 860, 150, 140
_BAR, _GAP = 17, 14
_KINDS: dict[str, Kind] = {OURS: "ours", COMPILED: "ours", "nginx": "store"}


@dataclass(frozen=True)
class Group:
    """Bars with one title: a label, a value, and the text behind it."""

    title: str
    bars: Sequence[tuple[str, float, str]]


def bars(title: str, groups: Sequence[Group], note: str = "", kinds: Mapping[str, Kind] = _KINDS) -> str:
    """Draw ``groups`` on one scale, labels in the colours of their ``kinds``; empty where there is nothing to draw."""
    groups = [group for group in groups if group.bars]
    if not groups:
        return ""
    height = 64 + sum(24 + _BAR * len(group.bars) + _GAP for group in groups)
    drawing = Drawing(_WIDTH, height, title)
    drawing.note(20, 28, title, size=15, weight="bold")
    drawing.note(20, 46, note, size=11)
    scale = (_WIDTH - 40 - _NAMES - _NUMBERS) / max(value for group in groups for _, value, _ in group.bars)
    y = 74
    for group in groups:
        drawing.note(20, y, group.title, weight="bold")
        y += 10
        for label, value, text in group.bars:
            drawing.note(20 + _NAMES - 8, y + 12, label, anchor="end", size=11)
            length = max(1, round(value * scale))
            drawing.bar(20 + _NAMES, y + 2, length, _BAR - 4, kind=kinds.get(label, "other"))
            drawing.note(20 + _NAMES + length + 6, y + 12, text, size=11)
            y += _BAR
        y += _GAP + 14
    return drawing.text()


def _cpu(run: Run, profile: str, names: Sequence[str] | None = None) -> Group:
    found = []
    for name in names or run.samples.get(profile, {}):
        spread = run.spread(profile, name, lambda sample: sample.cpu_us)
        if spread is None or name == DIRECT:
            continue
        ratio = run.ratio(profile, name, "nginx") if name != "nginx" else None
        found.append(
            (name, spread.median, f"{spread.median:.1f} µs" + (f", {ratio.median:.2f} × nginx" if ratio else ""))
        )
    return Group(PROFILES[profile].title, found)


_NEAR = ("nginx", "haproxy", "envoy", OURS, COMPILED)


def cpu(run: Run) -> str:
    """CPU per unit beside nginx, HAProxy and Envoy."""
    names = ("get", "post", "repeat", "new", "large", "sse")
    return bars("CPU per request or event", [_cpu(run, name, _NEAR) for name in names], "shorter is better")


def others(run: Run) -> str:
    """CPU per request beside what is slower."""
    return bars("CPU per request beside other routers", [_cpu(run, "openai"), _cpu(run, "post")], "shorter is better")


def latency(run: Run) -> str:
    """What each proxy adds to a request's latency at a fixed rate."""
    groups = []
    for title, figure in (("median", "p50_us"), ("99th percentile", "p99_us")):
        found = []
        for name in run.samples.get("rate", {}):
            added = run.compared(
                "rate",
                name,
                DIRECT,
                lambda a, b, figure=figure: float(getattr(a, figure) - getattr(b, figure)),  # type: ignore[misc]
            )
            if added is not None and name != DIRECT:
                found.append((name, max(0.0, added.median), f"{added.median:.0f} µs"))
        groups.append(Group(title, found))
    return bars(
        f"Added latency: {PROFILES['rate'].title}", groups, "less what it takes without a proxy; shorter is better"
    )


def memory(run: Run) -> str:
    """Memory of one serving process."""
    idle = [(name, one.idle_bytes / 1e6, f"{one.idle_bytes / 1e6:.1f} MB") for name, one in run.memory.items()]
    added = [
        (name, max(0.0, one.added_bytes / 1e6), f"{one.added_bytes / 1e6:.1f} MB") for name, one in run.memory.items()
    ]
    count = next((one.connections for one in run.memory.values()), 0)
    groups = [Group("idle", idle), Group(f"added by {count:,} idle connections", added)]
    return bars("Memory of one serving process (PSS)", groups, "shorter is better")
