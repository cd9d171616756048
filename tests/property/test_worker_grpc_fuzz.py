"""Whatever message a caller sends, reading it ends in a request that fits the model or in an error of the protocol."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from warmroute_pb.v1 import open_inference_pb2 as oip

from tests.support.worker_parts import EchoingModel
from worker.datatypes import NUMPY, Datatype
from worker.engines import TensorSpec
from worker.serving.errors import RequestError
from worker.serving.fit import InferRequest
from worker.serving.grpc.messages import CONTENTS, decode, read, write
from worker.store import ModelFiles

SPECS = tuple(TensorSpec(datatype.value.lower(), datatype, (-1, 2)) for datatype in Datatype)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool_contents": st.booleans(),
    "int_contents": st.integers(-(2**31), 2**31 - 1),
    "int64_contents": st.integers(-(2**63), 2**63 - 1),
    "uint_contents": st.integers(0, 2**32 - 1),
    "uint64_contents": st.integers(0, 2**64 - 1),
    "fp32_contents": st.floats(width=32),
    "fp64_contents": st.floats(),
    "bytes_contents": st.binary(max_size=4),
}


def judge(data: bytes, model: EchoingModel) -> None:
    """Read ``data``; only the documented error may escape, and what fits can be written again."""
    try:
        request = read(decode(data), model)
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
        assert (array.dtype, array.ndim, array.shape[1]) == (NUMPY[spec.datatype], 2, 2)
    arrays = [request.inputs[output.spec.name] for output in request.outputs if not output.classes]
    if len(arrays) == len(request.outputs):
        oip.ModelInferResponse.FromString(write(ModelFiles("m", "1"), request, arrays))


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    judge(data, EchoingModel(inputs=SPECS[:1], outputs=SPECS[:1]))


@given(st.data())
def test_messages_of_the_right_form(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(SPECS))
    message = oip.ModelInferRequest(model_name="m")
    for _ in range(data.draw(st.integers(0, 2))):
        shape = data.draw(st.lists(st.integers(-1, 3) | st.just(2**62), max_size=3) | st.just([1, 2]))
        tensor = message.inputs.add(name=spec.name, datatype=spec.datatype.value, shape=shape)
        own = CONTENTS.get(spec.datatype, "uint_contents")
        for field in data.draw(st.sets(st.just(own) | st.sampled_from(sorted(VALUES)), max_size=2)):
            getattr(tensor.contents, field).extend(data.draw(st.lists(VALUES[field], max_size=4)))
    message.raw_input_contents.extend(data.draw(st.lists(st.binary(max_size=32), max_size=2)))
    if data.draw(st.booleans()):
        message.outputs.add(name=spec.name).parameters["classification"].int64_param = data.draw(st.integers(-1, 3))
    judge(message.SerializeToString(), EchoingModel(inputs=(spec,), outputs=(spec,)))
