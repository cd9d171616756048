"""The classification extension: an output as its best classes, ``"score:index:label"``, instead of all scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from worker.serving.errors import RequestError

if TYPE_CHECKING:
    from worker.engines import Array, TensorSpec

MAX_CLASSES = 10_000


def requested_classes(spec: TensorSpec, value: object) -> int:
    """Return how many classes the parameter ``classification`` asks for, of the output ``spec``.

    Raises:
        RequestError: the value is not a count, or the output holds no scores.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CLASSES:
        raise RequestError(
            f"output {spec.name!r}: parameter 'classification' is {value!r}, expected a count from 1 to {MAX_CLASSES}"
        )
    if not (spec.datatype.floating or spec.datatype.integral) or not spec.shape:
        raise RequestError(
            f"output {spec.name!r}: {spec.datatype.value} {list(spec.shape)} holds no scores to classify by"
        )
    return value


def classify(scores: Array, count: int, labels: tuple[str, ...]) -> Array:
    """Return the ``count`` best classes along the last dimension as a tensor of BYTES, best first, ties by index.

    The last dimension is not 0. ``labels`` are used where there is one for each class.
    """
    classes = scores.shape[-1]
    count = min(count, classes)
    rows = scores.reshape(-1, classes)
    best = np.argsort(-rows.astype(np.float64), axis=-1, kind="stable")[:, :count]
    named = labels if len(labels) == classes else ()
    data = [
        f"{float(row[index]):.6f}:{index}" + (f":{named[index]}" if named else "")
        for row, order in zip(rows, best.tolist(), strict=True)
        for index in order
    ]
    return np.array(data, dtype=np.object_).reshape(*scores.shape[:-1], count)
