"""What a gRPC message costs while it is on its way: a place, for so long, and its room; in this process."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
import numpy as np
import pytest
from warmroute_pb.v1 import open_inference_pb2 as oip

from tests.support.worker_parts import EchoingModel, EmptyLoader, FixedEngine, ReadableLog, X
from tests.support.worker_surface import unnoticed, until
from worker.execution import Executor
from worker.load_report import LoadProbe
from worker.memory import HostMemory
from worker.models import Models
from worker.replica import HeldReplica
from worker.serving.body import Bodies
from worker.serving.description import Identity
from worker.serving.grpc import server
from worker.serving.grpc.server import GrpcSurface
from worker.serving.inference import Inference
from worker.serving.unread import Unread
from worker.store import ModelFiles

LIMIT = 1000


class Wire:
    """One connection, by hand: a call's head and message can be sent in parts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.trailers: dict[str, str] = {}
        self._core = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._core.initiate_connection()

    def begin(
        self, data: bytes, stream: int = 1, *, end: bool = False, method: str = "ModelInfer", timeout_ms: str = ""
    ) -> None:
        head = [(":method", "POST"), (":scheme", "http"), (":path", f"/{server.SERVICE}/{method}"), (":authority", "w")]
        more = [("x-request-timeout-ms", timeout_ms)] if timeout_ms else []
        self._core.send_headers(stream, [*head, ("te", "trailers"), ("content-type", "application/grpc"), *more])
        self.more(data, stream, end=end)

    def more(self, data: bytes, stream: int = 1, *, end: bool = False) -> None:
        self._core.send_data(stream, data, end_stream=end)
        self._writer.write(self._core.data_to_send())

    def take_only(self, count: int) -> None:
        """Take so many bytes of each answer."""
        self._core.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: count})

    async def status(self) -> tuple[int, str]:
        """Wait for the end of a call; returns its status and message."""
        while True:
            data = await self._reader.read(65536)
            assert data, "the connection ended"
            for event in self._core.receive_data(data):
                if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                    told = {str(name): str(value) for name, value in event.headers or ()}
                    if "grpc-status" in told:
                        self.trailers = told
                        return int(told["grpc-status"]), told.get("grpc-message", "")
            self._writer.write(self._core.data_to_send())

    async def answered(self) -> None:
        """Wait for the first byte of a message that answers."""
        events: list[Any] = []
        while not any(isinstance(event, h2.events.DataReceived) for event in events):
            events = self._core.receive_data(await self._reader.read(65536))
            self._writer.write(self._core.data_to_send())

    async def ended(self) -> None:
        """Wait until the other end has closed the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def serving(
    executor: Executor, bodies: Bodies, hold: threading.Event | None = None, unread: Unread | None = None
) -> AsyncIterator[tuple[GrpcSurface, EchoingModel]]:
    log = ReadableLog()
    echo = EchoingModel(inputs=(X,), outputs=(X,))
    replica = HeldReplica(ModelFiles("m", "1"), FixedEngine(echo), EmptyLoader(), log, lambda: 0.0, unnoticed)
    await replica.bring_up()
    echo.hold = hold
    models = Models((replica,))
    inference = Inference(models, executor, unread=unread)
    load = LoadProbe(executor, HostMemory(), lambda: None, inference.served, lambda: 0.0)
    identity = Identity("w", "e", lambda: "9")
    surface = GrpcSurface(identity, models, inference, bodies, load, None, log)  # type: ignore[arg-type]
    surface.bind("127.0.0.1", 0)
    await surface.start()
    try:
        yield surface, echo
    finally:
        executor.close()
        await surface.stop(0)


def served(
    check: Callable[[Callable[[], Awaitable[Wire]], Executor, Bodies], Awaitable[None]],
    limit: int = LIMIT,
    **model: Any,
) -> None:
    async def scenario() -> None:
        executor, bodies = Executor(1, 1), Bodies(limit, limit)
        wires: list[Wire] = []
        async with serving(executor, bodies, **model) as (surface, _):
            port = int(surface.address.rpartition(":")[2])

            async def connect() -> Wire:
                wires.append(Wire(*await asyncio.open_connection("127.0.0.1", port)))
                return wires[-1]

            try:
                await asyncio.wait_for(check(connect, executor, bodies), 20)
            finally:
                for wire in wires:
                    wire.close()

    asyncio.run(scenario())


def message(rows: int = 1, timeout_us: int = 0) -> bytes:
    request = oip.ModelInferRequest(model_name="m", raw_input_contents=[bytes(8 * rows)])
    if timeout_us:
        request.parameters["timeout"].int64_param = timeout_us
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 2])
    data = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(data)) + data


@pytest.mark.parametrize("said", ["in the head", "in the message"])
def test_the_time_of_a_request_is_counted_from_its_head_not_from_its_message(said: str) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]], executor: Executor, _: Bodies) -> None:
        wire = await connect()
        data = message(timeout_us=0 if said == "in the head" else 30_000)
        wire.begin(data[:7], timeout_ms="30" if said == "in the head" else "")
        await until(lambda: executor.in_flight == 1)
        await asyncio.sleep(0.05)
        wire.more(data[7:], end=True)
        assert await wire.status() == (14, "model 'm': its time was over before it could begin")

    served(check)


def test_a_place_is_taken_before_the_message_is_received() -> None:
    async def check(connect: Callable[[], Awaitable[Wire]], executor: Executor, _: Bodies) -> None:
        slow = [await connect() for _ in range(2)]
        for wire in slow:
            wire.begin(message()[:7])
        await until(lambda: executor.in_flight == 2)
        other = await connect()
        other.begin(message(), end=True)
        assert await other.status() == (14, "the worker's queue is full (1 requests wait)")
        slow[0].close()
        await until(lambda: executor.in_flight == 1)
        other = await connect()
        other.begin(message(), end=True)
        assert await other.status() == (0, "")
        slow[1].more(message()[7:], end=True)
        assert await slow[1].status() == (0, "")
        assert executor.in_flight == 0

    served(check)


def test_a_message_that_does_not_come_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECEIVE_S", 0.05)

    async def check(connect: Callable[[], Awaitable[Wire]], executor: Executor, _: Bodies) -> None:
        wire = await connect()
        wire.begin(message()[:7])
        assert await wire.status() == (4, "the message did not come within 0.05 s")
        assert executor.in_flight == 0

    served(check)


def test_a_call_without_a_message() -> None:
    async def check(connect: Callable[[], Awaitable[Wire]], _: Executor, __: Bodies) -> None:
        wire = await connect()
        wire.begin(b"", end=True)
        assert await wire.status() == (3, "inference request: the call has no message")

    served(check)


def test_all_messages_together_have_a_limit() -> None:
    hold = threading.Event()

    async def check(connect: Callable[[], Awaitable[Wire]], executor: Executor, bodies: Bodies) -> None:
        first, second = await connect(), await connect()
        first.begin(message(rows=100), end=True)
        await until(lambda: bodies.held_bytes > 800)
        held = bodies.held_bytes
        second.begin(message(rows=100), end=True)
        assert await second.status() == (14, f"the worker holds {held} bytes of bodies, no room for more")
        hold.set()
        assert await first.status() == (0, "")
        await until(lambda: bodies.held_bytes == 0)
        assert executor.in_flight == 0

    served(check, hold=hold)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_an_answer_that_nobody_takes_is_counted_and_cut(method: str) -> None:
    now, log = [0.0], ReadableLog()
    unread = Unread(together_bytes=1, unread_s=30.0, log=log, clock=lambda: now[0])

    async def check(connect: Callable[[], Awaitable[Wire]], executor: Executor, _: Bodies) -> None:
        wire, other = await connect(), await connect()
        wire.take_only(100)
        wire.begin(message(rows=2000), method=method, end=True)
        await until(lambda: unread.held_bytes > 16000)
        other.begin(message(), end=True)
        code, text = await other.status()
        assert code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert "of answers that nobody has taken yet, no room for more" in text
        now[0] = 29.9
        unread.look()
        assert unread.cut == 0
        while not unread.cut:
            now[0] += 30.1
            unread.look()  # the first may find that the connection took what is no part of the answer
            await asyncio.sleep(0.001)
        await wire.ended()
        await until(lambda: unread.held_bytes == 0)
        (told,) = log.events("answers.cut")
        assert (told["answers"], told["after_s"]) == (1, 30.0)
        other.begin(message(), stream=3, end=True)
        assert (await other.status())[0] == 0

    served(check, limit=1 << 20, unread=unread)


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_STREAMS", 1)

    async def check(connect: Callable[[], Awaitable[Wire]], _: Executor, __: Bodies) -> None:
        first, second = await connect(), await connect()
        first.begin(message(), method="ModelStreamInfer")
        await first.answered()
        second.begin(b"", method="ModelStreamInfer")
        assert await second.status() == (8, "1 other streams are open")
        assert second.trailers["warmroute-worker"] == "w"
        first.more(b"", end=True)
        assert await first.status() == (0, "")

    served(check)


class Caller:
    """A connection that calls without a pause; each call has a number of its own."""

    def __init__(self, address: str, number: int) -> None:
        self.number = number
        self.ended: dict[int, grpc.StatusCode] = {}
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"), options=options)

    async def run(self) -> None:
        """Call until a call fails."""
        call = self._channel.unary_unary(f"/{server.INFER}")
        while True:
            k = len(self.ended)
            request = oip.ModelInferRequest(
                model_name="m", raw_input_contents=[np.array([self.number, k], "<f4").tobytes()]
            )
            request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
            try:
                await call(request.SerializeToString(), timeout=10)
                self.ended[k] = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                self.ended[k] = error.code()
                break
        await self._channel.close()


def test_what_fails_in_the_moment_of_the_goaway_was_not_begun() -> None:
    async def scenario() -> None:
        executor, bodies = Executor(2, 64), Bodies(1 << 20, 1 << 24)
        async with serving(executor, bodies) as (surface, echo):
            echo.ran.clear()
            callers = [Caller(surface.address, number) for number in range(8)]
            calling = [asyncio.create_task(caller.run()) for caller in callers]
            await until(lambda: all(len(caller.ended) > 5 for caller in callers))
            await surface.stop(5)
            await asyncio.wait_for(asyncio.gather(*calling), 15)
            begun = {tuple(map(int, inputs["x"].ravel())) for inputs in echo.ran}
            answered = {(c.number, k) for c in callers for k, code in c.ended.items() if code is grpc.StatusCode.OK}
            assert begun == answered
            codes = {code for caller in callers for code in caller.ended.values()}
            assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}

    asyncio.run(scenario())
