"""The tables of a bench, as Markdown whose columns also line up in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.bench.results import CACHES, REST, Results, median, quantile
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NONE = "–"


def report(results: Results) -> str:
    """Return the whole report."""
    emptied = {"drop_caches": "drop_caches", "fadvise": "its files dropped by fadvise, libraries stay"}
    machine = results.machine
    head = (
        f"{results.model}: {results.model_bytes / 1e6:,.0f} MB{_packed(results)}, asked with {results.shapes},"
        f" on {results.device}; {results.rounds} rounds after {results.warm_ups} warm-ups, interleaved.\n"
        f"Cold page cache: {emptied.get(results.emptied, 'not measured')}. {machine.cores} cores ({machine.processor}),"
        f" {machine.memory_bytes / 1e9:.0f} GB, Linux {machine.kernel}, Python {machine.python},"
        f" ONNX Runtime {machine.onnxruntime}; {results.threads} threads within one execution of the workers."
    )
    parts = [head, "Spawn to first answer, ms (median, P95):\n\n" + answers(results)]
    parts += [
        f"Stages, {cache} page cache, ms (medians):\n\n{stages(results, cache)}"
        for cache in CACHES
        if any(sample.cache == cache for sample in results.samples)
    ]
    parts.append("First access, residency and memory at the first answer (medians):\n\n" + first_access(results))
    if results.steady:
        parts.append("One caller after the first answer (medians):\n\n" + steady(results))
    if results.beside:
        parts.append("P99 of a load beside the start, ms (medians, warm page cache):\n\n" + beside(results))
    return "\n\n".join(parts) + "\n"


def _packed(results: Results) -> str:
    return f" packed ({results.saved_percent:.0f}% saved)" if results.packed else ""


def answers(results: Results) -> str:
    """Return spawn to first answer by row, with how many times lower than the plain session it is."""
    caches = [cache for cache in CACHES if any(sample.cache == cache for sample in results.samples)]
    rows = []
    for row in results.rows():
        cells = [row]
        for cache in caches:
            taken = [sample.answer_s for sample in results.of(row, cache)]
            cells.append(_ms(results.answer_s(row, cache)))
            cells.append(_ms(quantile(taken, 0.95) if taken else None))
            cells.append(_times(results.times_lower(row, cache)))
        rows.append(cells)
    head = ["", *(name for cache in caches for name in (cache, "P95", "lower"))]
    return table(head, rows)


def stages(results: Results, cache: str) -> str:
    """Return the median of each stage by row; stages that no row has are left out."""
    found = {row: results.stages(row, cache) for row in results.rows()}
    names = [name for name in (*(stage.value for stage in Stage), REST) if any(name in one for one in found.values())]
    return table(
        ["", *(name.replace("_", " ") for name in names)],
        [[row, *(_ms(one.get(name)) for name in names)] for row, one in found.items()],
    )


def first_access(results: Results) -> str:
    """Return the first answer's latency, the residency of the files, and memory."""
    rows = []
    for row in results.rows():
        taken = (median(sample.first_access_s for sample in results.of(row, cache)) for cache in CACHES)
        cells = [row, *map(_ms, taken)]
        cells.append(
            _percent(median(one.cached_after for one in results.of(row, "cold") if one.cached_after is not None))
        )
        both = [sample for sample in results.samples if sample.row == row]
        cells.append(_mb(median(sample.peak_bytes for sample in both)))
        cells.append(_mb(median(sample.anonymous_bytes for sample in both)))
        rows.append(cells)
    head = ["", "first access cold, ms", "warm, ms", "resident after cold", "peak, MB", "of its own, MB"]
    return table(head, rows)


def steady(results: Results) -> str:
    """Return throughput while the second session is made and after it, latency, and memory once all is done."""
    rows = []
    for row in dict.fromkeys(one.row for one in results.steady):
        found = [one for one in results.steady if one.row == row]
        device = [one.device_bytes for one in found if one.device_bytes is not None]
        rows.append(
            [
                row,
                _number(median(one.loading_rps for one in found if one.loading_rps is not None)),
                _seconds(median(one.swap_s for one in found if one.swap_s is not None)),
                _number(results.steady_rps(row)),
                _ms(median(one.median_s for one in found)),
                _ms(median(one.p99_s for one in found)),
                _mb(median(one.peak_bytes for one in found)),
                _mb(median(one.resident_bytes for one in found)),
                _mb(median(one.anonymous_bytes for one in found)),
                _mb(median(device)),
            ]
        )
    head = ["", "loading, 1/s", "swap after, s", "then, 1/s", "median, ms", "P99, ms"]
    return table([*head, "peak, MB", "resident, MB", "of its own, MB", "device, MB"], rows)


def beside(results: Results) -> str:
    """Return the P99 of the load beside, by itself and during the start."""
    rows = []
    for row in dict.fromkeys(one.row for one in results.beside):
        found = [one for one in results.beside if one.row == row]
        rows.append([row, _ms(median(one.quiet_s for one in found)), _ms(median(one.during_s for one in found))])
    return table(["", "by itself", "during the start"], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its columns padded, numbers to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(head))]
    shown = [_line(line, widths) for line in lines]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([shown[0], "| " + " | ".join(ruler) + " |", *shown[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "| " + " | ".join([first, *rest]) + " |"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return _NONE
    ms = seconds * 1000
    return f"{ms:,.1f}" if ms < 99.95 else f"{ms:,.0f}"


def _seconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds:.2f}"


def _times(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1f} ×"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.1%}"


def _mb(count: float | None) -> str:
    return _NONE if count is None else f"{count / 1e6:,.0f}"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.1f}"
