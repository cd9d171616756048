"""What a start takes, stage by stage: measured on every real start, and told in its events and metrics."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Stage(StrEnum):
    """The stages, in the order in which a start comes to them."""

    IMPORTS = "imports"  # interpreter and imports, the engine's included; of a process's first start only
    FETCH = "fetch"  # from a store or a peer
    DECOMPRESS = "decompress"
    OPEN = "open"  # open and map the files
    PAGE_IN = "page_in"
    CHECKSUM = "checksum"
    CONFIGURE = "configure"  # the session's configuration: operator scan, graph options
    DEVICE = "device"  # the device's context
    CREATE = "create"  # session creation
    TRANSFER = "transfer"  # host to device
    WARM_UP = "warm_up"  # the runs that prove it
    FIRST_ANSWER = "first_answer"  # the first run for a caller, whenever that comes


class Stages:
    """How many seconds each stage of one start took, summed where it came more than once. Usable from any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[Stage, float] = {}

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Add what the ``with`` block takes to ``stage``, also where it ends in an error."""
        began = self._clock()
        try:
            yield
        finally:
            self.add(stage, self._clock() - began)

    def add(self, stage: Stage, seconds: float) -> None:
        """Add what was measured elsewhere."""
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def seconds(self) -> Mapping[Stage, float]:
        """Return a copy of what was measured so far, in the order of :class:`Stage`."""
        with self._lock:
            return {stage: self._seconds[stage] for stage in Stage if stage in self._seconds}
