"""What ``warmroute up`` knows of its processes: read from their structured log lines, and nothing else."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OUTPUT = "output"
"""The event name given to a line that is no structured event: a traceback, a library's word."""

_READ_BYTES = 1 << 20
_KEEP_BYTES = 4 << 20
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of fallocate(2)


class LogTail:
    """Reads the events that a process appends to its log file, and keeps the file from taking ever more room.

    A file and not a pipe: a process must not block on its log, nor fail, when whoever reads it stands still or dies.
    What was read is given back as a hole at the beginning of the file. To cut the file would lose what is written
    between the last look and the cut. Where the file system knows no holes, the file grows.
    """

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        """For the writer, which must append."""
        self._offset = 0
        self._freed = 0
        self._rest = b""
        self._fallocate = getattr(ctypes.CDLL(None), "fallocate", None)  # Linux only
        if self._fallocate is not None:
            self._fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)

    def read(self) -> list[dict[str, Any]]:
        """Return the events of the whole lines that are new."""
        data = os.pread(self.fd, _READ_BYTES, self._offset)
        self._offset += len(data)
        if self._fallocate is not None and self._offset - self._freed > _KEEP_BYTES:
            self._fallocate(self.fd, _PUNCH_HOLE, self._freed, self._offset - self._freed)
            self._freed = self._offset
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_event(line) for line in lines if line]

    def close(self) -> None:
        """Close our descriptor."""
        os.close(self.fd)


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        return event
    return {"event": OUTPUT, "level": "info", "text": line.decode("utf-8", "replace")}


@dataclass(slots=True)
class WorkerView:
    """One worker as its events tell it."""

    id: str
    address: str = ""
    states: dict[str, str] = field(default_factory=dict)  # by model
    bytes_read: dict[str, int] = field(default_factory=dict)
    bytes_total: dict[str, int] = field(default_factory=dict)
    warm_s: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # why a model failed

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one event; those that say nothing of the state are ignored."""
        model = str(event.get("model", ""))
        match event["event"]:
            case "worker.listening":
                self.address = str(event["address"])
            case "model.loading":
                self.bytes_read[model] = int(event.get("bytes_read") or 0)
                self.bytes_total[model] = int(event.get("bytes_total") or 0)
                self.states.setdefault(model, "loading")
            case "model.state":
                self.states[model] = str(event["to"])
                self.reason = str(event.get("reason") or self.reason)
            case "model.warm":
                self.warm_s[model] = float(event.get("seconds") or 0.0)
                self.states[model] = "warm"

    def reset(self) -> None:
        """Forget everything: its process died, and the next one begins cold."""
        self.address = ""
        for table in (self.states, self.bytes_read, self.bytes_total, self.warm_s):
            table.clear()

    def warm(self, models: Sequence[str]) -> bool:
        """Tell whether every one of ``models`` is warm here, and the address is known."""
        return bool(self.address) and all(self.states.get(model) == "warm" for model in models)

    @property
    def loaded(self) -> tuple[int, int]:
        """Bytes read and bytes to read, over all models."""
        return sum(self.bytes_read.values()), sum(self.bytes_total.values())

    def summary(self) -> str:
        """Return its state in a few words."""
        if not self.states:
            return "starting"
        took = max(self.warm_s.values(), default=0.0)
        parts = [f"{state} {model}" for model, state in sorted(self.states.items())]
        return ", ".join(parts) + (f" after {took:.2f} s" if took and set(self.states.values()) == {"warm"} else "")


@dataclass(slots=True)
class SidecarView:
    """The sidecar as its events tell it."""

    listen: str = ""
    admin: str = ""
    control_pid: int | None = None
    data_pids: dict[str, int] = field(default_factory=dict)

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        match event["event"]:
            case "listener.open":
                self.listen = str(event["address"])
            case "admin.open" if not str(event["address"]).startswith("unix:"):
                self.admin = str(event["address"])
            case "process.started":
                if event["name"] == "control":
                    self.control_pid = int(event["pid"])
                else:
                    self.data_pids[str(event["name"])] = int(event["pid"])
