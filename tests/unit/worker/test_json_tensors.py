"""Tensors in JSON that are nested deeper than anything can read them."""

from __future__ import annotations

import msgspec
import pytest

from worker.datatypes import Datatype
from worker.serving.errors import RequestError
from worker.serving.tensors import PIECE_BYTES, decode

DEEP = b"[" * 5_000 + b"]" * 5_000
OBJECTS = b'{"a":' * 5_000 + b"1" + b"}" * 5_000


@pytest.mark.parametrize(
    "data",
    [
        OBJECTS,
        b"[1,2," + DEEP + b"]",
        b"[1,2," + OBJECTS + b"]",
        b"[1,2" + b" " * PIECE_BYTES + b"," + OBJECTS + b"]",
    ],
    ids=["instead of an array", "an element", "an object for an element", "in a large tensor"],
)
@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BYTES])
def test_data_nested_too_deep(data: bytes, datatype: Datatype) -> None:
    with pytest.raises(RequestError, match=r"^input 'x': 'data' is ") as refused:
        decode("x", datatype, (3,), msgspec.Raw(data))
    assert refused.value.status == 400
