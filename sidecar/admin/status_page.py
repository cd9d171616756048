"""The status page: one HTML document, written here as a whole: no scripts, nothing from elsewhere."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING

from router.model import WHOLE, StoreMode
from sidecar.admin import documents
from sidecar.admin.ladders import ladders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.placing import Placed
    from router.routes import Route
    from sidecar.admin.context import Context

REFRESH_S = 2
NONE = "-"

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2a9d5c; --warn: #d98e04; --bad: #d1495b }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 1.8rem 0 .4rem }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; white-space: nowrap }
th { font-weight: 600; opacity: .7 } .n { font-variant-numeric: tabular-nums; text-align: right }
.bar { background: var(--line); border-radius: 3px; height: .7rem; width: 10rem }
.bar i { background: var(--good); border-radius: 3px; display: block; height: 100% }
.good { color: var(--good) } .warn { color: var(--warn) } .bad { color: var(--bad) } .quiet { opacity: .6 }
"""
_STATES = {"warm": "good", "failed": "bad"}


MOST_ROWS = 1024
"""Rows of the page's tables at most: it is loaded again every two seconds."""


def render(context: Context, now: float) -> Iterator[bytes | None]:
    """Yield the page as of ``now`` (monotonic seconds) in pieces, and None where a turn of work is over."""
    reasons = yield from documents.not_ready(context, now)
    for part in _parts(context, now, reasons):
        yield None if part is None else part.encode()


def _parts(context: Context, now: float, reasons: list[str]) -> Iterator[str | None]:
    mode = context.keeper.roster.mode
    yield "<!doctype html><html lang=en><meta charset=utf-8>"
    yield f'<meta http-equiv=refresh content={REFRESH_S}><meta name=viewport content="width=device-width">'
    yield f"<title>warmroute {escape(context.sidecar_id)}</title><style>{_STYLE}</style>"
    yield f"<h1>warmroute <span class=quiet>{escape(context.version)} · {escape(context.sidecar_id)}</span></h1>"
    ready = "<b class=good>ready</b>" if not reasons else f"<b class=bad>not ready</b>: {escape('; '.join(reasons))}"
    store = f"<b class={'good' if mode is StoreMode.LIVE else 'warn'}>{mode.value}</b>"
    yield f"<p>{ready} · shared state {store} · listening on {escape(', '.join(context.listen_addresses) or 'nothing')}"
    config = context.config
    yield f" · configuration {escape(config.revision)}"
    if config.bad_since is not None:
        yield f" <b class=bad>and a bad one waits</b>: {escape('; '.join(config.problems[:3]))}"
    if config.needs_restart:
        paths = ", ".join(change.path for change in config.needs_restart[:8])
        yield f" <b class=warn>needs an upgrade or a restart for {escape(paths)}</b>"
    if config.would_break:
        yield f" <b class=bad>nothing of it is in force yet</b>: {escape('; '.join(config.would_break[:3]))}"
    yield from _routes(context, now)
    degraded = [one for one in ladders(context, now) if one["step"] != "replica"]
    if degraded:
        yield "<h2>Degraded</h2><table><tr><th>model<th>answered by<th>for<th class=n>kept answers</tr>"
        for one in degraded:
            said = f"{escape(one['model'])}<td>{one['step']}<td>{one['for_s']:.0f} s"
            yield f"<tr class=bad><td>{said}<td class=n>{one['cache']['entries']}</tr>"
        yield "</table>"
    if context.keeper.roster.faults:
        yield "<h2>Faults in force</h2><table><tr><th>id<th>kind<th>ratio<th>left</tr>"
        for rule in context.keeper.roster.faults.values():
            cells = (escape(rule.id), escape(rule.kind), f"{rule.ratio:g}", f"{max(0.0, rule.until - now):.0f} s")
            yield f"<tr class=warn><td>{'<td>'.join(cells)}</tr>"
        yield "</table>"
    yield "<h2>Processes</h2><table><tr><th>process<th class=n>pid<th>state<th>uptime</tr>"
    for process in documents.processes(context, now):
        state = "<span class=good>up</span>" if process["up"] else "<span class=bad>silent</span>"
        uptime = f"{process['uptime_s']:.0f} s" if process["uptime_s"] is not None else NONE
        yield f"<tr><td>data-{process['index']}<td class=n>{process['pid'] or NONE}<td>{state}<td>{uptime}</tr>"
    uptime = f"{now - context.started_at:.0f} s"
    yield f"<tr><td>control<td class=n>{os.getpid()}<td><span class=good>up</span><td>{uptime}</tr></table>"


def _routes(context: Context, now: float) -> Iterator[str | None]:
    rows = left_out = 0

    def wanted(route: Route) -> bool:
        nonlocal left_out
        left_out += rows >= MOST_ROWS
        return rows < MOST_ROWS

    for stood in context.keeper.cluster.standings_in_turns(now, wanted):
        if stood is None:
            yield None
            continue
        route, places = stood.route, stood.places
        if route.version and len({place.glance.version for place in places}) <= 1:
            continue  # the same table as that of its model
        yield f"<h2>{escape(route.key)} <span class=quiet>{'default' if stood.default else ''}</span></h2>"
        yield "<table><tr><th>endpoint<th>state<th class=n>weight<th class=n>share<th>"
        yield "<th class=n>p95 ms<th class=n>in flight<th>out because</tr>"
        for place in places[: MOST_ROWS - rows]:
            yield _candidate(place)
        if not places:
            yield "<tr><td colspan=8 class=warn>no endpoint serves this</tr>"
        yield "</table>"
        if len(places) > MOST_ROWS - rows:
            yield f"<p class=quiet>and {len(places) - MOST_ROWS + rows} more"
        rows += max(1, len(places))
    if left_out:
        yield f"<p class=quiet>and {left_out} more routes: <code>warmroute routes</code> shows all"


def _candidate(place: Placed) -> str:
    candidate = place.glance.candidate
    of, version, endpoint = candidate.replica.state.value, candidate.version, candidate.endpoint
    state = f"<span class={_STATES.get(of, 'warn')}>{escape(of)}</span>"
    p95 = NONE if place.glance.p95_ms is None else f"{place.glance.p95_ms:.1f}"
    bar = f'<div class=bar><i style="width:{100 * place.share:.0f}%"></i></div>'
    shard = "" if candidate.shard == WHOLE else f" #{candidate.shard}"
    name = endpoint.id + (f" @{version}" if version else "") + shard
    out = "; ".join(([place.reason.value] if place.reason else []) + list(place.lacks[:1]))
    return (
        f"<tr><td>{escape(name)}<td>{state}<td class=n>{place.weight:.3f}<td class=n>{100 * place.share:.1f}%<td>{bar}"
        f"<td class=n>{p95}<td class=n>{endpoint.in_flight + endpoint.peers_in_flight}"
        f"<td class=warn>{escape(out)}</tr>"
    )
