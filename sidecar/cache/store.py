"""The kept answers of one model in one process, bounded in number and bytes.

What is kept while all is well is what is asked again, so an answer counts as used when the same request is answered
once more; reading, which happens in bad times only, changes nothing. Who goes first: new answers wait in a small queue
and come into the large one only if they were asked for again, or were here not long ago (S3-FIFO; decision 0022 has the
measurements against LRU).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.cache.keeping import Kept

SMALL_PARTS: Final = 10
"""New answers have one part in so many of all bytes to wait in before anything that was asked again has to go."""
MOST_USES: Final = 3
SWEPT_AT_ONCE: Final = 2048
"""So many answers are looked at once a second for those that are too old: half a millisecond."""
YOUNG_PARTS: Final = 10
"""An answer is replaced by a newer one to its request once it has been here for one part in so many of its time."""


class _Place:
    __slots__ = ("kept", "uses")

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.uses = 0


class Answers:
    """Kept answers by key, which tells tenants and everything else apart. ``evicted`` counts those that had to go."""

    __slots__ = ("_bytes", "_gone", "_large", "_most", "_most_bytes", "_small", "_small_bytes", "_unswept", "evicted")

    def __init__(self, entries: int, bytes_: int) -> None:
        self._most = entries
        self._most_bytes = bytes_
        self._small: OrderedDict[bytes, _Place] = OrderedDict()
        self._large: OrderedDict[bytes, _Place] = OrderedDict()
        self._gone: OrderedDict[bytes, None] = OrderedDict()  # keys alone, of what left the small queue
        self._bytes = 0
        self._small_bytes = 0
        self._unswept: list[bytes] = []  # keys that are yet to be looked at for their age
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    @property
    def kept_bytes(self) -> int:
        """What all of them take."""
        return self._bytes

    def resize(self, entries: int, bytes_: int) -> None:
        """Go by other bounds from now on."""
        self._most, self._most_bytes = entries, bytes_
        self._shrink()

    def find(self, key: bytes, now: float) -> Kept | None:
        """Return what is kept under a key and may still be told. Nothing changes by it."""
        place = self._small.get(key) or self._large.get(key)
        return place.kept if place is not None and place.kept.fresh(now) else None

    def renews(self, key: bytes, now: float) -> bool:
        """Note that a request was answered once more; False where what is kept for it is young enough to stay."""
        place = self._small.get(key) or self._large.get(key)
        if place is None or now - place.kept.stored_at >= place.kept.ttl_s / YOUNG_PARTS:
            return True
        place.uses = min(MOST_USES, place.uses + 1)
        return False

    def keep(self, key: bytes, kept: Kept) -> bool:
        """Keep an answer, in the place of one with that key; False where it is larger than all that may be kept."""
        size = kept.size_bytes
        if size > self._most_bytes:
            self.drop(key)
            return False
        small = key in self._small
        place = self._small.get(key) or self._large.get(key)
        if place is not None:
            change = size - place.kept.size_bytes
            place.kept = kept
            place.uses = min(MOST_USES, place.uses + 1)
            self._bytes += change
            self._small_bytes += change if small else 0
        elif key in self._gone:
            del self._gone[key]
            self._large[key] = _Place(kept)
            self._bytes += size
        else:
            self._small[key] = _Place(kept)
            self._bytes += size
            self._small_bytes += size
        self._shrink()
        return True

    def drop(self, key: bytes) -> None:
        """Forget what is kept under a key."""
        place = self._small.pop(key, None)
        if place is not None:
            self._small_bytes -= place.kept.size_bytes
        else:
            place = self._large.pop(key, None)
        if place is not None:
            self._bytes -= place.kept.size_bytes

    def clear(self) -> None:
        """Forget everything."""
        self._small.clear()
        self._large.clear()
        self._gone.clear()
        self._bytes = self._small_bytes = 0

    def shed(self) -> None:
        """Give back a quarter of what is kept, because memory is short."""
        self._shrink_to(self._most, self._bytes - self._bytes // 4)
        self._gone.clear()

    def expire(self, now: float) -> None:
        """Forget what may not be told any more, of as many answers as one call should look at; later ones go on."""
        if not self._unswept:
            self._unswept = [*self._small, *self._large]
        part = self._unswept[-SWEPT_AT_ONCE:]
        del self._unswept[-SWEPT_AT_ONCE:]
        for key in part:
            place = self._small.get(key) or self._large.get(key)
            if place is not None and not place.kept.fresh(now):
                self.drop(key)

    def _shrink(self) -> None:
        self._shrink_to(self._most, self._most_bytes)

    def _shrink_to(self, entries: int, bytes_: int) -> None:
        while len(self) > entries or self._bytes > bytes_:
            small = self._small
            if small and (not self._large or self._over_its_part(entries)):
                key, place = small.popitem(last=False)
                self._small_bytes -= place.kept.size_bytes
                if place.uses:
                    place.uses = 0
                    self._large[key] = place
                    continue
                self._gone[key] = None
                if len(self._gone) > self._most:
                    self._gone.popitem(last=False)
            else:
                key, place = self._large.popitem(last=False)
                if place.uses:
                    place.uses -= 1
                    self._large[key] = place
                    continue
            self._bytes -= place.kept.size_bytes
            self.evicted += 1

    def _over_its_part(self, entries: int) -> bool:
        return len(self._small) * SMALL_PARTS >= entries or self._small_bytes * SMALL_PARTS >= self._most_bytes
