"""``mmap`` and ``populate``: the files stay mapped for as long as the model is loaded.

Pages that some process maps are the last that the kernel takes back, and the engine, which maps the same files, finds
them in place.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from worker.engines import GivenUpError
from worker.loading import LoadError
from worker.loading.digests import block_offsets
from worker.loading.full import read_files
from worker.loading.mapping import Mapping, ratio
from worker.loading.task import Brought
from worker.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from worker.loading.task import LoadTask

MARK_RATIO = 0.997
"""The part of the pages that must be resident when ``populate`` is done."""
TOUCHES = 3
"""How often what is missing is touched again before that counts as a failure."""


class Mmap:
    """Maps the files and brings nothing in: pages come when they are first used. What must be hashed is read."""

    def bring_in(self, task: LoadTask) -> Brought:
        """Map every file; see :class:`worker.loading.task.Strategy`."""
        with mapped(task) as mappings:
            brought = Brought(mappings=tuple(mappings))
            if task.wanted:
                tally = read_files(task, task.wanted_files)
                brought.digests, brought.sums = tally.digests(task.files), tally.sums
                brought.bytes_read = tally.bytes_read
        return brought


class Populate:
    """Maps the files and has the kernel bring every page in, then looks whether they are there and stayed.

    They are read first, as by ``full``, so that a processor touches every page once: on a virtual machine the host may
    back what only a device has written no sooner than that, and the engine would pay for it in its first run.
    """

    def __init__(self, mark_ratio: float = MARK_RATIO, touches: int = TOUCHES, *, must_hold: bool = True) -> None:
        """``must_hold``: fail where the mark is not reached."""
        self._must_hold = must_hold
        self._mark_ratio = mark_ratio
        self._touches = touches

    def bring_in(self, task: LoadTask) -> Brought:
        """Map, read and populate every file; see :class:`worker.loading.task.Strategy`."""
        with mapped(task) as mappings:
            tally = read_files(task, task.files)
            with task.stages.measure(Stage.PAGE_IN):
                cut = not self._populate(task, mappings)
                if not cut:
                    self._hold(mappings)
        return Brought(tally.digests(task.files), tally.sums, tally.bytes_read, tuple(mappings), cut or tally.cut)

    @staticmethod
    def _populate(task: LoadTask, mappings: list[Mapping]) -> bool:
        """Have every page brought in, block by block; False where that was cut short."""
        for at, file in enumerate(task.files):
            for offset, length in block_offsets(file.size_bytes):
                if task.cancellation.cancelled:
                    raise GivenUpError("given up while paging in")
                if task.cancellation.hastened:
                    return False
                if not mappings[at].populate(offset, length):
                    mappings[at].close()
                    mappings[at] = Mapping(file.path, populate=True)
                    break
        return True

    def _hold(self, mappings: Sequence[Mapping]) -> None:
        """Touch again what is missing until the mark is reached, a few times."""
        for _ in range(self._touches):
            if _residency(mappings) >= self._mark_ratio:
                return
            for mapping in mappings:
                for offset, length in mapping.missing():
                    mapping.populate(offset, length)
        reached = _residency(mappings)
        if reached < self._mark_ratio and self._must_hold:
            worst = min(mappings, key=lambda mapping: _residency([mapping]))
            raise LoadError(
                f"{worst.path}: {reached:.4f} of the pages are resident after {self._touches} tries, and "
                f"{self._mark_ratio} must be: memory does "
                f"not suffice; give the worker more, or load with mmap or chunked"
            )


@contextmanager
def mapped(task: LoadTask) -> Iterator[list[Mapping]]:
    """Map every file of the task, and unmap them where the ``with`` block fails.

    An error has the frames that it went through, and with them what they held, for as long as the collector lets it.
    """
    mappings: list[Mapping] = []
    try:
        with task.stages.measure(Stage.OPEN):
            for file in task.files:
                mappings.append(Mapping(file.path))
                file.check()
        yield mappings
    except BaseException:
        for mapping in mappings:
            mapping.close()
        raise


def _residency(mappings: Sequence[Mapping]) -> float:
    """Return the part of the pages that memory holds; where the kernel does not say, all that was brought in."""
    held = pages = 0
    for mapping in mappings:
        counted = mapping.held_pages()
        if counted is not None:
            held += counted[0]
            pages += counted[1]
    return ratio(held, pages)
