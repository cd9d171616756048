"""The request that ``warmroute up`` offers to try: a real file for the demo model, zeros of the shape for others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOP = 3
"""How many classes to ask for, best first."""

MAGIKA_BLOCK_BYTES = 4096
MAGIKA_SIDE = 1024
MAGIKA_PADDING = 256
"""magika 1.0's model takes the first and the last kilobyte of a file, each looked for in a block of four, whitespace
stripped outside; 256, which is no byte, fills up (its config.min.json and feature extraction)."""


def magika_features(content: bytes) -> list[int]:
    """Return the 2,048 numbers that magika's model reads of a file."""
    begin = content[:MAGIKA_BLOCK_BYTES].lstrip()[:MAGIKA_SIDE]
    end = content[-MAGIKA_BLOCK_BYTES:].rstrip()[-MAGIKA_SIDE:]
    padding = [MAGIKA_PADDING]
    return [
        *begin,
        *padding * (MAGIKA_SIDE - len(begin)),
        *padding * (MAGIKA_SIDE - len(end)),
        *end,
    ]


def is_magika(metadata: Mapping[str, Any]) -> bool:
    """Tell by its metadata whether a model reads what magika reads."""
    inputs = metadata.get("inputs", [])
    return (
        metadata.get("name") == "magika"
        and len(inputs) == 1
        and inputs[0].get("datatype") == "INT32"
        and inputs[0].get("shape", [])[1:] == [2 * MAGIKA_SIDE]
    )


def sample_request(metadata: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return a V2 inference request for the model of ``metadata`` (as ``GET /v2/models/NAME`` gives it).

    Raises:
        OSError: ``file`` cannot be read.
    """
    if is_magika(metadata):
        features = magika_features(file.read_bytes())
        return {
            "inputs": [
                {
                    "name": metadata["inputs"][0]["name"],
                    "datatype": "INT32",
                    "shape": [1, len(features)],
                    "data": features,
                }
            ],
            "outputs": [{"name": metadata["outputs"][0]["name"], "parameters": {"classification": TOP}}],
        }
    return {"inputs": [_zeros(tensor) for tensor in metadata.get("inputs", [])]}


def _zeros(tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape = [max(int(size), 1) for size in tensor["shape"]]  # -1: any size will do, so one
    zero: object = {"BYTES": "", "BOOL": False}.get(tensor["datatype"], 0)
    return {
        "name": tensor["name"],
        "datatype": tensor["datatype"],
        "shape": shape,
        "data": [zero] * math.prod(shape),
    }
