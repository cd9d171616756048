from __future__ import annotations

import asyncio
import ctypes
import threading
import uuid
from typing import Any

import pytest

from tests.support.worker_parts import DoublingModel, FixedEngine, ReadableLog
from worker.engines import Cancellation, EngineError, GivenUpError
from worker.engines.early import EarlyEngine
from worker.engines.nvidia import DeviceMemory, check_driver
from worker.memory import Memory
from worker.stages import Stage, Stages
from worker.store import ModelFiles

NO_DEVICE = 100
IDENTITY = uuid.UUID("12345678-1234-5678-1234-567812345678")


class FakeDriver:
    """Answers as NVIDIA's two libraries do."""

    def __init__(self, code: int = 0) -> None:
        self.code = code

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self.code

    def cuGetErrorString(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"no CUDA-capable device is detected"
        return 0

    def cuDeviceGet(self, number: Any, ordinal: int) -> int:  # noqa: N802
        number._obj.value = ordinal + 40
        return self.code

    def cuDeviceGetUuid(self, name: Any, number: Any) -> int:  # noqa: N802
        assert number.value == 43
        ctypes.memmove(name, IDENTITY.bytes, 16)
        return 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, identity: bytes, handle: Any) -> int:  # noqa: N802
        assert identity == f"GPU-{IDENTITY}".encode()
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        assert handle.value == 1
        memory._obj.total, memory._obj.free = 16 << 30, 5 << 30
        return 0


def test_a_driver_that_works_says_nothing() -> None:
    check_driver(lambda _: FakeDriver())  # type: ignore[arg-type, return-value]


def test_a_driver_that_fails_is_told_in_its_words() -> None:
    with pytest.raises(EngineError) as caught:
        check_driver(lambda _: FakeDriver(NO_DEVICE))  # type: ignore[arg-type, return-value]
    assert str(caught.value) == "NVIDIA driver: cuInit: no CUDA-capable device is detected (CUDA error 100)"


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def test_no_driver_at_all() -> None:
    with pytest.raises(EngineError) as caught:
        check_driver(missing)
    assert str(caught.value) == (
        "NVIDIA driver: libcuda.so.1: cannot open shared object file: No such file or directory"
    )


def test_memory_of_the_device_that_cuda_means() -> None:
    assert DeviceMemory(3, lambda _: FakeDriver()).read() == Memory(5 << 30, 16 << 30)  # type: ignore[arg-type, return-value]
    assert DeviceMemory(3, lambda _: FakeDriver(NO_DEVICE)).read() is None  # type: ignore[arg-type, return-value]
    assert DeviceMemory(3, missing).read() is None


# --- the head start ---------------------------------------------------------------------------------------------


class Host:
    def read(self) -> Memory:
        return Memory(1, 2)


class SlowDevice(FixedEngine):
    """Its device comes up, or fails, when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(DoublingModel())
        self.device_error = error
        self.go = threading.Event()
        self.has: Memory | None = None

    def initialize(self, models: Any) -> None:
        assert self.go.wait(10)
        if self.device_error is not None:
            raise self.device_error

    def memory(self) -> Any:
        return self.has


def test_loads_wait_for_the_device_and_measure_the_wait() -> None:
    engine = SlowDevice()
    early = EarlyEngine(engine, Host(), ReadableLog())
    stages = Stages()
    assert early.load(ModelFiles("m", "1"), Cancellation(), stages) is engine.model, "nothing to wait for"
    assert stages.seconds() == {}
    early.initialize([])
    threading.Timer(0.02, engine.go.set).start()
    assert early.load(ModelFiles("m", "1"), Cancellation(), stages) is engine.model
    assert list(stages.seconds()) == [Stage.DEVICE]


def test_a_wait_can_be_given_up() -> None:
    engine = SlowDevice()
    early = EarlyEngine(engine, Host(), ReadableLog())
    early.initialize([])
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(GivenUpError):
        early.load(ModelFiles("m", "1"), cancellation, Stages())
    engine.go.set()


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [(EngineError("no device"), "warning", "no device"), (ZeroDivisionError("x"), "error", "ZeroDivisionError: x")],
)
def test_a_device_that_fails_is_told_and_fails_only_who_needs_it(error: Exception, level: str, said: str) -> None:
    engine = SlowDevice(error)
    log = ReadableLog()
    early = EarlyEngine(engine, Host(), log)
    engine.go.set()
    early.initialize([])
    assert early.load(ModelFiles("m", "1"), Cancellation(), Stages()) is engine.model
    (event,) = log.events("engine.device_failed")
    assert (event["level"], event["error"]) == (level, said)


def test_memory_is_the_devices_or_else_the_hosts() -> None:
    engine = SlowDevice()
    early = EarlyEngine(engine, Host(), ReadableLog())
    assert (early.memory(), early.read()) == (None, Memory(1, 2))
    engine.has = Memory(3, 4)
    assert early.memory() == early.read() == Memory(3, 4)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_memory_that_an_engine_cannot_tell_is_unknown_and_told_once(kind: type[BaseException]) -> None:
    class Broken(FixedEngine):
        def memory(self) -> None:
            raise kind("driver gone")

    log = ReadableLog()
    engine = EarlyEngine(Broken(DoublingModel()), Host(), log)
    assert (engine.memory(), engine.read(), engine.read()) == (None, Memory(1, 2), Memory(1, 2))
    assert [event["error"] for event in log.events("engine.memory_unknown")] == [f"{kind.__name__}: driver gone"]
