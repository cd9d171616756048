"""Copies in shared memory that have huge pages: each is made before it is written to.

A file of tmpfs has pages of 4 KiB where its mount does not say otherwise (``huge=``), and whoever maps it pays for each
of them at its first use. Linux makes one huge page (2 MiB) of a part of a file when it is asked to (``MADV_COLLAPSE``,
6.1), whatever the system's settings are (but ``deny``). Asked while there is one byte in that part it has nearly
nothing to copy, and writing into a large page is quicker than making hundreds of small ones.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from worker.loading import LoadError
from worker.loading.digests import BLOCK_BYTES
from worker.loading.mapping import IS_LINUX, Mapping, huge_bytes
from worker.loading.reading import write_all

if TYPE_CHECKING:
    from collections.abc import Callable


class Copy:
    """A file that blocks of another are written to, in any order and by several threads. :meth:`close` closes it."""

    def __init__(
        self,
        descriptor: int,
        size_bytes: int,
        what: str,
        small: Callable[[str], None] = lambda _: None,
        collapse: Callable[[Mapping, int, int], None] = Mapping.collapse,
    ) -> None:
        """``descriptor``: of the empty file, to read and write. ``size_bytes``: what will be in it.

        ``what``: what errors call it. ``small`` is told, once, why it has pages of the usual size.
        """
        self.descriptor = descriptor
        self._what = what
        self._small = small
        self._collapse = collapse
        self._mapping: Mapping | None = None
        page_bytes = huge_bytes()
        if not IS_LINUX or not page_bytes or BLOCK_BYTES % page_bytes or size_bytes < page_bytes:
            return
        try:
            os.ftruncate(descriptor, size_bytes)
            self._mapping = Mapping(Path(f"/proc/self/fd/{descriptor}"), aligned=True)
        except (OSError, LoadError) as error:
            small(str(error))

    def begin(self, offset: int, length: int) -> None:
        """Make the pages of a block that is written next; ``offset`` is a multiple of a block's size.

        Raises:
            NoRoomError, LoadError: as :func:`worker.loading.reading.write_all`.
        """
        mapping = self._mapping
        if mapping is None:
            return
        page_bytes = huge_bytes()
        whole_bytes = length // page_bytes * page_bytes
        for at in range(offset, offset + whole_bytes, page_bytes):
            write_all(self.descriptor, _BYTE, at, self._what)
        try:
            if whole_bytes:
                self._collapse(mapping, offset, whole_bytes)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return  # in passing: something else looked at the page; the next block has its own chance
            self._mapping = None  # which others may be using: closed with its last user
            self._small(error.strerror or str(error))

    def write(self, data: memoryview, at: int) -> None:
        """Write all of ``data``.

        Raises:
            NoRoomError, LoadError: as :func:`worker.loading.reading.write_all`.
        """
        write_all(self.descriptor, data, at, self._what)

    def close(self) -> None:
        """Close the file."""
        self._mapping = None
        os.close(self.descriptor)


_BYTE = memoryview(b"\0")
