"""The baseline of start times as a file, and what is known of a start before it begins (router/baseline_load.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from router.baseline_load import PRIOR, Baseline, StartFeatures
from worker import json_text
from worker.loading.mapping import cached_ratio
from worker.loading.version_files import version_files
from worker.paths import PACKED

if TYPE_CHECKING:
    from pathlib import Path

    from worker.loading.version_files import SourceFile
    from worker.memory import MemoryProbe
    from worker.store import ModelFiles

SCHEMA: Final = 1
MAX_BYTES: Final = 1 << 16
_WEIGHT_BYTES: Final = 4


class BaselineError(Exception):
    """The file is no baseline; the text names file, field, value and remedy."""


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    schema: int
    baseline: Baseline


def read_baseline(path: Path | None) -> Baseline:
    """Return what ``path`` holds, as ``warmroute bench coldstart --fit`` writes it; without one the published prior.

    Raises:
        BaselineError: it is no such file.
    """
    if path is None:
        return PRIOR
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise BaselineError(f"--baseline {path}: over {MAX_BYTES} bytes; name what bench coldstart --fit wrote")
        found = json_text.decode(raw, _File)
    except OSError as error:
        raise BaselineError(f"--baseline {path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise BaselineError(f"--baseline {path}: {error}; write it anew with bench coldstart --fit") from error
    if found.schema != SCHEMA:
        raise BaselineError(f"--baseline {path}: schema {found.schema}, this is {SCHEMA}; write it anew")
    return found.baseline


def encode_baseline(baseline: Baseline) -> bytes:
    """Return the file that :func:`read_baseline` reads."""
    return msgspec.json.format(msgspec.json.encode(_File(SCHEMA, baseline)), indent=2) + b"\n"


def features(
    files: ModelFiles, memory: MemoryProbe | None, *, accelerator: bool = False, cached_ratio: float = 0.0
) -> StartFeatures:
    """Return what is known of a start from the sizes of its files and the memory that is free, without reading any.

    Weights count as four bytes each. What compressed files hold is told from their kind's own header where it says so.

    Raises:
        LoadError: the files cannot be looked at.
        OSError: a compressed one cannot be read.
    """
    stored = held = 0
    for file in version_files(files.directory) if files.directory is not None else ():
        stored += file.size_bytes
        held += held_bytes(file)
    free = None if memory is None else memory.read()
    return StartFeatures(
        parameters_billions=held / _WEIGHT_BYTES / 1e9,
        saved_percent=100.0 * (1 - stored / held) if held else 0.0,
        free_memory_gb=0.0 if free is None else free.free_bytes / 1e9,
        accelerator=accelerator,
        cached_ratio=cached_ratio,
    )


def page_cache_ratio(files: ModelFiles) -> float:
    """Return the share of a version's files that the page cache holds; 0 where the kernel does not say.

    Raises:
        LoadError: the files cannot be looked at.
    """
    if files.directory is None:
        return 0.0
    return cached_ratio(version_files(files.directory)) or 0.0


def held_bytes(file: SourceFile) -> int:
    """Return how many bytes a file holds: its size, or where it is compressed what it says, and its size at least.

    Raises:
        OSError: it cannot be read.
    """
    return max(file.size_bytes, raw_bytes(file.path)) if file.path.suffix in PACKED else file.size_bytes


def raw_bytes(path: Path) -> int:
    """Return how many bytes a compressed file says it holds; 0 where it does not.

    gzip has the size modulo 4 GiB in its last four bytes (RFC 1952, section 2.3.1), so only files under 4 GiB count;
    Zstandard may have it in its frame's header (RFC 8878, section 3.1.1.1.4).
    """
    with path.open("rb") as file:
        head = file.read(18)
        if path.suffix == ".gz":
            file.seek(-4 if len(head) >= 4 else 0, 2)
            return int.from_bytes(file.read(4), "little")
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return 0
    described = head[4]
    single = described >> 5 & 1
    width = (single, 2, 4, 8)[described >> 6]
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[described & 3]
    found = int.from_bytes(head[at : at + width], "little")
    return found + 256 if width == 2 else found
