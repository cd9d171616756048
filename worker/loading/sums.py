"""The SHA-256 that is written down for a version's files.

That is in ``model.yaml`` (``files: {model.onnx: 9f86d0...}``) or in a file ``SHA256SUMS`` beside it, as ``sha256sum``
writes it; where there are both, both must hold.
"""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.loading import LoadError
from worker.loading.version_files import DESCRIPTION, SUMS
from worker.paths import has_file, within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from worker.loading.version_files import SourceFile

MAX_SUMS_BYTES = 4 << 20
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


class DamagedError(LoadError):
    """A file, ``path``, is not what is said of it."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path


@dataclass(frozen=True, slots=True)
class Said:
    """A sum, and which file says it."""

    sha256: str
    source: Path

    def compare(self, path: Path, found: str) -> None:
        """Compare what the file at ``path`` hashes to.

        Raises:
            DamagedError: it is something else.
        """
        if found != self.sha256:
            raise DamagedError(
                path,
                f"{path}: its SHA-256 is {found}, and {self.source} says {self.sha256}; "
                f"bring the file again, or correct what is said of it",
            )


def read_sums(directory: Path, described: Mapping[str, str]) -> dict[str, Said]:
    """Return what is said of the files of ``directory``, by name; ``described`` is what ``model.yaml`` says.

    Raises:
        LoadError: SHA256SUMS cannot be read, has a line that is not one, or says otherwise than ``model.yaml``.
    """
    said = {name: Said(sha256, directory / DESCRIPTION) for name, sha256 in described.items()}
    path = directory / SUMS
    try:
        if not has_file(path):
            return said
        if path.stat().st_size > MAX_SUMS_BYTES:
            raise LoadError(f"{path}: over {MAX_SUMS_BYTES} bytes; is it the right file?")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: not UTF-8: {error}") from error
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    for name, sha256 in parse_sums(text, str(path)).items():
        other = said.setdefault(name, Said(sha256, path))
        if other.sha256 != sha256:
            raise LoadError(f"{directory / name}: {other.source} says SHA-256 {other.sha256}, and {path} says {sha256}")
    return said


def parse_sums(text: str, where: str) -> dict[str, str]:
    """Read the lines of a SHA256SUMS file; ``where`` is what errors call it.

    Raises:
        LoadError: a line is not ``SUM  NAME``, or names a file elsewhere.
    """
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise LoadError(f"{where}: line {number}: {line[:80]!r}: expected SHA-256, two spaces, name")
        name = within(matched[2])
        if name is None:
            raise LoadError(
                f"{where}: line {number}: {matched[2][:80]!r}: name a file of this version, relative to its directory"
            )
        if sums.setdefault(name, matched[1].lower()) != matched[1].lower():
            raise LoadError(f"{where}: line {number}: {name!r} is there twice, with different sums")
    return sums


def make_sums(
    files: Sequence[SourceFile], threads: int, told: Callable[[int, int], None] = lambda *_: None
) -> dict[str, str]:
    """Read ``files`` and return the SHA-256 of each, by name; each takes one of the ``threads``.

    ``told`` hears of bytes read and bytes in all, after each file.

    Raises:
        LoadError: one cannot be read, changed meanwhile, or has a name that no line of SHA256SUMS can hold.
    """
    total_bytes, done_bytes = sum(file.size_bytes for file in files), 0
    found: dict[str, str] = {}
    with ThreadPoolExecutor(threads) as pool:
        for file, sha256 in zip(files, pool.map(_sha256, files), strict=True):
            found[file.name] = sha256
            done_bytes += file.size_bytes
            told(done_bytes, total_bytes)
    return found


def _sha256(file: SourceFile) -> str:
    if "".join(file.name.splitlines()) != file.name or within(file.name) != file.name:
        raise LoadError(f"{file.path!s:.200}: no line of {SUMS} can hold this name; give the file another one")
    try:
        with file.path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(f"{file.path}: {error.strerror}") from error
    file.check()
    return found


def write_sums(directory: Path, sums: Mapping[str, str]) -> Path:
    """Write SHA256SUMS into a version's directory, whole or not at all; returns where it is.

    Raises:
        LoadError: it cannot be written.
    """
    path = directory / SUMS
    part = directory / f".{SUMS}.{os.getpid()}"
    try:
        try:
            part.write_text("".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())), encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, UnicodeEncodeError) as error:
        raise LoadError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return path


def compare_aside(path: Path, said: Said) -> None:
    """Hold a file to its sum that is not part of the version's content, such as ``model.yaml``.

    Raises:
        LoadError: it is missing, or another one.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}; {said.source} has a SHA-256 for it") from error
    said.compare(path, found)
