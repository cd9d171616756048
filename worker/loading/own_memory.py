"""What this process has mapped of a file, moved into memory of its own under whoever uses it.

The bytes are copied aside and the copy is moved to where the mapping was (mremap(2)), in one step that no reader can
see half of: addresses stay what they are, and the file may be cut or rewritten after that. They are read through
``/proc/self/mem``, which returns an error where a file was cut already, and never a signal.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BLOCK_BYTES = 16 << 20
_TRIES = 3
_MAP_FAILED = ctypes.c_void_p(-1).value
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PROT_READ, _PROT_WRITE = 1, 2
_MAPS = "/proc/self/maps"
_MEMORY = "/proc/self/mem"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if hasattr(_libc, "mremap"):  # on Linux
    _libc.mremap.restype = ctypes.c_void_p
    _libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]


class FileId(NamedTuple):
    """Which file it is, whatever it is called."""

    device: int
    inode: int


class Area(NamedTuple):
    """Where a part of a file is mapped: addresses, the end not included, and whether it may be written to there."""

    start: int
    end: int
    writable: bool

    @property
    def size_bytes(self) -> int:
        """How much of the address space it is."""
        return self.end - self.start


def mapped_areas(files: Mapping[FileId, Path]) -> dict[FileId, list[Area]]:
    """Return where this process has ``files`` mapped, without what is mapped to be executed.

    Raises:
        OSError: the kernel does not say.
    """
    found: dict[FileId, list[Area]] = {}
    inodes: dict[bytes, list[FileId]] = {}
    for file in files:
        inodes.setdefault(str(file.inode).encode(), []).append(file)
    with open(_MAPS, "rb") as table:
        rows = table.read().splitlines()
    for row in rows:
        fields = row.split(None, 5)
        if len(fields) < 6 or fields[4] not in inodes or b"x" in fields[1]:
            continue
        for file in inodes[fields[4]]:
            # Some file systems (overlayfs, btrfs) name another device here than stat(2) does.
            if fields[3] == _device(file.device) or _is_named(fields[5], files[file]):
                start, _, end = fields[0].partition(b"-")
                found.setdefault(file, []).append(Area(int(start, 16), int(end, 16), b"w" in fields[1]))
                break
    return found


def _device(number: int) -> bytes:
    return f"{os.major(number):02x}:{os.minor(number):02x}".encode()


def _is_named(shown: bytes, path: Path) -> bool:
    real = os.fsencode(os.path.realpath(path)).replace(b"\n", rb"\012")
    return shown.removesuffix(b" (deleted)") == real


def move(file: FileId, path: Path) -> int:
    """Move what is mapped of a file into memory of this process; returns how many bytes that were. Blocks.

    Nothing else may map or unmap the file meanwhile, and nothing may write to it.

    Raises:
        OSError: it cannot be read, there is no memory, or the kernel refuses; what was moved by then stays so.
    """
    moved_bytes = 0
    for _ in range(_TRIES):
        areas = mapped_areas({file: path}).get(file)
        if not areas:
            return moved_bytes
        for area in areas:
            if _move(area, file, path):
                moved_bytes += area.size_bytes
    if mapped_areas({file: path}):
        raise OSError(0, "it is mapped and unmapped all the time")
    return moved_bytes


def _move(area: Area, file: FileId, path: Path) -> bool:
    """Move one area; False where it is no more what it was once all is copied."""
    size_bytes = area.size_bytes
    copy = _libc.mmap(None, size_bytes, _PROT_READ | _PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if copy is None or copy == _MAP_FAILED:
        raise _last_error()
    try:
        _read(area.start, memoryview((ctypes.c_char * size_bytes).from_address(copy)).cast("B"))
        if not area.writable and _libc.mprotect(copy, size_bytes, _PROT_READ) != 0:
            raise _last_error()
        if area not in mapped_areas({file: path}).get(file, ()):
            return False
        moved = _libc.mremap(copy, size_bytes, size_bytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, area.start)
        if moved is None or moved == _MAP_FAILED:
            raise _last_error()
        copy = None
        return True
    finally:
        if copy is not None:
            _libc.munmap(copy, size_bytes)


def _read(address: int, into: memoryview) -> None:
    """Read what this process has at ``address``."""
    memory = os.open(_MEMORY, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(into):
            got = os.preadv(memory, [into[done : done + _BLOCK_BYTES]], address + done)
            if not got:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += got
    except OSError as error:
        if error.errno == errno.EIO:
            raise OSError(errno.EIO, "it was cut, or cannot be read from its device, before it was copied") from error
        raise
    finally:
        os.close(memory)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
