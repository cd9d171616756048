"""The protocol's messages, checked by their bytes: a changed field number would break every client without an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from google.protobuf.message import Message
from warmroute_pb.v1 import open_inference_pb2 as oip
from warmroute_pb.v1 import worker_control_pb2 as control


def test_infer_request_bytes() -> None:
    request = oip.ModelInferRequest(model_name="m", model_version="2", id="i")
    request.parameters["p"].int64_param = 7
    tensor = request.inputs.add(name="x", datatype="INT32", shape=[1, 2])
    tensor.contents.int_contents.extend([3, 4])
    request.outputs.add(name="y")
    request.raw_input_contents.append(b"\x01")
    assert request.SerializeToString() == (
        b"\x0a\x01m\x12\x012\x1a\x01i"
        b"\x22\x07\x0a\x01p\x12\x02\x10\x07"
        b"\x2a\x14\x0a\x01x\x12\x05INT32\x1a\x02\x01\x02\x2a\x04\x12\x02\x03\x04"
        b"\x32\x03\x0a\x01y"
        b"\x3a\x01\x01"
    )


def test_infer_response_bytes() -> None:
    response = oip.ModelInferResponse(model_name="m", model_version="2", id="i")
    tensor = response.outputs.add(name="y", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.0)
    response.raw_output_contents.append(b"\x01")
    assert response.SerializeToString() == (
        b"\x0a\x01m\x12\x012\x1a\x01i\x2a\x14\x0a\x01y\x12\x04FP32\x1a\x01\x01\x2a\x06\x32\x04\x00\x00\x80\x3f\x32\x01\x01"
    )


@pytest.mark.parametrize(
    ("contents", "number"),
    [
        (oip.InferTensorContents(bool_contents=[True]), 1),
        (oip.InferTensorContents(int_contents=[1]), 2),
        (oip.InferTensorContents(int64_contents=[1]), 3),
        (oip.InferTensorContents(uint_contents=[1]), 4),
        (oip.InferTensorContents(uint64_contents=[1]), 5),
        (oip.InferTensorContents(fp32_contents=[1]), 6),
        (oip.InferTensorContents(fp64_contents=[1]), 7),
        (oip.InferTensorContents(bytes_contents=[b"1"]), 8),
    ],
)
def test_tensor_contents_field_numbers(contents: Message, number: int) -> None:
    assert contents.SerializeToString()[0] >> 3 == number


def test_service_methods() -> None:
    service = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == "inference.GRPCInferenceService"
    assert sorted(method.name for method in service.methods) == [
        "ModelConfig",
        "ModelInfer",
        "ModelMetadata",
        "ModelReady",
        "ModelStatistics",
        "ModelStreamInfer",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "ServerLive",
        "ServerMetadata",
        "ServerReady",
    ]


def test_control_states_are_the_lifecycle() -> None:
    from router.model import State

    names = {name.removeprefix("REPLICA_STATE_").lower() for name in control.ReplicaState.keys()}  # noqa: SIM118
    assert names - {"unspecified"} == {state.value for state in State}


def test_messages_import_without_grpc() -> None:
    code = (
        "import sys; from warmroute_pb.v1 import open_inference_pb2, worker_control_pb2; print('grpc' in sys.modules)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert out.stdout == "False\n"
