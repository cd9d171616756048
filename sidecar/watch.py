"""Notices that a file was changed, also through symbolic links: one stat(2) each time it is asked, and no thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S = 0.5
"""How often a file is looked at."""
SETTLED_S = 0.2
"""How long it must look the same before it counts as written."""

Signature = tuple[int, int, int, int] | None
"""Device, inode, size and time of change; None where there is no file."""


def signature(path: str) -> Signature:
    """Return what tells whether the file at ``path``, links followed, is still the same."""
    try:
        status = os.stat(path)  # noqa: PTH116  twice a second, for ever
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileWatch:
    """Says once of each change that it is there, as soon as the file has looked the same for ``SETTLED_S``.

    What a ConfigMap's swapped link, an editor's rename and an append have in common. ``due`` is when to look next
    (monotonic seconds, passed in).
    """

    def __init__(self, path: str, now: float, look: Callable[[str], Signature] = signature) -> None:
        self._path = path
        self._look = look
        self._known = look(path)
        self._seen = self._known
        self._settled_at = now
        self.due = now + LOOK_S

    def read(self, now: float) -> None:
        """Take what is there now as known: it is about to be read."""
        self._known = self._seen = self._look(self._path)
        self.due = now + LOOK_S

    def changed(self, now: float) -> bool:
        """Look where that is due; True where the file is another one than last said, and whole."""
        if now < self.due:
            return False
        seen = self._look(self._path)
        if seen != self._seen:
            self._seen, self._settled_at = seen, now + SETTLED_S
        if self._seen == self._known:
            self.due = now + LOOK_S
            return False
        if now < self._settled_at:
            self.due = self._settled_at
            return False
        self._known = self._seen
        self.due = now + LOOK_S
        return True
