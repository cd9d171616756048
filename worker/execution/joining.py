"""What runs together: which requests may be joined along their first dimension, when, and how they come apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from worker.engines import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import Any

    from worker.engines import Array, LoadedModel, Parameters
    from worker.store import Batching

    Empty = Callable[[tuple[int, ...], np.dtype[Any]], Array]

_STATEFUL: Final = "sequence_"
"""Parameters that begin so tie a request to others of its sequence: it runs alone."""


class NotRowsError(Exception):
    """What a model gave for joined requests does not come apart: an output has not one row for each of theirs."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that waits to be joined: how many ``rows`` it has, when it came, and when it must begin at the latest.

    Times are monotonic seconds; ``latest`` is infinity where it has no deadline.
    """

    rows: int
    at: float
    latest: float


@dataclass(frozen=True, slots=True)
class Step:
    """So many of the first that wait begin now, together; 0: none does, and there is nothing to do before ``again_at``.

    ``full``: nothing more fits with them.
    """

    count: int
    full: bool
    again_at: float


NEVER: Final = float("inf")
SPARE_SHARE: Final = 0.25
SPARE_S: Final = 0.005
"""What is left of a request's time when it begins, at least: this share of it beside a run, and this long."""


def latest_begin(at: float, deadline: float | None, run_s: float) -> float:
    """Return when a request that came at ``at`` must begin, so that it can be answered by its ``deadline``.

    That leaves ``run_s``, what a run takes, and a share of its time for one that takes longer, for a thread to be free,
    and for the answer to be written. Where there is not as much, it must begin at once.
    """
    if deadline is None:
        return NEVER
    return max(at, deadline - max(run_s + (deadline - at) * SPARE_SHARE, SPARE_S))


def next_step(waiting: Sequence[Arrival], terms: Batching, now: float) -> Step:
    """Say what to do with requests of one kind that wait, the first come first; each has at most ``max_size`` rows.

    They begin when they are as many rows as may be, or the next does not fit; when the first has waited as long as it
    may; or when one of them could not be answered in time otherwise.
    """
    rows, due = 0, NEVER
    for count, one in enumerate(waiting):
        if rows + one.rows > terms.max_size:
            return Step(count, full=True, again_at=NEVER)
        rows += one.rows
        due = min(due, one.at + terms.max_delay_ms / 1000, one.latest)
    if rows >= terms.max_size or now >= due:
        return Step(len(waiting), full=rows >= terms.max_size, again_at=NEVER)
    return Step(0, full=False, again_at=due)


def kind(inputs: Mapping[str, Array], outputs: Sequence[str], parameters: Parameters) -> tuple[Hashable, int] | None:
    """Return what is equal for requests that may run together, and how many rows this one has; None: it runs alone.

    They agree in everything but the first dimension of their inputs: datatypes, other dimensions, outputs, parameters.
    """
    rows = -1
    shapes: list[Hashable] = []
    for name in sorted(inputs):
        array = inputs[name]
        if array.ndim == 0 or array.shape[0] == 0 or rows not in (-1, array.shape[0]):
            return None
        rows = array.shape[0]
        shapes.append((name, array.dtype.str, array.shape[1:]))
    if rows == -1 or any(name.startswith(_STATEFUL) for name in parameters):
        return None
    # 1, 1.0 and True are equal, and not the same to every engine.
    said = tuple(sorted((name, type(value).__name__, value) for name, value in parameters.items()))
    return (tuple(shapes), tuple(outputs), said), rows


def join(inputs: Sequence[Mapping[str, Array]], empty: Empty = np.empty) -> dict[str, Array]:
    """Return the inputs of several requests of one kind as those of one. ``empty`` makes the arrays for them."""
    if len(inputs) == 1:
        return dict(inputs[0])
    joined: dict[str, Array] = {}
    for name, first in inputs[0].items():
        parts = [one[name] for one in inputs]
        joined[name] = empty((sum(len(part) for part in parts), *first.shape[1:]), first.dtype)
        np.concatenate(parts, out=joined[name])
    return joined


def split(arrays: Sequence[Array], rows: Sequence[int]) -> list[list[Array]]:
    """Return for each of several joined requests, of so many ``rows``, its part of the outputs.

    Raises:
        NotRowsError: an output has not as many rows as they have together.
    """
    total = sum(rows)
    for array in arrays:
        if array.ndim == 0 or array.shape[0] != total:
            raise NotRowsError(f"an output of shape {list(array.shape)} for {total} rows")
    parts: list[list[Array]] = []
    start = 0
    for count in rows:
        parts.append([array[start : start + count] for array in arrays])
        start += count
    return parts


def check_signature(model: LoadedModel, where: str) -> None:
    """Do nothing where the first dimension of every tensor of ``model`` varies.

    Raises:
        EngineError: one does not; the text begins with ``where``, the field that asks for batching.
    """
    for role, specs in (("input", model.inputs), ("output", model.outputs)):
        fixed = next((spec for spec in specs if not spec.shape or spec.shape[0] != -1), None)
        if fixed is not None:
            raise EngineError(
                f"{where}: {role} {fixed.name!r} {fixed.datatype.value} {list(fixed.shape)} has no first dimension that"
                " varies, along which requests could be joined; export the model with one, or take batching away"
            )
