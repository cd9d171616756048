"""A page of metrics as a scraper reads it."""

from __future__ import annotations

from collections import Counter


def doubled(text: str) -> list[str]:
    """Return the series that stand on a page more than once: a scraper refuses it then, or takes either value."""
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if line and not line.startswith("#"))
    return [name for name, count in series.items() if count > 1]
