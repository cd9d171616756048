"""Large tensors are read and written in pieces: with the same result, and the same refusals, as in one."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.datatypes import NUMPY, Datatype
from worker.serving import tensors
from worker.serving.errors import RequestError
from worker.serving.tensors import decode, encode

SHAPES = [(7,), (0,), (3, 2), (3, 1), (2, 0), (2, 1, 3), (1, 1, 1)]
NUMBERS = [datatype for datatype in Datatype if datatype not in (Datatype.BYTES, Datatype.BF16)]
items: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, 2, 1, 0, 127, 300, 0.5, 1e300, 70000, -1, True, None, "a,[b", {"a": [1]}, [1]]
).map(copy.deepcopy)  # what is drawn may be changed below


def outcome(datatype: Datatype, shape: tuple[int, ...], text: str) -> Any:
    try:
        array = decode("t", datatype, shape, msgspec.Raw(text.encode()))
    except RequestError as error:
        return str(error)
    assert array.shape == shape
    assert array.dtype == NUMPY[datatype]
    return array.tolist()


def nested(shape: tuple[int, ...], flat: list[Any]) -> Any:
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape).tolist()


@st.composite
def tensors_and_shapes(draw: st.DrawFn) -> tuple[Datatype, tuple[int, ...], str]:
    datatype, shape = draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(SHAPES))
    count = int(np.prod(shape))
    good = {Datatype.BOOL: st.booleans()}.get(datatype, st.integers(0, 100))
    data: Any = draw(st.lists(good | items if draw(st.booleans()) else good, min_size=count, max_size=count))
    if draw(st.booleans()):
        data = nested(shape, data)
    if draw(st.integers(0, 4)) == 0:  # ragged, too long, too short
        inner = data
        while inner and isinstance(inner[-1], list) and draw(st.booleans()):
            inner = inner[-1]
        if draw(st.booleans()):
            inner.append(1)
        elif inner:
            inner.pop(draw(st.integers(0, len(inner) - 1)))
    return datatype, shape, json.dumps(data, indent=draw(st.sampled_from([None, 0, 1])))


@settings(max_examples=400)
@given(tensors_and_shapes(), st.integers(1, 20))
def test_pieces_are_read_as_the_whole_is(case: tuple[Datatype, tuple[int, ...], str], piece_bytes: int) -> None:
    datatype, shape, text = case
    whole = outcome(datatype, shape, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "PIECE_BYTES", piece_bytes)
        pieces = outcome(datatype, shape, text)
    if isinstance(whole, str):
        assert isinstance(pieces, str), "refused as a whole, taken in pieces"
    else:
        assert pieces == whole


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ((3, 2), [[1, 2], [3, 4], [5, 70000]], "data[2][1] is 70000, FP16 takes -65504.0 to 65504.0"),
        ((6,), [1, 2, 3, 4, "x", 6], "data[4] is a string, FP16 takes numbers"),
        ((6,), [1, 2, 3, 4, 5], "shape [6] takes 6 elements, 'data' has 5"),
        ((3, 1), [[1], [2], []], "'data' is ragged or nested otherwise, its shape is [3, 1]"),
        ((3, 1), [[1], [2, 3], [4]], "'data' is ragged or nested otherwise, its shape is [3, 1]"),
        ((2, 0), [[], [1]], "'data' is ragged or nested otherwise, its shape is [2, 0]"),
        ((10**9,), [1, 2, 3], "shape [1000000000] takes 1000000000 elements, 'data' has 3"),
    ],
)
def test_what_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], data: Any, message: str
) -> None:
    monkeypatch.setattr(tensors, "PIECE_BYTES", 4)
    assert outcome(Datatype.FP16, shape, json.dumps(data)) == f"input 't': {message}"


@given(st.lists(st.floats(width=32), max_size=40), st.integers(1, 7))
def test_pieces_are_written_as_the_whole_is(values: list[float], piece: int) -> None:
    array = np.array(values, dtype=np.float32)
    whole = msgspec.json.encode(encode("t", Datatype.FP32, array))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "PIECE_ELEMENTS", piece)
        assert msgspec.json.encode(encode("t", Datatype.FP32, array)) == whole
