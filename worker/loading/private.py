"""A directory of this user's own in a place where everybody writes, such as /dev/shm.

What another user put there is never believed: a directory must belong to the user that this process runs as, be open to
nobody else, and be no link; its files are opened relative to it and must belong to the same user.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class UntrustedError(OSError):
    """A directory or file is there and is not this user's own; the text says what and whose."""


def own_root(place: Path) -> Path:
    """Return the directory below ``place`` that this user's workers share."""
    return place / f"warmroute-{os.geteuid()}"


class PrivateDirectory:
    """An open directory that only this user can read and write. ``path`` is for messages."""

    def __init__(self, path: Path) -> None:
        """Open it, and make it (and those above it up to the first that is there) where it is not.

        Raises:
            UntrustedError: it is another user's, open to others, or a link.
            OSError: it cannot be made or opened.
        """
        self.path = path
        _make(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check(os.fstat(self.descriptor), path)
        except OSError:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> PrivateDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Return what the file ``name`` holds, or None where there is none.

        Raises:
            UntrustedError: it is another user's, open to others, a link or longer than ``most_bytes``.
            OSError: it cannot be read.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check(status, self.path / name)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
                raise UntrustedError(f"{self.path / name}: not a file of at most {most_bytes} bytes")
            return file.read(most_bytes)

    def write(self, name: str, content: bytes) -> None:
        """Put a file there at once: who reads sees the old one or the new one, whole.

        Raises:
            OSError: there is no room, or it cannot be written.
        """
        beside = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(beside, flags, 0o600, dir_fd=self.descriptor), "wb") as file:
                file.write(content)
            os.rename(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except OSError:
            self.remove(beside)
            raise

    def remove(self, name: str) -> None:
        """Take the file ``name`` away, where it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)


def _make(path: Path) -> None:
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        with suppress(FileExistsError):  # another process was quicker; whose it is, is looked at when it is opened
            one.mkdir(0o700)


def _check(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(
            f"{path}: belongs to user {status.st_uid}, not to {os.geteuid()}, which this process runs as"
        )
    if status.st_mode & 0o077:
        raise UntrustedError(f"{path}: open to other users (mode {stat.S_IMODE(status.st_mode):o}); it must be 700")
