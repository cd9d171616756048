"""What is kept through a restart of the control process: holds, faults, steered versions, a drill, the last good view.

It lies in a memory file that the supervisor holds, so it lives exactly as long as the sidecar. Data processes go by it
while the control process is away; without it a new control process would know nothing of a hold that is in force, and
nothing of the fleet where the store is down just then.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass

import msgspec

from router.model import EndpointRecord
from sidecar.faults.rules import FaultRule
from sidecar.state.drilling import DrillLease
from sidecar.state.steering import Steered
from sidecar.telemetry.logs import get_log

_HEAD = struct.Struct("<QI")
"""Length and CRC-32 of what follows: a process that was killed half-way leaves something that does not match."""

_log = get_log("memory")


@dataclass(frozen=True, slots=True)
class KnownName:
    """What a name that was looked up last stood for: (address, port), 0 where it has no port."""

    name: str
    type: str
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """The holds, faults and steered versions in force, the endpoints that the store named last, and names likewise."""

    held: tuple[str, ...] = ()
    faults: tuple[FaultRule, ...] = ()
    records: tuple[EndpointRecord, ...] = ()
    steered: tuple[Steered, ...] = ()
    names: tuple[KnownName, ...] = ()
    begun_faults: tuple[tuple[str, str], ...] = ()
    """Of the configuration: their names, and a digest of each."""
    drill: DrillLease | None = None


_DECODER = msgspec.msgpack.Decoder(Remembered)


class Memory:
    """The memory file behind ``fd``; with None nothing outlives the process."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def load(self) -> Remembered:
        """Return what was last saved; nothing where that is nothing, or not whole."""
        if self._fd is None:
            return Remembered()
        raw = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        if not raw:
            return Remembered()
        try:
            length, crc = _HEAD.unpack_from(raw)
            body = raw[_HEAD.size : _HEAD.size + length]
            if len(body) != length or zlib.crc32(body) != crc:
                raise ValueError("length or checksum does not match")
            return _DECODER.decode(body)
        except (struct.error, ValueError, msgspec.DecodeError) as error:
            _log.error("memory.unreadable", error=str(error))
            return Remembered()

    def save(self, remembered: Remembered) -> None:
        """Keep ``remembered`` instead of what was there."""
        if self._fd is None:
            return
        body = msgspec.msgpack.encode(remembered)
        os.pwrite(self._fd, _HEAD.pack(len(body), zlib.crc32(body)) + body, 0)
