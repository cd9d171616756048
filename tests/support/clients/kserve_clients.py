"""Drives a worker with the kserve package's clients: ``python kserve_clients.py HOST:PORT GRPC_HOST:PORT``.

Runs in an environment of its own (requirements/clients.lock), so it imports nothing of ours. Prints the name of each
check that held; the first that does not ends it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

VALUES: dict[str, Any] = {
    "FP32": np.array([[1.5, -2.0]], dtype=np.float32),
    "FP16": np.array([[0.5, 1.0]], dtype=np.float16),
    "INT8": np.array([[-128, 127]], dtype=np.int8),
    "BYTES": np.array([[b"a", "ä".encode()]], dtype=np.object_),
}
"""What the model ``some`` takes, by name; it gives them back as OUTPUT0 and so on."""


def held(name: str) -> None:
    print(name, flush=True)


def request(*, binary: bool) -> InferRequest:
    given = []
    for name, value in VALUES.items():
        tensor = InferInput(name, list(value.shape), name)
        tensor.set_data_from_numpy(value, binary_data=binary or name == "FP16")
        given.append(tensor)
    return InferRequest("some", given, request_id="7")


def check_outputs(response: Any) -> None:
    assert response.id == "7"
    assert response.model_name == "some"
    for output, (name, value) in zip(response.outputs, VALUES.items(), strict=True):
        got = output.as_numpy()
        if name == "BYTES":
            assert [one if isinstance(one, bytes) else one.encode() for one in got.ravel()] == value.ravel().tolist()
        else:
            assert (got == value).all(), (name, got)


async def main(http: str, grpc: str) -> None:
    base = f"http://{http}"
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await rest.is_server_live(base)
    assert await rest.is_server_ready(base)
    assert await rest.is_model_ready(base, "some")
    held("rest readiness")
    for binary in (True, False):
        check_outputs(await rest.infer(base, request(binary=binary), model_name="some"))
    held("rest infer")
    await rest.close()
    client = InferenceGRPCClient(grpc, use_ssl=False)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("some")
    held("grpc readiness")
    for binary in (True, False):
        check_outputs(await client.infer(request(binary=binary)))
    held("grpc infer")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
