"""Memory that is used again: pools of blocks by size, for bodies, joined inputs and outputs.

An array from here gives its block back when it and everything that shares its memory is gone, in whichever thread that
is, so nobody has to say when: a run that nobody waits for any more keeps what it reads.

Whether that is worth it depends on the size. For small arrays the C library's own pools are quicker; for large ones,
which it takes from the kernel and gives back each time, the pages' first use is saved (docs/execution.md).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.engines import Array

LEAST_BYTES: Final = 4 << 10
FIRST_BLOCKS: Final = 128
"""So many of the smallest blocks are there from the beginning."""
REFILL_BYTES: Final = 512 << 10
"""Where a size runs out, blocks of it come in batches of so many bytes; larger ones one by one."""
LARGEST_BYTES: Final = 64 << 20
"""What is larger is not kept."""
ALIGNED_BYTES: Final = 64


class _Loan(weakref.ref["Array"]):
    """Notices that an array is gone. Told apart by identity: arrays have no hash."""

    __slots__ = ("block", "free")

    block: memoryview
    free: deque[memoryview]

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Buffers:
    """Blocks of 4 KiB and its doublings. Usable from any thread."""

    def __init__(self, limit_bytes: int) -> None:
        """At most ``limit_bytes`` are held, lent ones included; beyond that arrays are made as ever."""
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        # Blocks come back wherever the last reference to an array goes, in the middle of anything, even of a refill: so
        # without a lock. A deque's append and pop are atomic.
        self._free: tuple[deque[memoryview], ...] = tuple(
            deque() for _ in range((LARGEST_BYTES // LEAST_BYTES).bit_length())
        )
        self._loans: set[_Loan] = set()
        self.unfit: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that could not write into arrays from here, and are not asked again."""
        self.held_bytes = 0
        """Of all blocks, lent or free."""
        self.hits = 0
        """Arrays whose block was there. Counted without a lock: a few may be missed."""
        self.misses = 0
        """Arrays that had blocks made, or had no room."""
        self._add(0, FIRST_BLOCKS)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array with whatever values are in its memory."""
        count = math.prod(shape)
        size_bytes = count * dtype.itemsize
        block = None if dtype.hasobject or not 0 < size_bytes <= LARGEST_BYTES else self._take(size_bytes)
        if block is None:
            return np.empty(shape, dtype)
        # Made from a memoryview, the array is what its views hold on to; made from an array, that one would be.
        array: Array = np.frombuffer(block[0], dtype, count)
        loan = _Loan(array, self._give_back)
        loan.block, loan.free = block
        self._loans.add(loan)
        return array.reshape(shape)

    def _take(self, size_bytes: int) -> tuple[memoryview, deque[memoryview]] | None:
        index = max(0, (size_bytes - 1) // LEAST_BYTES).bit_length()
        free = self._free[index]
        try:
            block = free.pop()
        except IndexError:
            self.misses += 1
            self._add(index, max(1, REFILL_BYTES // (LEAST_BYTES << index)))
            try:
                block = free.pop()
            except IndexError:
                return None
        else:
            self.hits += 1
        return block, free

    def _add(self, index: int, count: int) -> None:
        each = LEAST_BYTES << index
        with self._lock:
            count = min(count, (self._limit_bytes - self.held_bytes) // each)
            if count <= 0:
                return
            self.held_bytes += count * each
        room = np.empty(count * each + ALIGNED_BYTES, np.uint8)
        start = -room.ctypes.data % ALIGNED_BYTES
        data = room.data[start : start + count * each]
        self._free[index].extend(data[at : at + each] for at in range(0, count * each, each))

    def _give_back(self, loan: weakref.ref[Array]) -> None:
        ended = cast("_Loan", loan)
        self._loans.discard(ended)
        ended.free.append(ended.block)

    @property
    def lent(self) -> int:
        """How many arrays are in use."""
        return len(self._loans)
