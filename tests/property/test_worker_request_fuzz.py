"""Whatever a caller sends, reading it ends in a request that fits the model or in an error of the protocol."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.worker_parts import EchoingModel
from worker.datatypes import NUMPY, Datatype
from worker.engines import TensorSpec
from worker.serving.errors import RequestError
from worker.serving.fit import InferRequest
from worker.serving.request import parse

SPECS = tuple(TensorSpec(datatype.value.lower(), datatype, (-1, 2)) for datatype in Datatype)
MODEL = EchoingModel(inputs=SPECS[:1], outputs=SPECS)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**30, 10**4000, 1e308, -0.0])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from([spec.name for spec in SPECS]) | values,
        "datatype": st.sampled_from([datatype.value for datatype in Datatype]) | values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | values,
        "data": st.lists(scalars, max_size=6) | st.lists(st.lists(scalars, max_size=3), max_size=3) | values,
        "parameters": st.none() | st.dictionaries(st.text(max_size=4), values, max_size=2),
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=4) | values,
        "inputs": st.lists(tensors, max_size=3) | values,
        "outputs": st.lists(tensors, max_size=3) | values,
        "parameters": values,
    },
)


def read(body: bytes, model: EchoingModel = MODEL, json_bytes: int | None = None) -> None:
    """Read ``body``; only the documented error may escape, and it is short."""
    try:
        request = parse(memoryview(body), model, json_bytes)
    except RequestError as caught:
        refusal = caught
    else:
        fits(request, model)
        return
    assert refusal.status == 400
    assert len(str(refusal)) < 2000


def fits(request: InferRequest, model: EchoingModel) -> None:
    for spec in model.inputs:
        array = request.inputs[spec.name]
        assert array.dtype == NUMPY[spec.datatype]
        assert array.ndim == 2
        assert array.shape[1] == 2


def dump(value: Any) -> bytes:
    """Encode with the standard library, which knows integers of any size."""
    return json.dumps(value).encode()


@given(bodies)
@example({"inputs": [{"name": "bool", "datatype": "X" * 100_000, "shape": [1, 2], "data": [True, True]}]})
@example({"inputs": [{"name": "bool", "datatype": "BOOL", "shape": [10**4000, 2], "data": [True, True]}]})
@example({"inputs": [], "parameters": {"x" * 100_000: []}})
def test_requests_of_the_right_form(body: dict[str, Any]) -> None:
    read(dump(body))


@given(st.sampled_from(SPECS), st.lists(scalars, max_size=6) | values)
@example(SPECS[1], [10**4000, 1])
@example(SPECS[10], [10**400, 1])
def test_data_of_every_datatype(spec: TensorSpec, data: Any) -> None:
    rows = len(data) // 2 if isinstance(data, list) else 1
    tensor = {"name": spec.name, "datatype": spec.datatype.value, "shape": [rows, 2], "data": data}
    read(dump({"inputs": [tensor]}), EchoingModel(inputs=(spec,)))


@given(
    st.sampled_from(SPECS),
    st.lists(st.integers(-1, 3), max_size=3),
    st.binary(max_size=40),
    st.integers(-1, 40) | scalars,
    st.integers(-3, 3),
)
@example(SPECS[-1], [2, 2], b"\x02\0\0\0ab\xff\xff\xff\xff", 10, 0)
def test_binary_data(spec: TensorSpec, shape: list[int], data: bytes, size: Any, off: int) -> None:
    model = EchoingModel(inputs=(spec,), outputs=SPECS)
    tensor = {
        "name": spec.name,
        "datatype": spec.datatype.value,
        "shape": shape,
        "parameters": {"binary_data_size": size},
    }
    text = dump({"inputs": [tensor]})
    read(text + data, model, max(0, len(text) + off))
    read(data, model, 0)


@given(st.binary(max_size=64) | st.text(alphabet='{}[]",:0123456789einputs ', max_size=64).map(str.encode))
def test_bytes(body: bytes) -> None:
    read(body)


@pytest.mark.parametrize("digits", [19, 20, 40, 4299, 4301, 100_000])
@pytest.mark.parametrize("spec", SPECS)
def test_numbers_of_any_length(spec: TensorSpec, digits: int) -> None:
    head = f'{{"inputs": [{{"name": "{spec.name}", "datatype": "{spec.datatype.value}", "shape": [1, 2], "data": ['
    read(head.encode() + b"9" * digits + b", 1]}]}", EchoingModel(inputs=(spec,)))


def test_what_comes_through_is_what_was_sent() -> None:
    tensor = {"name": "bool", "datatype": "BOOL", "shape": [1, 2], "data": [True, False]}
    request = parse(bytearray(msgspec.json.encode({"inputs": [tensor]})), MODEL)
    assert request.inputs["bool"].tolist() == [[True, False]]
