"""A trace cut into blocks, each sent to both targets, and what each block came to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from sidecar.traffic.samples import Ended
from sidecar.traffic.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sidecar.traffic.requests import Timed


_ANSWERED: Final = (
    Ended.OK,
    Ended.STATUS_4XX,
    Ended.STATUS_5XX,
    Ended.GRPC_STATUS,
    Ended.FALSE_END,
    Ended.HUNG_UP,
)


@dataclass(slots=True)
class Block:
    """What one block came to at one target.

    ``cpu_s``: of the target's processes, None where none were named. ``ended``: those of them that were gone after it.
    """

    summary: Summary = field(default_factory=Summary)
    cpu_s: float | None = None
    ended: tuple[int, ...] = ()

    @property
    def silent(self) -> bool:
        """True where nothing at all was answered: the target was not there, or answers nobody."""
        ends = self.summary.ends
        return bool(ends) and not any(ends[end] for end in _ANSWERED)


def cut(requests: Iterable[Timed], count: int, blocks: int) -> Iterator[list[Timed]]:
    """Yield ``blocks`` runs of ``count`` requests, as even as they can be; each begins at 0 with its own spacing."""
    source = iter(requests)
    for number in range(blocks):
        size = count * (number + 1) // blocks - count * number // blocks
        block = list(islice(source, size))
        if block:
            began_s = block[0].at_s
            yield [replace(request, at_s=request.at_s - began_s) for request in block]


def order(number: int) -> tuple[int, int]:
    """Return which target comes first in a block: A B, B A, A B, ..., so that what drifts meets both alike."""
    return (0, 1) if number % 2 == 0 else (1, 0)


def total(blocks: Sequence[Block]) -> Summary:
    """Return all of one target's blocks together."""
    whole = Summary()
    for block in blocks:
        one = block.summary
        whole.latencies_s += one.latencies_s
        whole.first_bytes_s += one.first_bytes_s
        whole.lags_s += one.lags_s
        whole.ends += one.ends
        whole.errors += one.errors
        whole.reasons = {**one.reasons, **whole.reasons}
        whole.new_failures += one.new_failures
        whole.degraded += one.degraded
        whole.last_end_s += one.last_end_s
    return whole
