"""Nothing lost, nothing doubled: what callers were told, held against what workers say they executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.traffic.samples import Ended

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.traffic.samples import Sample


@dataclass(frozen=True, slots=True)
class Account:
    """Ids of requests that came to what should not be.

    ``lost``: a caller got a whole answer that no worker executed and that does not call itself degraded. ``doubled``:
    executed more than once. ``wrong``: another request's answer, or none that can be read. ``hung``: no end within its
    time. ``false_ends``: ended in order, but not whole.
    """

    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    wrong: tuple[str, ...]
    hung: tuple[str, ...]
    false_ends: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """True where there are none."""
        return not (self.lost or self.doubled or self.wrong or self.hung or self.false_ends)


def settle(samples: Iterable[Sample], executed: Mapping[str, int] | None = None) -> Account:
    """Settle an account. ``executed``: how often each request id was executed, by all workers together.

    Where it is None nothing is known of that, and ``lost`` and ``doubled`` stay empty.
    """
    found: dict[str, list[str]] = {"lost": [], "doubled": [], "wrong": [], "hung": [], "false_ends": []}
    ends = {Ended.WRONG: "wrong", Ended.TIMED_OUT: "hung", Ended.FALSE_END: "false_ends"}
    for sample in samples:
        if sample.ended in ends:
            found[ends[sample.ended]].append(sample.request_id)
        if executed is None:
            continue
        times = executed.get(sample.request_id, 0)
        if times > 1:
            found["doubled"].append(sample.request_id)
        elif not times and sample.ended is Ended.OK and "warmroute-degraded" not in sample.headers:
            found["lost"].append(sample.request_id)
    return Account(**{name: tuple(ids) for name, ids in found.items()})
