"""How far down its ladder each model is, from the metrics pages of the data processes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.ladder import LadderStep
from sidecar.cache.terms import Refused
from sidecar.telemetry.ladder_words import BY_STEP
from sidecar.telemetry.page import LADDER_WORDS, MAGIC, MODEL_LADDER, LadderWord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.admin.context import Context


def ladders(context: Context, now: float) -> list[dict[str, Any]]:
    """Return the ladder of each model that has one, over all processes; ``step`` is the lowest of theirs."""
    by_model: dict[str, list[tuple[int, list[int]]]] = {}
    for index, page in enumerate(context.pages):
        if page.words[0] == MAGIC:
            for model, row in page.models():
                words = page.words[row + MODEL_LADDER : row + MODEL_LADDER + LADDER_WORDS].tolist()
                if words[LadderWord.STEP_NOW]:
                    by_model.setdefault(model, []).append((index, words))
    return [_document(model, rows, now) for model, rows in sorted(by_model.items())]


def ladder_of(context: Context, model: str, now: float) -> dict[str, Any] | None:
    """Return one model's ladder, None where it has none."""
    return next((one for one in ladders(context, now) if one["model"] == model), None)


def _document(model: str, rows: list[tuple[int, list[int]]], now: float) -> dict[str, Any]:
    lowest = max(rows, key=lambda row: row[1][LadderWord.STEP_NOW])[1]
    return {
        "model": model,
        "step": _name(lowest[LadderWord.STEP_NOW]),
        "for_s": round(max(0.0, now - lowest[LadderWord.SINCE_MS_NOW] / 1000), 3),
        "processes": {str(index): _name(words[LadderWord.STEP_NOW]) for index, words in rows},
        "answers": {step.name.lower(): _sum(rows, word) for step, word in BY_STEP.items()},
        "cache": {
            "entries": _sum(rows, LadderWord.ENTRIES_NOW),
            "bytes": _sum(rows, LadderWord.BYTES_NOW),
            "hits": _sum(rows, LadderWord.BY_CACHE),
            "misses": _sum(rows, LadderWord.MISSES),
            "fills": _sum(rows, LadderWord.FILLS),
            "evicted": _sum(rows, LadderWord.EVICTED),
            "shared": {
                "hits": _sum(rows, LadderWord.SHARED_HITS),
                "misses": _sum(rows, LadderWord.SHARED_MISSES),
                "fills": _sum(rows, LadderWord.SHARED_FILLS),
                "dropped": _sum(rows, LadderWord.SHARED_DROPPED),
            },
            "refused": {why.name.lower(): count for why in Refused if (count := _sum(rows, LadderWord.REFUSED + why))},
        },
    }


def _name(step: int) -> str:
    return LadderStep(step).name.lower()


def _sum(rows: Iterable[tuple[int, list[int]]], word: int) -> int:
    return sum(words[word] for _, words in rows)
