"""Files mapped into memory, and what the kernel knows of which of their pages memory holds.

The calls go through the C library, which gives the interpreter's lock back while they block: :mod:`mmap` keeps it, and
mapping a file with all its pages takes seconds. Mapped memory is never read here: a file that was cut short under the
mapping would end the process with SIGBUS. The kernel brings pages in itself (``MADV_POPULATE_READ``) and returns an
error there.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from worker.loading import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.loading.version_files import SourceFile

PAGE_BYTES = mmap.PAGESIZE
IS_LINUX: bool = sys.platform == "linux"
_MADV_POPULATE_READ = 22  # Linux 5.14
_MADV_COLLAPSE = 25  # Linux 6.1
_HUGE_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAP_SHARED = 0x01
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0x0
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
_PROT_READ = 0x1
_MAP_FAILED = ctypes.c_void_p(-1).value
_SYS_CACHESTAT = 451  # Linux 6.5, the same number on every architecture
_LOW_BIT = bytes(value & 1 for value in range(256))
_HIGH_BIT = bytes(value >> 7 for value in range(256))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


@cache
def huge_bytes() -> int:
    """Return how large the kernel's huge pages are, such as 2 MiB; 0 where it has none."""
    try:
        return int(_HUGE_SIZE.read_text())
    except (OSError, ValueError):
        return 0


class _CacheStatRange(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


class Mapping:
    """One file, mapped read-only and shared with the page cache, so that engines that map it too use the same pages."""

    def __init__(self, path: Path, *, populate: bool = False, aligned: bool = False) -> None:
        """``populate``: bring all its pages in before returning (``MAP_POPULATE``).

        ``aligned``: at an address at which the kernel can map a huge page of the file as one; of a file in shared
        memory it does not choose such an address by itself.

        Raises:
            LoadError: it cannot be opened or mapped.
        """
        self.path = path
        self.size_bytes = 0
        self._address = 0
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                self.size_bytes = status.st_size
                self._told = _is_told(status, path)
                if self.size_bytes:
                    self._map(descriptor, populate=populate, aligned=aligned)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LoadError(f"{path}: cannot be mapped: {error.strerror}") from error

    def _map(self, descriptor: int, *, populate: bool, aligned: bool) -> None:
        flags = _MAP_SHARED | (_MAP_POPULATE if populate else 0)
        place = None
        if aligned and 0 < huge_bytes() <= self.size_bytes:
            place, flags = _reserved(self.size_bytes, huge_bytes()), flags | _MAP_FIXED
        address = _libc.mmap(place, self.size_bytes, _PROT_READ, flags, descriptor, 0)
        if address is None or address == _MAP_FAILED:
            error = _last_error()
            if place is not None:
                _libc.munmap(place, self.size_bytes)
            raise error
        self._address = address

    @property
    def address(self) -> int:
        """Where it is mapped; 0 where it is empty or closed."""
        return self._address

    def populate(self, offset: int, length: int) -> bool:
        """Bring ``length`` bytes from ``offset`` (a multiple of the page's size) into memory.

        Returns False where the kernel cannot be asked for it: before Linux 5.14, and elsewhere.

        Raises:
            LoadError: the pages cannot be read: the file was cut short, its device fails, or memory does not suffice.
        """
        if not length:
            return True
        if not IS_LINUX:
            return False
        while _libc.madvise(self._address + offset, length, _MADV_POPULATE_READ) != 0:
            error = _last_error()
            if error.errno == errno.EINVAL:
                return False
            if error.errno in (errno.EAGAIN, errno.EINTR):
                continue
            if error.errno == errno.EFAULT:
                raise LoadError(
                    f"{self.path}: a page within bytes {offset} to {offset + length} cannot be brought in: "
                    f"the file was cut short while it was loaded, or its device fails"
                )
            raise LoadError(f"{self.path}: cannot be brought into memory: {error.strerror}")
        return True

    def collapse(self, offset: int, length: int) -> None:
        """Have what the file has from ``offset`` on in huge pages, as far as whole ones fit into ``length`` bytes.

        Of each something must have been written; what was not is 0. The mapping must be aligned, the file's length what
        it will be.

        Raises:
            OSError: the kernel has no such pages, or does not make them of this file.
        """
        if _libc.madvise(self._address + offset, length, _MADV_COLLAPSE) != 0:
            raise _last_error()

    def missing(self) -> list[tuple[int, int]]:
        """Return the runs of pages that memory does not hold, as (offset, bytes); none where it is not told."""
        pages = self._pages()
        runs: list[tuple[int, int]] = []
        at = 0 if pages is None else pages.find(0)
        while pages is not None and at >= 0:
            end = pages.find(1, at)
            end = len(pages) if end < 0 else end
            runs.append((at * PAGE_BYTES, min((end - at) * PAGE_BYTES, self.size_bytes - at * PAGE_BYTES)))
            at = pages.find(0, end)
        return runs

    def held_pages(self) -> tuple[int, int] | None:
        """Return how many of its pages memory holds, and how many there are; None where the kernel does not say."""
        pages = self._pages()
        return None if pages is None else (pages.count(1), len(pages))

    def _pages(self) -> bytes | None:
        """Return a byte for each page, 1 where memory holds it."""
        if not self._address:
            return b""
        count = -(-self.size_bytes // PAGE_BYTES)
        if self._told:
            vector = ctypes.create_string_buffer(count)
            if _libc.mincore(self._address, self.size_bytes, vector) == 0:
                return vector.raw.translate(_LOW_BIT)
        return self._own_pages(count)

    def _own_pages(self, count: int) -> bytes | None:
        """Return the same by this process's own page table (pagemap), which lists what was brought in *here*."""
        try:
            with open("/proc/self/pagemap", "rb", buffering=0) as table:
                table.seek(self._address // PAGE_BYTES * 8)
                entries = table.read(count * 8)
        except OSError:
            return None
        return entries[7::8].translate(_HIGH_BIT) if len(entries) == count * 8 else None

    def close(self) -> None:
        """Unmap it; a second call does nothing."""
        address, self._address = self._address, 0
        if address:
            _libc.munmap(address, self.size_bytes)

    def __del__(self) -> None:
        self.close()


def _reserved(size_bytes: int, multiple: int) -> int:
    """Return an address that is a ``multiple``, from which on nothing else is mapped for that many bytes."""
    whole_bytes = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    found = _libc.mmap(None, whole_bytes + multiple, _PROT_NONE, flags, -1, 0)
    if found is None or found == _MAP_FAILED:
        raise _last_error()
    start = -(-int(found) // multiple) * multiple
    if start > found:
        _libc.munmap(found, start - found)
    if multiple > start - found:
        _libc.munmap(start + whole_bytes, multiple - (start - found))
    return start


def cached_pages(files: Sequence[SourceFile]) -> tuple[int, int] | None:
    """Return how many pages of ``files`` the page cache holds, and how many there are; None where it is not told."""
    held = pages = 0
    for file in files:
        counted = _cached_pages(file)
        if counted is None:
            return None
        held += counted[0]
        pages += counted[1]
    return held, pages


def cached_ratio(files: Sequence[SourceFile]) -> float | None:
    """Return the part of the pages of ``files`` that the page cache holds; None where it is not told."""
    counted = cached_pages(files)
    return None if counted is None else ratio(*counted)


def ratio(held: int, pages: int) -> float:
    """Return ``held`` over ``pages``; of nothing, everything is held."""
    return held / pages if pages else 1.0


def cached_in(descriptor: int, offset: int, length: int) -> bool:
    """Return whether the page cache holds something of a part of an open file; False too where it is not told."""
    found = _cachestat(descriptor, offset, length)
    return found is not None and found > 0


def _cachestat(descriptor: int, offset: int, length: int) -> int | None:
    """Return how many pages the page cache holds of ``length`` bytes (0: up to the end); None before Linux 6.5."""
    if not IS_LINUX:
        return None
    wanted, found = _CacheStatRange(offset, length), _CacheStat()
    if _libc.syscall(_SYS_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(found), 0) != 0:
        return None
    return int(found.cached)


def _cached_pages(file: SourceFile) -> tuple[int, int] | None:
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not _is_told(status, file.path):
                return None
            held = _cachestat(descriptor, 0, 0)
            if held is not None:
                return held, -(-status.st_size // PAGE_BYTES)
        finally:
            os.close(descriptor)
        mapping = Mapping(file.path)  # before Linux 6.5
    except (OSError, LoadError):
        return None
    try:
        return mapping.held_pages()
    finally:
        mapping.close()


def _is_told(status: os.stat_result, path: Path) -> bool:
    """Return whether the kernel tells this process the truth: it calls all pages of other users' files resident."""
    return status.st_uid == os.geteuid() or os.geteuid() == 0 or os.access(path, os.W_OK)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
