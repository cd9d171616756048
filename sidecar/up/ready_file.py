"""The ``--ready-file`` of ``warmroute up``: what tells programs that all is warm, and where everything is."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from sidecar.up.janitor import identity, remove_exactly

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.up.announce import Places
    from sidecar.up.janitor import Identity, Janitor


class ReadyFileError(Exception):
    """The file cannot be what the command line asks for; the text is one line."""


class ReadyFile:
    """One file, ours from :meth:`write` on: what stood there before, or stands there since, is never removed."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._written: Identity | None = None

    def check(self) -> None:
        """Refuse a place where no regular file could be put, or where something else stands.

        Raises:
            ReadyFileError: a directory, a link, a device, or a directory that is missing or may not be written to.
        """
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from error
        if not stat.S_ISREG(mode):
            what = "is a directory" if stat.S_ISDIR(mode) else "exists and is not a regular file"
            raise self._refused(what)
        if not self._path.parent.is_dir():
            raise self._refused("its directory does not exist")
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise self._refused("its directory may not be written to")

    def write(self, places: Places, janitor: Janitor) -> None:
        """Write ``places`` as JSON, whole or not at all: whoever waits for the file never reads half of it.

        The janitor knows of it before it appears under its name.

        Raises:
            ReadyFileError: it cannot be written.
        """
        part = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as out:
                out.write(msgspec.json.encode(asdict(places)))
            written = identity(part)
            janitor.file(part, written)
            janitor.file(self._path, written)
            self._written = written
            part.replace(self._path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise self._refused(error.strerror or str(error)) from error

    def write_again(self, places: Places, janitor: Janitor) -> None:
        """Write other ``places``, unless somebody removed the file or put another in its place.

        Raises:
            ReadyFileError: it cannot be written.
        """
        try:
            if self._written is None or identity(self._path) != self._written:
                return
        except OSError:
            return
        self.write(places, janitor)

    def remove(self) -> None:
        """Remove it, if it is still the one that :meth:`write` put there."""
        if self._written is not None:
            remove_exactly(self._path, self._written)

    def _refused(self, why: str) -> ReadyFileError:
        return ReadyFileError(f"--ready-file {self._path}: {why}; name a file that warmroute may write and remove")
