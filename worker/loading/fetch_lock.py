"""One process fetches a version at a time: whoever comes second waits, and finds it whole.

A file beside ``.incoming`` is locked for as long as a fetch goes on (flock(2)), so that the lock ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from worker.loading.reading import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from worker.engines import Cancellation

LOCK = ".incoming.lock"


@contextlib.contextmanager
def fetching_alone(directory: Path, cancellation: Cancellation, waits: Callable[[], None]) -> Iterator[None]:
    """Be the only one that fetches what belongs in ``directory``; ``waits`` is called once where another does. Blocks.

    Raises:
        GivenUpError: ``cancellation`` said so.
        OSError: nothing can be written or locked there.
    """
    descriptor = _locked(directory / LOCK, cancellation, waits)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (directory / LOCK).unlink()  # while it is locked: whoever waits for it finds that it is gone
        os.close(descriptor)


def _locked(path: Path, cancellation: Cancellation, waits: Callable[[], None]) -> int:
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            while not _lock(descriptor, path):
                if not told:
                    told = True
                    waits()
                cancellation.wait(LOOK_S)
            if _is_there(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return True


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether what was locked is what others would lock, and not one that its last holder took away."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(descriptor))
