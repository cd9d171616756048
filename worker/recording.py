"""Keeps what callers really asked, one request of each shape, as inputs for the warm-up of the next start."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from worker.store import ShapeClass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from worker.engines import Array
    from worker.log import EventLog
    from worker.store import ModelFiles

MAX_RECORDED: Final = 64
MAX_REQUEST_BYTES: Final = 1 << 20
"""A larger request is not kept."""
_FILE = re.compile(r"[A-Za-z0-9._:-]{1,64}\.npz")


class Recorder:
    """Writes ``DIR/NAME/VERSION/CLASS.npz``. Used in the threads that execute."""

    def __init__(self, directory: Path, most: int, log: EventLog) -> None:
        """``most``: of each model version, so many."""
        self._directory = directory
        self._most = min(most, MAX_RECORDED)
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], set[tuple[tuple[str, tuple[int, ...]], ...]]] = {}
        self._others: dict[tuple[str, str], int] = {}
        self._told = False

    def note(self, files: ModelFiles, inputs: Mapping[str, Array]) -> None:
        """Keep ``inputs``, of a request that was answered, where none of their shapes was kept and there is room.

        Strings are not kept: what people wrote is theirs.
        """
        shapes = tuple((name, array.shape) for name, array in inputs.items())
        with self._lock:
            key = (files.name, files.version)
            known = self._known.setdefault(key, set())
            if shapes in known or len(known) >= self._most:
                return
            if key not in self._others:
                self._others[key] = _recorded_before(self._directory / files.name / files.version)
            if len(known) + self._others[key] >= self._most:
                return
            if any(array.dtype.hasobject for array in inputs.values()):
                return
            if sum(array.nbytes for array in inputs.values()) > MAX_REQUEST_BYTES:
                return
            known.add(shapes)
            name = _class_name(inputs, len(known) + self._others[key])
        directory = self._directory / files.name / files.version
        try:
            self._write(directory, name, inputs)
        except OSError as error:
            if not self._told:
                self._told = True
                where = error.filename or directory / f"{name}.npz"  # a write does not know of what
                self._log.warning("warmup.not_recorded", error=f"{where}: {error.strerror or error}")
            return
        self._log.info("warmup.recorded", model=files.name, version=files.version, shape_class=name)

    @staticmethod
    def _write(directory: Path, name: str, inputs: Mapping[str, Array]) -> None:
        import numpy as np

        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = directory / f".{name}.{os.getpid()}.npz"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez(file, allow_pickle=False, **inputs)
            part.replace(directory / f"{name}.npz")
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _recorded_before(directory: Path) -> int:
    """Return how many requests other processes have kept there, the highest number in a name where that is more."""
    try:
        names = [path.stem for path in directory.iterdir() if _FILE.fullmatch(path.name) and path.name[0] != "."]
    except OSError:
        return 0
    numbers = [int(end) for _, _, end in (name.rpartition("-") for name in names) if end.isdecimal() and len(end) < 9]
    return max(len(names), *numbers, 0)


def _class_name(inputs: Mapping[str, Array], number: int) -> str:
    """Return what to call a class: after its batch, where all inputs have the same, and its number."""
    batches = {array.shape[0] for array in inputs.values() if array.ndim > 1}
    if len(batches) == 1 and len({array.ndim > 1 for array in inputs.values()}) == 1:
        return f"batch-{batches.pop()}-{number}"
    return f"recorded-{number}"


class Recordings:
    """What was recorded below a directory, as the shape classes of models that name none themselves."""

    def __init__(self, directory: Path | None, log: EventLog) -> None:
        """``directory``: where a :class:`Recorder` wrote; None: nowhere."""
        self._directory = directory
        self._log = log
        self.unreadable = 0
        """How many files were passed over."""
        self._looked: dict[Path, tuple[tuple[int, int], bool]] = {}

    def of(self, files: ModelFiles) -> ModelFiles:
        """Return ``files`` with what was recorded of them; a file that cannot be read is told of and passed over."""
        if self._directory is None or files.warmup:
            return files
        place = self._directory / files.name / files.version
        try:
            found = sorted(path for path in place.iterdir() if _FILE.fullmatch(path.name) and path.name[0] != ".")
        except OSError:
            return files
        usable = [path for path in found[:MAX_RECORDED] if self._is_usable(files, path)]
        return replace(files, warmup=tuple(ShapeClass(path.stem, file=path, recorded=True) for path in usable))

    def _is_usable(self, files: ModelFiles, path: Path) -> bool:
        """Whether a file can be read; looked at once for as long as it is not written again."""
        from worker.stored import read_inputs

        key, error = (0, 0), ""
        try:
            status = path.stat()
            key = (status.st_size, status.st_mtime_ns)
            known = self._looked.get(path)
            if known is not None and known[0] == key:
                return known[1]
            read_inputs(path)
        except (OSError, ValueError) as refused:
            error = str(refused)
        self._looked[path] = (key, not error)
        if error:
            self.unreadable += 1
            self._log.warning(
                "warmup.passed_over", model=files.name, version=files.version, file=str(path), error=error
            )
        return not error
