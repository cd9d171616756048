"""The binary tensor extension over real sockets: what goes in comes back, and every malformed variant has its error."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest

from tests.support.worker_surface import SPECS, Surface, served, tensor
from worker.datatypes import Datatype
from worker.engines import TensorSpec

BYTES2 = TensorSpec("s", Datatype.BYTES, (-1,))


def binary(*sizes: Any, **changes: Any) -> dict[str, Any]:
    """Return an input whose data are that many bytes; several sizes: that parameter's value."""
    given = tensor(**changes)
    del given["data"]
    given["parameters"] = {"binary_data_size": sizes[0]}
    return given


def packed(body: Any, data: bytes = b"") -> tuple[bytes, str]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return text + data, str(len(text))


def unpacked(body: bytes, headers: Any) -> tuple[dict[str, Any], bytes]:
    assert headers["Content-Type"] == "application/octet-stream"
    length = int(headers["Inference-Header-Content-Length"])
    return json.loads(body[:length]), body[length:]


def strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


F2 = struct.pack("<2f", 1.0, 2.5)

MALFORMED: dict[str, tuple[tuple[TensorSpec, ...], Any, bytes, str | None, str]] = {
    "size without header": (
        (SPECS["f"],),
        {"inputs": [binary(8)]},
        b"",
        "none",
        "input 'f': parameter 'binary_data_size': the request has no header Inference-Header-Content-Length",
    ),
    "header of text": (
        (SPECS["f"],),
        {"inputs": [binary(8)]},
        F2,
        "ten",
        "header Inference-Header-Content-Length: 'ten': expected the number of bytes of JSON in the body",
    ),
    "header negative": (
        (SPECS["f"],),
        {"inputs": [binary(8)]},
        F2,
        "-1",
        "header Inference-Header-Content-Length: '-1': expected the number of bytes of JSON in the body",
    ),
    "header beyond the body": (
        (SPECS["f"],),
        b"{}",
        b"",
        "3",
        "header Inference-Header-Content-Length: 3, but the body has 2 bytes",
    ),
    "header too short": (
        (SPECS["f"],),
        {"inputs": [binary(8)]},
        F2,
        "5",
        "inference request: the body is not JSON: Input data was truncated",
    ),
    "size of text": (
        (SPECS["f"],),
        {"inputs": [binary("8")]},
        F2,
        None,
        "input 'f': parameter 'binary_data_size' is '8', expected a number of bytes",
    ),
    "size true": (
        (SPECS["f"],),
        {"inputs": [binary(True)]},
        F2,
        None,
        "input 'f': parameter 'binary_data_size' is True, expected a number of bytes",
    ),
    "size negative": (
        (SPECS["f"],),
        {"inputs": [binary(-8)]},
        F2,
        None,
        "input 'f': parameter 'binary_data_size' is -8, expected a number of bytes",
    ),
    "size beyond the body": (
        (SPECS["f"],),
        {"inputs": [binary(9)]},
        F2,
        None,
        "input 'f': parameter 'binary_data_size' is 9, 8 bytes of the body are left",
    ),
    "bytes nobody takes": (
        (SPECS["f"],),
        {"inputs": [binary(8)]},
        F2 + b"1",
        None,
        "inference request: 1 bytes behind the inputs' binary data; add a binary_data_size",
    ),
    "data and bytes": (
        (SPECS["f"],),
        {"inputs": [{**binary(8), "data": [1, 2]}]},
        F2,
        None,
        "input 'f': 'data' and parameter 'binary_data_size' exclude each other",
    ),
    "size that fits no shape": (
        (SPECS["f"],),
        {"inputs": [binary(4)]},
        F2[:4],
        None,
        "input 'f': FP32 of shape [1, 2] takes 8 bytes, given 4",
    ),
    "huge shape": (
        (SPECS["f"],),
        {"inputs": [binary(8, shape=(10**18, 2))]},
        F2,
        None,
        "input 'f': FP32 of shape [1000000000000000000, 2] takes 8000000000000000000 bytes, given 8",
    ),
    "no boolean": (
        (SPECS["b"],),
        {"inputs": [binary(3, name="b", shape=(3,), datatype="BOOL")]},
        b"\x00\x01\x02",
        None,
        "input 'b': byte 2 is 2, BOOL takes 0 and 1",
    ),
    "strings cut in a length": (
        (SPECS["s"],),
        {"inputs": [binary(9, name="s", shape=(2,), datatype="BYTES")]},
        strings(b"ab") + b"\x01\x00\x00",
        None,
        "input 's': element 1 of 2 goes beyond the 9 bytes given",
    ),
    "strings cut in an element": (
        (SPECS["s"],),
        {"inputs": [binary(5, name="s", shape=(1,), datatype="BYTES")]},
        b"\x02\x00\x00\x00a",
        None,
        "input 's': element 0 of 1 goes beyond the 5 bytes given",
    ),
    "too many strings": (
        (SPECS["s"],),
        {"inputs": [binary(12, name="s", shape=(1,), datatype="BYTES")]},
        strings(b"ab", b"cd"),
        None,
        "input 's': 1 elements of BYTES take 6 bytes, given 12",
    ),
    "a huge number of strings": (
        (SPECS["s"],),
        {"inputs": [binary(6, name="s", shape=(10**12,), datatype="BYTES")]},
        strings(b"ab"),
        None,
        "input 's': 1000000000000 elements of BYTES take at least 4000000000000 bytes, given 6",
    ),
    "BF16 in JSON": (
        (TensorSpec("f", Datatype.BF16, (-1, 2)),),
        {"inputs": [tensor(datatype="BF16")]},
        b"",
        "none",
        "input 'f': BF16 has no form in JSON; send it as binary data",
    ),
    "binary_data of text": (
        (SPECS["f"],),
        {"inputs": [tensor()], "outputs": [{"name": "f_out", "parameters": {"binary_data": "yes"}}]},
        b"",
        "none",
        "output 'f_out': parameter 'binary_data' is 'yes', expected true or false",
    ),
    "binary_data_output a number": (
        (SPECS["f"],),
        {"inputs": [tensor()], "parameters": {"binary_data_output": 1}},
        b"",
        "none",
        "inference request: parameter 'binary_data_output' is 1, expected true or false",
    ),
    "no JSON, two inputs": (
        (SPECS["f"], SPECS["b"]),
        b"",
        F2,
        "0",
        (
            "header Inference-Header-Content-Length: 0 is for models with one input; this one has 'f' FP32 [-1, 2], "
            "'b' BOOL [-1]"
        ),
    ),
    "no JSON, two varying dimensions": (
        (TensorSpec("f", Datatype.FP32, (-1, -1)),),
        b"",
        F2,
        "0",
        "input 'f': a body without JSON has one shape only where one dimension varies at most; expected FP32 [-1, -1]",
    ),
    "no JSON, no whole row": (
        (SPECS["f"],),
        b"",
        F2 + b"1234",
        "0",
        "input 'f': a body without JSON has 12 bytes, expected a multiple of 8; expected FP32 [-1, 2]",
    ),
    "no JSON, several strings": (
        (TensorSpec("s", Datatype.BYTES, (2,)),),
        b"",
        b"ab",
        "0",
        "input 's': a body without JSON is one element; expected BYTES [2]",
    ),
}


@pytest.mark.parametrize(("specs", "body", "data", "header", "error"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests(
    specs: tuple[TensorSpec, ...], body: Any, data: bytes, header: str | None, error: str
) -> None:
    async def check(surface: Surface) -> None:
        sent, length = packed(body, data)
        headers = {} if header == "none" else {"Inference_Header_Content_Length": header or length}
        status, answer, _ = await surface.send(sent, **headers)
        assert (status, json.loads(answer)) == (400, {"error": error})
        assert surface.model.ran == []

    served(check, specs)


def test_a_header_that_is_there_twice() -> None:
    async def check(surface: Surface) -> None:
        from multidict import CIMultiDict

        headers = CIMultiDict([("Inference-Header-Content-Length", "2"), ("Inference-Header-Content-Length", "2")])
        answer = await surface.session.post(surface.server.make_url("/v2/models/m/infer"), data=b"{}", headers=headers)
        assert (answer.status, await answer.json()) == (
            400,
            {"error": "header Inference-Header-Content-Length: there 2 times"},
        )

    served(check)


NUMBERS = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("padding", [0, 1])
def test_numbers_come_back_byte_for_byte(datatype: Datatype, padding: int) -> None:
    async def check(surface: Surface) -> None:
        data = bytes((0, 1)) * (3 * datatype.item_bytes)
        given = binary(len(data), name="t", shape=(6,), datatype=datatype.value)
        asked = {"inputs": [given], "outputs": [{"name": "o", "parameters": {"binary_data": True}}]}
        text = json.dumps(asked).encode() + b" " * padding  # whatever its length, the tensor is aligned
        status, body, headers = await surface.send(text + data, Inference_Header_Content_Length=str(len(text)))
        assert status == 200
        answer, out = unpacked(body, headers)
        assert answer["outputs"] == [
            {
                "name": "o",
                "shape": [6],
                "datatype": datatype.value,
                "parameters": {"binary_data_size": len(data)},
            }
        ]
        assert out == data
        array = surface.model.ran[-1]["t"]
        assert array.flags.aligned
        assert not array.flags.owndata, "read where it was received"

    spec = TensorSpec("t", datatype, (-1,))
    served(check, (spec,), outputs=(TensorSpec("o", datatype, (-1,)),))


def test_strings_come_back_byte_for_byte_also_where_they_are_no_text() -> None:
    async def check(surface: Surface) -> None:
        data = strings(b"", "ä".encode(), b"\xff\x00\xfe")
        asked = {"inputs": [binary(len(data), name="s", shape=(3,), datatype="BYTES")]}
        sent, length = packed({**asked, "parameters": {"binary_data_output": True}}, data)
        _, body, headers = await surface.send(sent, Inference_Header_Content_Length=length)
        assert unpacked(body, headers)[1] == data
        assert surface.model.ran[-1]["s"][1] == "ä"
        sent, length = packed(asked, data)
        status, body, _ = await surface.send(sent, Inference_Header_Content_Length=length)
        assert (status, json.loads(body)["error"]) == (
            400,
            "output 's_out': holds bytes that are no UTF-8; ask for it with 'binary_data': true",
        )

    served(check, (SPECS["s"],), outputs=(TensorSpec("s_out", Datatype.BYTES, (-1,)),))


def test_inputs_and_outputs_may_be_mixed() -> None:
    async def check(surface: Surface) -> None:
        asked = {
            "id": "7",
            "inputs": [
                binary(8),
                tensor(name="i8", shape=(2,), datatype="INT8"),
                binary(2, name="b", shape=(2,), datatype="BOOL"),
            ],
            "outputs": [{"name": "s_out", "parameters": {"binary_data": False}}, {"name": "f_out"}],
            "parameters": {"binary_data_output": True},
        }
        sent, length = packed(asked, F2 + b"\x01\x00")
        status, body, headers = await surface.send(sent, Inference_Header_Content_Length=length)
        assert status == 200
        answer, out = unpacked(body, headers)
        assert answer["id"] == "7"
        assert [output.get("data") for output in answer["outputs"]] == [[1.0, 2.5], None]
        assert out == F2
        ran = surface.model.ran[-1]
        assert (ran["i8"].tolist(), ran["b"].tolist()) == ([1, 2], [True, False])
        assert "binary_data_output" not in surface.model.parameters[-1]

    served(check, (SPECS["f"], SPECS["i8"], SPECS["b"]))


def test_classes_as_bytes() -> None:
    async def check(surface: Surface) -> None:
        asked = {
            "inputs": [tensor(data=[0.25, 0.75])],
            "outputs": [{"name": "f_out", "parameters": {"classification": 1, "binary_data": True}}],
        }
        status, body, headers = await surface.send(json.dumps(asked).encode())
        assert status == 200
        answer, out = unpacked(body, headers)
        assert (answer["outputs"][0]["datatype"], answer["outputs"][0]["shape"]) == ("BYTES", [1, 1])
        assert out == strings(b"0.750000:1:dog")

    served(check, labels=("cat", "dog"))


@pytest.mark.parametrize(
    ("spec", "body", "values"),
    [
        (SPECS["f"], F2 + F2, [[1.0, 2.5], [1.0, 2.5]]),
        (TensorSpec("f", Datatype.FP32, (1, 2)), F2, [[1.0, 2.5]]),
        (TensorSpec("f", Datatype.BYTES, (1, -1)), b"a\x00b", [["a\x00b"]]),
    ],
)
def test_a_body_without_json_is_the_one_input(spec: TensorSpec, body: bytes, values: Any) -> None:
    async def check(surface: Surface) -> None:
        status, answer, headers = await surface.send(body, Inference_Header_Content_Length="0")
        assert status == 200
        assert surface.model.ran[-1]["f"].tolist() == values
        described, out = unpacked(answer, headers)
        assert described["outputs"][0]["parameters"] == {"binary_data_size": len(out)}

    served(check, (spec,), outputs=(TensorSpec("o", spec.datatype, spec.shape),))


def test_a_compressed_body_is_measured_unpacked() -> None:
    async def check(surface: Surface) -> None:
        sent, length = packed({"inputs": [binary(8)]}, F2)
        status, answer, _ = await surface.send(
            gzip.compress(sent), Inference_Header_Content_Length=length, Content_Encoding="gzip"
        )
        assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1.0, 2.5])
        status, answer, _ = await surface.send(
            gzip.compress(sent + bytes(100_000)), Inference_Header_Content_Length=length, Content_Encoding="gzip"
        )
        assert (status, json.loads(answer)) == (413, {"error": "body is over the limit of 4096 bytes"})

    served(check)


def test_not_a_number_passes_as_bytes() -> None:
    async def check(surface: Surface) -> None:
        data = struct.pack("<2f", float("nan"), float("-inf"))
        sent, length = packed({"inputs": [binary(8)], "parameters": {"binary_data_output": True}}, data)
        _, body, headers = await surface.send(sent, Inference_Header_Content_Length=length)
        assert unpacked(body, headers)[1][:8] == data
        assert np.isnan(surface.model.ran[-1]["f"][0, 0])

    served(check)
