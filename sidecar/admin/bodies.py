"""Bodies of requests to the admin API: all that does not fit is told at once, each with field, value and remedy."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sidecar.admin.guard import RefusedError
from sidecar.config.document import node_of
from sidecar.config.problems import Where
from sidecar.config.structure import conform

S = TypeVar("S", bound=msgspec.Struct)


def read_json(data: bytes, empty: str) -> object:
    """Return what a body holds; ``empty`` is what to do about one that holds nothing.

    Raises:
        RefusedError: it is no JSON.
    """
    if not data.strip():
        raise RefusedError(400, f"the body is empty: {empty}")
    try:
        content: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError(400, f"the body is no JSON ({error}): {empty}") from None
    return content


def read_body(data: bytes, shape: type[S], empty: str) -> S:
    """Return what a body in JSON describes; ``empty`` as in :func:`read_json`.

    Raises:
        RefusedError: it is no JSON, or does not fit.
    """
    made, problems = conform(node_of(read_json(data, empty), Where("")), shape, empty)
    if made is None:
        raise RefusedError(400, "; ".join(map(str, problems)))
    return made
