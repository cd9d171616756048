"""Holds a version's files to the SHA-256 that is written down for them.

That is in ``model.yaml`` (``files: {model.onnx: 9f86d0...}``) or in a file ``SHA256SUMS`` beside it, as ``sha256sum``
writes it; where there are both, both must hold. Where there is neither, nothing is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from worker.engines import GivenUpError
from worker.stages import Stage
from worker.store import within

if TYPE_CHECKING:
    from pathlib import Path

    from worker.engines import Cancellation
    from worker.stages import Stages
    from worker.store import ModelFiles

SUMS = "SHA256SUMS"
MAX_SUMS_BYTES = 4 << 20
CHUNK_BYTES = 4 << 20
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class VerificationError(Exception):
    """A file is not what was written down of it, or what was written down cannot be read; the text says which."""


def verify(files: ModelFiles, cancellation: Cancellation, stages: Stages) -> None:
    """Read the files that a hash is written down for, and compare; measures that. Blocks.

    Raises:
        VerificationError: a file is another one, or is missing.
        GivenUpError: ``cancellation`` said so.
    """
    if files.directory is None:
        return
    expected = [(f"{files.directory}/model.yaml", name, digest) for name, digest in files.sha256.items()]
    sums = files.directory / SUMS
    if sums.is_file():
        expected += [(str(sums), name, digest) for name, digest in _read(sums).items()]
    if expected:
        with stages.measure(Stage.CHECKSUM):
            _compare(files.directory, expected, cancellation)


def _compare(directory: Path, expected: list[tuple[str, str, str]], cancellation: Cancellation) -> None:
    known: dict[str, str] = {}
    for source, name, digest in expected:
        if name not in known:
            known[name] = _digest(directory / name, source, cancellation)
        if known[name] != digest:
            raise VerificationError(
                f"{directory / name}: its SHA-256 is {known[name]}, and {source} says {digest}; "
                f"bring the file again, or correct what is said of it"
            )


def _read(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > MAX_SUMS_BYTES:
            raise VerificationError(f"{path}: over {MAX_SUMS_BYTES} bytes; is it the right file?")
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise VerificationError(f"{path}: not UTF-8: {error}") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise VerificationError(f"{path}: line {number}: {line[:80]!r}: expected SHA-256, two spaces, name")
        name = within(matched[2])
        if name is None:
            raise VerificationError(
                f"{path}: line {number}: {matched[2][:80]!r}: name a file of this version, relative to its directory"
            )
        sums[name] = matched[1]
    return sums


def _digest(path: Path, source: str, cancellation: Cancellation) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # not on macOS
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := file.readinto(buffer):
                if cancellation.cancelled:
                    raise GivenUpError("given up while verifying")
                digest.update(buffer[:count])
    except OSError as error:
        raise VerificationError(f"{path}: {error.strerror}; {source} has a SHA-256 for it") from error
    return digest.hexdigest()
