"""NVIDIA's driver, asked directly through its own libraries: is it there, what does it say, how much memory is free.

No package is needed for these few calls (CUDA driver API: initialisation and identity; NVML: memory).
"""

from __future__ import annotations

import ctypes
import uuid
from typing import TYPE_CHECKING

from worker.engines import EngineError
from worker.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    Open = Callable[[str], ctypes.CDLL]

_DRIVER = "libcuda.so.1"
_NVML = "libnvidia-ml.so.1"


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def check_driver(open_library: Open = ctypes.CDLL) -> None:
    """Initialise the driver, which makes the first use of a device quicker.

    Raises:
        EngineError: there is none, or it cannot; in the driver's own words.
    """
    try:
        cuda = open_library(_DRIVER)
    except OSError as error:
        raise EngineError(f"NVIDIA driver: {error}") from error
    code = int(cuda.cuInit(0))
    if code == 0:
        return
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    said = (text.value or b"no description").decode(errors="replace")
    raise EngineError(f"NVIDIA driver: cuInit: {said} (CUDA error {code})")


class DeviceMemory:
    """Free and total memory of one GPU, as NVML has it. :meth:`read` is None where it cannot be known."""

    def __init__(self, device: int, open_library: Open = ctypes.CDLL) -> None:
        """``device``: its number as CUDA counts, which NVML does not (CUDA_VISIBLE_DEVICES): they agree on its UUID."""
        self._nvml: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        try:
            cuda, nvml = open_library(_DRIVER), open_library(_NVML)
        except OSError:
            return
        number, name = ctypes.c_int(), ctypes.create_string_buffer(16)
        if cuda.cuDeviceGet(ctypes.byref(number), device) != 0 or cuda.cuDeviceGetUuid(name, number) != 0:
            return
        identity = f"GPU-{uuid.UUID(bytes=name.raw)}".encode()
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(identity, ctypes.byref(self._handle)) == 0:
            self._nvml = nvml

    def read(self) -> Memory | None:
        """Return the memory now; see :class:`worker.memory.MemoryProbe`."""
        memory = _NvmlMemory()
        if self._nvml is None or self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) != 0:
            return None
        return Memory(int(memory.free), int(memory.total))
