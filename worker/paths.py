"""Names of files within a version's directory."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILES = 10_000
"""In one version's directory."""


PACKED = (".gz", ".zst")
"""What the names of files end with that are unpacked as they are loaded."""


def within(path: str) -> str | None:
    """Return ``path`` without a leading ``./``, or None where it is not a relative path that stays in its directory."""
    plain = path.removeprefix("./")
    return None if any(part in ("", ".", "..") for part in plain.split("/")) else plain


class NotAFileError(OSError):
    """Where a file may be, there is something else, which must not pass for none."""


def has_file(path: Path) -> bool:
    """Return whether there is a file.

    Raises:
        NotAFileError: there is a directory, a pipe, a device, or a link to nothing.
        OSError: it cannot be looked at.
    """
    if path.is_file():
        return True
    if path.is_symlink() or path.exists():
        text = "there, and no file; put the file in its place, or take it away"
        raise NotAFileError(errno.EINVAL, text, str(path))
    return False
