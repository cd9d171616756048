"""Reads the few gauges and counters that matter from a Prometheus metrics page, leniently and within bounds. Pure.

Servers disagree about the finer points of the exposition format, so a line that makes no sense is passed over. A value
that is no finite number of 0 or more is refused: it is counted and changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isnan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAGE_BYTES: Final = 1 << 20
"""Longest page that is read; a longer one is read up to here, and of a line that is cut nothing counts."""
PAGE_LINES: Final = 20000
"""Most lines that are read of a page."""
SERIES: Final = 4096
"""Most series of the names asked for that are read of a page."""
MAX_VALUE: Final = 1e18
"""A larger one is taken for this (an exabyte; in ns, thirty years): sums of as many as a page may have are finite."""

NAN: Final = "nan"
INFINITE: Final = "infinite"
NEGATIVE: Final = "negative"
NOT_A_NUMBER: Final = "not_a_number"
OVER_LIMIT: Final = "over_limit"
REFUSALS: Final = (NAN, INFINITE, NEGATIVE, NOT_A_NUMBER, OVER_LIMIT)
"""Why values are refused; ``over_limit`` is a page with more lines or series than are read."""

_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]{1,5})?|[+-]?inf(?:inity)?|nan", re.ASCII
)
_NUMBER_CHARACTERS: Final = 64
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One value of a page, with its labels in the order of the page."""

    labels: Labels
    value: float

    def label(self, name: str) -> str:
        """Return the value of a label, empty where the series has none of that name."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(slots=True)
class MetricsPage:
    """What a page says of the names asked for, in order, and how many values were refused, by reason.

    ``lacking`` are the names of which a value was refused.
    """

    series: dict[str, list[Series]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    lacking: set[str] = field(default_factory=set)

    def of(self, names: Iterable[str]) -> list[Series]:
        """Return the series of the first of ``names`` that the page has; nothing where it has none."""
        return next((self.series[name] for name in names if name in self.series), [])

    def whole(self, names: Iterable[str]) -> list[Series]:
        """Return the same for what is added up: nothing where a value was refused, as the rest would say too little."""
        name = next((name for name in names if name in self.series or name in self.lacking), "")
        return [] if name in self.lacking else self.series.get(name, [])


def number(text: str) -> tuple[float, str]:
    """Return (value, ""), or (0, reason) for what is no finite number of 0 or more."""
    text = text[: _NUMBER_CHARACTERS + 1].lower()
    if len(text) > _NUMBER_CHARACTERS or not _NUMBER.fullmatch(text):
        return 0.0, NOT_A_NUMBER
    value = float(text)
    if isnan(value):
        return 0.0, NAN
    if value in (inf, -inf):
        return 0.0, INFINITE
    if value < 0:
        return 0.0, NEGATIVE
    return value + 0.0, ""  # of -0 it makes 0


def read_page(page: bytes, names: frozenset[str], *, cut: bool = False) -> MetricsPage:
    """Return what ``page`` says of ``names``. ``cut``: it goes on behind this, so its last line is not whole."""
    out = MetricsPage()
    if cut or len(page) > PAGE_BYTES:
        page = page[:PAGE_BYTES]
        page = page[: page.rfind(b"\n") + 1]
        out.refused[OVER_LIMIT] += 1
    elif page.count(b"\n") > PAGE_LINES:
        page = b"\n".join(page.split(b"\n", PAGE_LINES)[:PAGE_LINES])
        out.refused[OVER_LIMIT] += 1
    for count, found in enumerate(_lines(names).finditer(page.decode("utf-8", "replace"))):
        name, labels, text = found.groups()
        if count >= SERIES:
            out.refused[OVER_LIMIT] += 1
            break
        value, why = number(text)
        if why:
            out.refused[why] += 1
            out.lacking.add(name)
        else:
            out.series.setdefault(name, []).append(Series(_labels(labels), min(value, MAX_VALUE)))
    return out


@lru_cache(maxsize=64)
def _lines(names: frozenset[str]) -> re.Pattern[str]:
    """Return what finds the lines of these names: name, labels or None, value. Linear in the page's length."""
    either = "|".join(re.escape(name) for name in sorted(names))
    labels = r'\{((?:[^"}\n]|"(?:[^"\\\n]|\\[^\n])*+")*+)\}'
    return re.compile(rf"^({either})(?:{labels})?[ \t]*+(?<=[ \t}}])([^\s#]+)", re.MULTILINE)


def _labels(text: str | None) -> Labels:
    if not text:
        return ()
    return tuple((name, _ESCAPE.sub(_unescaped, value)) for name, value in _LABEL.findall(text))


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[1])


# --- what several series say together -------------------------------------------------------------------------------

RANKS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "worker_id", "pid"})
"""Labels of processes that share one piece of work, and each report all of it."""
_PRIORITY: Final = "priority"


def total(series: Iterable[Series]) -> float | None:
    """Return the sum over engines and models, None where there is no series.

    Ranks of one engine report the same thing each: the largest counts. Where the parts by priority stand beside the
    whole (SGLang), the whole counts.
    """
    groups = _by_engine(series)
    return sum(groups.values()) if groups else None


def mean(series: Iterable[Series]) -> float | None:
    """Return the mean over engines and models, with the same regard for ranks; None where there is no series."""
    groups = _by_engine(series)
    return sum(groups.values()) / len(groups) if groups else None


def _by_engine(series: Iterable[Series]) -> Mapping[Labels, float]:
    groups: dict[Labels, float] = {}
    for one in series:
        if one.label(_PRIORITY):
            continue
        key = tuple(sorted((name, value) for name, value in one.labels if name not in RANKS))
        groups[key] = max(groups.get(key, 0.0), one.value)
    return groups
