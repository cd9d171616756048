"""What a hostile caller sends is the caller's error, and never a 500 that counts against the worker."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
import zlib
from typing import Any
from urllib.parse import urlsplit

import pytest

from sidecar.traffic.processor import cpu_s
from tests.support.worker_process import WorkerProcess
from tests.support.worker_surface import Surface, begin, head, one, served, tensor, until
from worker.datatypes import Datatype
from worker.engines import TensorSpec
from worker.serving import body as bodies_of
from worker.serving import v2
from worker.serving.errors import OUT_OF_MEMORY

WIDE = TensorSpec("f", Datatype.FP32, (-1, -1))
EMPTY = f"input 'f': shape [0, {2**62}] is empty, and its other dimensions multiply to {2**62}, at most {1 << 26}"


def no_defect(surface: Surface) -> None:
    assert surface.log.events("request.failed") == []
    assert surface.executor.in_flight == 0
    assert surface.bodies.held_bytes == 0


def test_a_shape_of_nothing_has_bounds_all_the_same() -> None:
    async def check(surface: Surface) -> None:
        status, answer, _ = await surface.post(one(shape=(0, 2**62), data=[]))
        assert (status, answer) == (400, {"error": EMPTY})
        of_bytes = tensor(shape=(0, 2**62), parameters={"binary_data_size": 0})
        del of_bytes["data"]
        text = json.dumps({"inputs": [of_bytes]}).encode()
        status, body, _ = await surface.send(text, Inference_Header_Content_Length=str(len(text)))
        assert (status, json.loads(body)) == (400, {"error": EMPTY})
        assert surface.model.ran == []
        assert (await surface.post(one(shape=(0, 1 << 26), data=[])))[0] == 200
        no_defect(surface)

    served(check, (WIDE,), outputs=(WIDE,))


@pytest.mark.parametrize("binary", [False, True])
def test_classes_of_nothing(binary: bool) -> None:
    async def check(surface: Surface) -> None:
        wanted = {"name": "f", "parameters": {"classification": 2, "binary_data": binary}}
        status, answer, _ = await surface.post(one(shape=(1, 0), data=[]) | {"outputs": [wanted]})
        assert (status, answer) == (400, {"error": "output 'f': shape [1, 0] holds no scores to classify by"})
        status, _, _ = await surface.send(json.dumps(one(shape=(0, 2), data=[]) | {"outputs": [wanted]}).encode())
        assert status == 200, "no rows are no classes, each of which there are two"
        no_defect(surface)

    served(check, (WIDE,), outputs=(WIDE,))


def test_data_nested_deeper_than_what_is_read_of_it_at_first() -> None:
    """The whole body is read without its tensors' data, which is then read by a deeper stack."""

    async def check(surface: Surface) -> None:
        for depth in range(960, 1005):
            data = b"[1," + b"[" * depth + b"]" * depth + b"]"
            body = b'{"inputs": [{"name": "f", "shape": [1, 2], "datatype": "FP32", "data": ' + data + b"}]}"
            assert (await surface.post(body))[0] == 400
        no_defect(surface)

    served(check)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_not_encoded_as_it_says(encoding: str) -> None:
    async def check(surface: Surface) -> None:
        status, body, headers = await surface.send(b"\x1f\x8bno such thing" * 9, Content_Encoding=encoding)
        assert status == 400, body
        error = f"the body cannot be read: Can not decode content-encoding: {encoding}"
        assert json.loads(body) == {"error": error}
        assert headers["warmroute-worker"] == "w1"
        no_defect(surface)

    served(check)


def test_a_body_in_gzip_is_read() -> None:
    async def check(surface: Surface) -> None:
        status, _, _ = await surface.send(gzip.compress(json.dumps(one()).encode()), Content_Encoding="gzip")
        assert status == 200
        text = gzip.compress(b" " * 100_000)
        assert (await surface.send(text, Content_Encoding="gzip"))[0] == 413
        no_defect(surface)

    served(check)


def test_what_a_body_in_gzip_would_become_is_not_worked_out_once_it_is_refused() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(4 << 20)) for _ in range(128)) + packer.flush()
    began = time.process_time()
    unpacker = zlib.decompressobj(wbits=31)
    rest = bomb
    while rest:
        unpacker.decompress(rest, 1 << 20)
        rest = unpacker.unconsumed_tail
    whole_s = time.process_time() - began
    with WorkerProcess("--model", "m", "--engine", "deterministic", "--body-limit-bytes", "100000") as worker:
        worker.warm("m")
        before_s = cpu_s(worker.process.pid)
        where = urlsplit(worker.listening())
        with socket.create_connection((where.hostname or "", where.port or 0), 10) as caller:
            top = "POST /v2/models/m/infer HTTP/1.1\r\nHost: w\r\nContent-Encoding: gzip\r\n"
            caller.sendall(f"{top}Content-Length: {len(bomb)}\r\n\r\n".encode() + bomb)
            assert caller.recv(4096).startswith(b"HTTP/1.1 413 ")
        assert worker.ask("/v2/health/live")[0] == 200
        assert cpu_s(worker.process.pid) - before_s < whole_s / 2


def test_a_body_that_comes_slowly_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_of, "WHOLE_S", 0.2)

    async def check(surface: Surface) -> None:
        reader, writer = await begin(surface, head(1000))

        async def trickle() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(trickle())
        assert (await reader.readline()).split()[1] == b"408"
        sending.cancel()
        assert b"the body is too slow: " in await reader.readuntil(b"}")
        writer.close()
        await until(lambda: surface.executor.in_flight == 0)
        no_defect(surface)

    served(check)


def test_what_comes_fast_enough_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_of, "WHOLE_S", 0.1)
    monkeypatch.setattr(bodies_of, "LEAST_BYTES_PER_S", 50)

    async def check(surface: Surface) -> None:
        text = json.dumps(one()).encode()
        reader, writer = await begin(surface, head(len(text)) + text[:50])
        await asyncio.sleep(0.3)
        writer.write(text[50:])
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()

    served(check)


def test_what_nobody_thought_of_is_a_defect_and_still_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any) -> Any:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(v2, "parse", parse)

    async def check(surface: Surface) -> None:
        status, answer, _ = await surface.post(one())
        assert (status, answer) == (400, {"error": "the request cannot be read (ZeroDivisionError)"})
        (failed,) = surface.log.events("request.failed")
        assert (failed["path"], failed["error"]) == (
            "/v2/models/m/infer",
            "ZeroDivisionError: nobody thought of it",
        )

    served(check)


def test_no_memory_to_read_a_request_is_not_the_callers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(v2, "parse", parse)

    async def check(surface: Surface) -> None:
        status, answer, headers = await surface.post(one())
        assert (status, answer, headers["Retry-After"]) == (503, {"error": OUT_OF_MEMORY}, "1")
        no_defect(surface)

    served(check)


def exchanged(address: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes on a connection of their own; returns status, head and body, once the worker has closed it."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(sent)
        data = b""
        while piece := connection.recv(65536):
            data += piece
    top, _, body = data.partition(b"\r\n\r\n")
    first, *fields = top.decode().split("\r\n")
    return int(first.split()[1]), dict(field.split(": ", 1) for field in fields), body


def posted(path: str, body: bytes, fields: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\nHost: w\r\nConnection: close\r\n" % path.encode() + fields + length + b"\r\n" + body


GARBLED = {
    "a line over 64 KiB": b"GET /" + b"a" * (70 << 10) + b" HTTP/1.1\r\nHost: w\r\n\r\n",
    "a field over 64 KiB": b"GET /v2 HTTP/1.1\r\nHost: w\r\nA: " + b"a" * (70 << 10) + b"\r\n\r\n",
    "many fields": b"GET /v2 HTTP/1.1\r\nHost: w\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(999)) + b"\r\n",
    "an expectation that nobody knows": (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: w\r\nExpect: 200-ok\r\nContent-Length: 9\r\n\r\n"
    ),
    "an expectation of what is not there": b"GET /nowhere HTTP/1.1\r\nHost: w\r\nExpect: " + b"a" * 999 + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n",
    "gzip that is none": posted("/v2/models/m/infer", b"hello", b"Content-Encoding: gzip\r\n"),
    "an encoding that is not there": posted("/v2/models/m/infer", b"hello", b"Content-Encoding: br\r\n"),
    "deep JSON": posted("/v2/repository/index", b'{"a":' + b"[" * 100_000),
    "deep JSON in a load": posted("/v2/repository/models/m/load", b'{"parameters":{"a":' + b"[" * 100_000),
}


def test_a_process_answers_all_of_it_in_json_and_logs_nothing_else() -> None:
    with WorkerProcess("--engine", "deterministic", "--model", "m", "--id", "w7") as worker:
        worker.listening()
        worker.warm("m")
        for name, sent in GARBLED.items():
            status, fields, body = exchanged(worker.address, sent)
            assert 400 <= status < 500, name
            assert json.loads(body).keys() == {"error"}, name
            assert fields["warmroute-worker"] == "w7", name
            assert fields["Content-Type"].startswith("application/json"), name
        assert worker.ask("/stats")[1]["models"]["m"]["failed"] == 0
        worker.terminate()
        worker.event("worker.stopped")
        assert worker.wait() == 0
        assert worker.text == [], "one JSON object a line"
        assert [event for event in worker.events if event["event"] in ("request.failed", "library.log")] == []
