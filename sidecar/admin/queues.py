"""What waits, and the limits it waits for: added up from the pages of the data processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.turns import LOOKS
from sidecar.telemetry.page import (
    ENDPOINT_LIMIT,
    MAGIC,
    MODEL_ADMITTED_NOW,
    MODEL_QUEUE_NOW,
    MODEL_TURNED_AWAY,
    MODEL_TURNED_AWAY_END,
    admitted_shares,
)

if TYPE_CHECKING:
    from router.turns import Turns
    from sidecar.admin.context import Context
    from sidecar.settings import Model
    from sidecar.telemetry.page import Page


def queues(context: Context) -> list[dict[str, Any]]:
    """Return what waits of each configured model, and of those for which somebody has waited, in order of name."""
    found: dict[str, list[int]] = {model.name: [0, 0, 0] for model in context.settings.models}
    for page in _written(context):
        words = page.words
        for model, row in page.models():
            refused = sum(words[row + MODEL_TURNED_AWAY : row + MODEL_TURNED_AWAY_END])
            here = (words[row + MODEL_QUEUE_NOW], refused, words[row + MODEL_ADMITTED_NOW])
            if model in found or any(here):
                sums = found.setdefault(model, [0, 0, 0])
                for at, value in enumerate(here):
                    sums[at] += value
    shares = admitted_shares(context.pages, context.keeper.alive)
    rules = {model.name: model for model in context.settings.models}
    return [_row(model, sums, shares[model], rules.get(model)) for model, sums in sorted(found.items())]


def _row(model: str, sums: list[int], limit: int, rules: Model | None) -> dict[str, Any]:
    waiting, refused, in_flight = sums
    limited = rules is not None and rules.admission.requests is not None
    return {
        "model": model,
        "waiting": waiting,
        "turned_away": refused,
        "in_flight": in_flight if limited else None,
        "limit": limit if limited else None,
        "on_no_candidate": "fail" if rules is None else rules.on_no_candidate.value,
    }


def endpoint_limits(context: Context) -> Turns[dict[str, int]]:
    """Return how much may be in flight at each endpoint, over all processes, where that follows latency."""
    limits: dict[str, int] = {}
    for page in _written(context):
        for count, (endpoint, row) in enumerate(page.endpoints(), 1):
            limit = page.words[row + ENDPOINT_LIMIT]
            if limit:
                limits[endpoint] = limits.get(endpoint, 0) + limit
            if count % LOOKS == 0:
                yield None
    return limits


def _written(context: Context) -> list[Page]:
    return [page for page in context.pages if page.words[0] == MAGIC]
