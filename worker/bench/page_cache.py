"""The page cache as a bench needs it: a model's files out of it, or in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from worker.loading.version_files import SourceFile

DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_CHUNK_BYTES: Final = 4 << 20


def drop(files: Iterable[SourceFile], *, everything: bool = True) -> str:
    """Take ``files`` out of the page cache, and where allowed and wanted ``everything`` else.

    Returns how: ``drop_caches``, or ``fadvise`` where it is these files alone. Then programs and libraries stay cached,
    and pages that another process has mapped.
    """
    for file in files:
        _forget(file.path)
    if not everything:
        return "fadvise"
    try:
        DROP_CACHES.write_text("1")
    except OSError:
        return "fadvise"
    return "drop_caches"


def warm(files: Iterable[SourceFile]) -> None:
    """Read ``files`` into the page cache."""
    buffer = bytearray(_CHUNK_BYTES)
    for file in files:
        with file.path.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def _forget(path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):  # not on macOS
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())  # what is not written yet cannot be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
