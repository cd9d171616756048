"""Tensors kept in files: JSON as the protocol has them, or numpy's npz."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from worker import json_text
from worker.datatypes import NUMPY, Datatype

if TYPE_CHECKING:
    from pathlib import Path

    from worker.engines import Array

MAX_BYTES = 64 << 20
UNREADABLE = (msgspec.MsgspecError, zipfile.BadZipFile, ValueError, TypeError, OverflowError, EOFError, KeyError)
"""What reading a file of tensors may raise where it is not as it should be."""


class StoredTensor(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One tensor in JSON."""

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data: list[Any]
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)

    def array(self) -> Array:
        """Return it as an array."""
        return np.array(self.data, dtype=NUMPY[self.datatype]).reshape(self.shape)


class _Inputs(msgspec.Struct, frozen=True):
    inputs: Annotated[tuple[StoredTensor, ...], msgspec.Meta(min_length=1)]


def read_inputs(path: Path) -> dict[str, Array]:
    """Return the inputs in ``path``: of an inference request in JSON, or the arrays of an ``.npz`` by their names.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not as it should be.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES} bytes")
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:  # numpy leaves a bad one open
                found = {name: stored[name] for name in stored.files}
            if not found:
                raise ValueError("no array; name each after its input")
            return found
        said = json_text.decode(path.read_bytes(), _Inputs)
        return {tensor.name: tensor.array() for tensor in said.inputs}
    except UNREADABLE as error:
        raise ValueError(str(error)) from error
