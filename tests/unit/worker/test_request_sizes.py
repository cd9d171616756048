"""What a request's JSON may consist of: bounded before any of it is built; strings are free to hold what they like."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from tests.support.worker_parts import EchoingModel
from worker.datatypes import Datatype
from worker.engines import TensorSpec
from worker.serving.errors import RequestError
from worker.serving.request import MAX_MEMBERS, MAX_OBJECTS, parse

NUMBERS = EchoingModel(inputs=(TensorSpec("f", Datatype.FP32, (-1,)),))
TEXTS = EchoingModel(inputs=(TensorSpec("s", Datatype.BYTES, (-1,)),))
LISTS = b"[" + b"[]," * 200_000 + b"[]]"
INPUT = b'{"name":"f","shape":[1],"datatype":"FP32","data":[1]}'
A_SCALAR = "expected a boolean, a number or a string"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"inputs":[' + b"{}," * 99_999 + b"{}]}", f"100001 JSON objects, at most {MAX_OBJECTS}"),
        (b'{"outputs":[' + b"{}," * 99_999 + b'{}],"inputs":[]}', f"100001 JSON objects, at most {MAX_OBJECTS}"),
        (
            b'{"inputs":[],"parameters":{' + b'"a":1,' * 99_999 + b'"b":1}}',
            f"100002 JSON members of objects, at most {MAX_MEMBERS}",
        ),
        (b'{"inputs":[],"parameters":{"a":' + LISTS + b"}}", f"parameter 'a': {A_SCALAR}"),
        (
            b'{"inputs":[' + INPUT[:-1] + b',"parameters":{"a":' + LISTS + b"}}]}",
            f"input 'f': parameter 'a': {A_SCALAR}",
        ),
        (b'{"inputs":[' + INPUT + b'],"outputs":[{"name":"out","parameters":{"a":' + LISTS + b"}}]}", "out"),
    ],
    ids=["inputs", "outputs", "members", "parameter", "input's parameter", "output's parameter"],
)
def test_what_would_take_long_to_build_is_refused_unbuilt(text: bytes, why: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=why.replace("'", ".")):
            parse(bytearray(text), NUMBERS)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * len(text)  # copies of the text, and not one object for each three bytes of it


@pytest.mark.parametrize("element", ['{"a": {"b": [{}, {}]}, "c:": "\\\\"}', "{:", '"{\\"{:\\\\', "\\"])
def test_strings_hold_what_they_like(element: str) -> None:
    data: list[Any] = [element] * 40_000
    text = json.dumps({"inputs": [{"name": "s", "shape": [len(data)], "datatype": "BYTES", "data": data}]})
    assert parse(bytearray(text.encode()), TEXTS).inputs["s"].tolist() == data
