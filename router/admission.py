"""Who waits for room, who goes next, and who is turned away: one bounded queue, pure.

Classes by rank, the highest first. Within a class tenants take turns by start-time fair queueing: a request starts at
the class's virtual time, or behind the last one of its tenant, and the lowest start goes first (Goyal, Vin, Cheng:
"Start-time Fair Queuing", SIGCOMM 1996, with requests for lengths). Where the queue is full, the youngest of the lowest
class gives way to a newcomer of a higher one, and in the same class the youngest of the tenant that has most waiting to
one of a tenant that has fewer (longest-queue drop: Suter et al., INFOCOM 1998).

Nothing here knows what waits, or for what: a shell offers, takes and withdraws. Every operation is O(log n) at most,
amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

LEARNED_AFTER: Final = 8
"""Departures, without the queue becoming empty, after which the time between them counts as known."""
GAIN: Final = 0.125
"""Weight of the last time between two departures in their moving average."""
SPARE: Final = 64
"""Stale entries of the heap of deadlines that are kept at most, beyond as many as there are live ones."""
SHARED: Final = ""
"""The tenant of requests that name none, and of those over the number of tenants that are told apart."""


class Refusal(StrEnum):
    """Why a request is not served by way of the queue: the first four reject it, the others evict it.

    New members go at the end: their order is the metrics layout.
    """

    FULL = "full"  # the queue is
    SHARE = "share"  # the queue is full, and its tenant has more in it than others
    DEADLINE = "deadline"  # its caller's time would be over, or is, before its turn comes
    SLOW = "slow"  # its turn would not come within the longest wait, as fast as it goes now
    DISPLACED = "displaced"  # one of a higher class took its place
    DISPLACED_BY_SHARE = "displaced_by_share"  # one of a tenant with less waiting took its place
    TIMEOUT = "timeout"  # the longest wait is over
    LEFT = "left"  # its caller went away, or the request ended otherwise


class Bounds:
    """What may wait at most: requests, and bytes that are kept of them."""

    __slots__ = ("bytes", "requests")

    def __init__(self, requests: int, bytes_: int) -> None:
        self.requests = requests
        self.bytes = bytes_


class Waiter:
    """One request that waits. ``item`` is the shell's; times are monotonic seconds.

    ``deadline`` is when it is evicted at the latest; ``own``: that is its caller's time, not the longest wait.
    ``bytes`` is what is kept of it while it waits.
    """

    __slots__ = ("bytes", "deadline", "item", "own", "place", "queued_at", "rank", "tenant", "waiting")

    def __init__(
        self, item: object, *, rank: int, tenant: str, bytes_: int, deadline: float, own: bool, now: float
    ) -> None:
        self.item = item
        self.rank = rank
        self.tenant = tenant
        self.bytes = bytes_
        self.deadline = deadline
        self.own = own
        self.queued_at = now
        self.waiting = False
        self.place: _Tenant | None = None  # the queue's


class Verdict:
    """What became of a newcomer: ``refusal`` is None where it waits. ``displaced`` gave way to it, each with why."""

    __slots__ = ("displaced", "refusal")

    def __init__(self, refusal: Refusal | None, displaced: list[tuple[Waiter, Refusal]]) -> None:
        self.refusal = refusal
        self.displaced = displaced


class _Tenant:
    """One tenant within a class: its requests in order, and where its next one starts (kept in the class's heap)."""

    __slots__ = ("backlog", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.backlog: OrderedDict[Waiter, None] = OrderedDict()


class _Class:
    """The requests of one rank. Each tenant that is known has exactly one entry in ``turns``: (start, order, tenant).

    A tenant without requests stays known until its start has passed, so that it does not gain by coming back.
    ``by_size`` has the tenants with requests by how many these are, ``longest`` is the largest such number.
    """

    __slots__ = ("by_size", "bytes", "competing", "longest", "tenants", "turns", "virtual", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.tenants: dict[str, _Tenant] = {}
        self.turns: list[tuple[float, int, _Tenant]] = []
        self.virtual = 0.0
        self.bytes = 0
        self.by_size: dict[int, OrderedDict[_Tenant, None]] = {}
        self.longest = 0
        self.competing = 0  # how many tenants have requests here

    def resize(self, tenant: _Tenant, before: int) -> None:
        """Note that a tenant has another number of requests than ``before``."""
        size = len(tenant.backlog)
        self.competing += (size > 0) - (before > 0)
        if before:
            same = self.by_size[before]
            del same[tenant]
            if not same:
                del self.by_size[before]
        if size:
            self.by_size.setdefault(size, OrderedDict())[tenant] = None
            if size > self.longest:
                self.longest = size
        while self.longest and self.longest not in self.by_size:
            self.longest -= 1

    def place_of(self, name: str, most_tenants: int) -> _Tenant | None:
        """Return where a newcomer of a tenant would wait: with what that has, or among those not told apart."""
        known = self.tenants.get(name)
        if known is None and len(self.tenants) >= most_tenants:
            known = self.tenants.get(SHARED)
        return known

    def youngest_of_longest(self) -> Waiter:
        """Return the last request of a tenant that has most waiting."""
        tenant = next(iter(self.by_size[self.longest]))
        return next(reversed(tenant.backlog))


class AdmissionQueue:
    """One queue. ``most_tenants``: how many are told apart in each class; the others share a turn."""

    __slots__ = (
        "_classes",
        "_deadlines",
        "_departures",
        "_interval_s",
        "_order",
        "_taken_at",
        "bytes",
        "most_tenants",
        "size",
    )

    def __init__(self, most_tenants: int = 256) -> None:
        self.most_tenants = most_tenants
        self._classes: dict[int, _Class] = {}  # those with requests
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._order = 0
        self._departures = 0  # since it was last empty
        self._interval_s = 0.0  # between these, on average
        self._taken_at = 0.0  # of the last of these
        self.bytes = 0
        self.size = 0

    def __len__(self) -> int:
        return self.size

    # --- in ------------------------------------------------------------------------------------------------------

    def offer(self, waiter: Waiter, bounds: Bounds, now: float) -> Verdict:
        """Have a request wait, or say why not. Where that takes the places of others, they are out already."""
        refusal = self._hopeless(waiter, now)
        if refusal is not None:
            return Verdict(refusal, [])
        displaced: list[tuple[Waiter, Refusal]] = []
        if self.size >= bounds.requests or self.bytes + waiter.bytes > bounds.bytes:
            refusal = self._make_room(waiter, bounds, displaced)
            if refusal is not None:
                return Verdict(refusal, displaced)
        self._enter(waiter)
        return Verdict(None, displaced)

    def _hopeless(self, waiter: Waiter, now: float) -> Refusal | None:
        """Say why a request need not wait at all: its time would be over before its turn."""
        left_s = waiter.deadline - now
        if left_s <= 0 or self.expected_wait_s(waiter.rank, waiter.tenant) > left_s:
            return Refusal.DEADLINE if waiter.own else Refusal.SLOW
        return None

    def expected_wait_s(self, rank: int, tenant: str) -> float:
        """Return how long a newcomer would wait, as fast as it goes now; 0 where that is not known."""
        if self._departures < LEARNED_AFTER:
            return 0.0
        ahead = sum(len(one.waiters) for other, one in self._classes.items() if other > rank)
        own = self._classes.get(rank)
        if own is not None:
            known = own.place_of(tenant, self.most_tenants)
            mine = 0 if known is None else len(known.backlog)
            others = own.competing - (mine > 0)
            ahead += min(len(own.waiters), mine + (mine + 1) * others)  # the others have a turn before each of mine
        return (ahead + 1) * self._interval_s

    def _make_room(self, waiter: Waiter, bounds: Bounds, displaced: list[tuple[Waiter, Refusal]]) -> Refusal | None:
        """Evict as few as it takes for a newcomer; say why it is turned away where that is not to be."""
        lower = [rank for rank in self._classes if rank < waiter.rank]
        freed = sum(self._classes[rank].bytes for rank in lower)
        if lower and self.bytes - freed + waiter.bytes <= bounds.bytes and bounds.requests > 0:
            while self.size >= bounds.requests or self.bytes + waiter.bytes > bounds.bytes:
                lowest = self._classes[min(self._classes)]
                victim = next(reversed(lowest.waiters))
                self.withdraw(victim)
                displaced.append((victim, Refusal.DISPLACED))
            return None
        own = self._classes.get(waiter.rank)
        if own is None or lower:
            return Refusal.FULL
        known = own.place_of(waiter.tenant, self.most_tenants)
        mine = 0 if known is None else len(known.backlog)
        if own.competing - (mine > 0) == 0:
            return Refusal.FULL
        if mine + 1 < own.longest:
            victim = own.youngest_of_longest()
            if self.bytes - victim.bytes + waiter.bytes <= bounds.bytes and self.size <= bounds.requests:
                self.withdraw(victim)
                displaced.append((victim, Refusal.DISPLACED_BY_SHARE))
                return None
            return Refusal.FULL
        return Refusal.SHARE if mine * own.competing > len(own.waiters) else Refusal.FULL

    def _enter(self, waiter: Waiter) -> None:
        self._order += 1
        waiter.waiting = True
        own = self._classes.get(waiter.rank)
        if own is None:
            own = self._classes[waiter.rank] = _Class()
        tenant = own.place_of(waiter.tenant, self.most_tenants)
        if tenant is None:
            name = waiter.tenant if len(own.tenants) < self.most_tenants else SHARED
            tenant = own.tenants[name] = _Tenant(name)
            heappush(own.turns, (own.virtual, self._order, tenant))
        waiter.place = tenant
        before = len(tenant.backlog)
        tenant.backlog[waiter] = None
        own.resize(tenant, before)
        own.waiters[waiter] = None
        own.bytes += waiter.bytes
        self.size += 1
        self.bytes += waiter.bytes
        if waiter.deadline < inf:
            heappush(self._deadlines, (waiter.deadline, self._order, waiter))

    # --- out -----------------------------------------------------------------------------------------------------

    def head(self) -> Waiter | None:
        """Return whose turn it is; it goes on to wait until it is taken."""
        if not self._classes:
            return None
        own = self._classes[max(self._classes)]
        turns = own.turns
        while True:
            tenant = turns[0][2]
            if tenant.backlog:
                return next(iter(tenant.backlog))
            heappop(turns)  # its start has come without a request
            del own.tenants[tenant.name]

    def take(self, waiter: Waiter, now: float) -> None:
        """Let the ``head`` go: its turn has come, and it can be served."""
        own = self._classes[waiter.rank]
        start, _, tenant = heappop(own.turns)
        own.virtual = start
        self._order += 1
        heappush(own.turns, (start + 1.0, self._order, tenant))
        if self._departures:
            interval_s = now - self._taken_at
            known = self._interval_s
            self._interval_s = known + (interval_s - known) * GAIN if self._departures > 1 else interval_s
        self._departures += 1
        self._taken_at = now
        self._remove(waiter)

    def withdraw(self, waiter: Waiter) -> bool:
        """Take a request out, wherever it stands; False where it did not wait any more."""
        if not waiter.waiting:
            return False
        self._remove(waiter)
        return True

    def _remove(self, waiter: Waiter) -> None:
        waiter.waiting = False
        own = self._classes[waiter.rank]
        tenant = waiter.place
        assert tenant is not None  # noqa: S101  it waited
        before = len(tenant.backlog)
        del tenant.backlog[waiter]
        own.resize(tenant, before)
        del own.waiters[waiter]
        own.bytes -= waiter.bytes
        self.size -= 1
        self.bytes -= waiter.bytes
        if not own.waiters:
            del self._classes[waiter.rank]
        if not self.size:
            self._departures = 0
            self._deadlines.clear()
        elif len(self._deadlines) > 2 * self.size + SPARE:
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
            heapify(self._deadlines)

    def expire(self, now: float) -> list[Waiter]:
        """Take out and return those whose time to wait is over, the earliest first."""
        out: list[Waiter] = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or not deadlines[0][2].waiting):
            waiter = heappop(deadlines)[2]
            if self.withdraw(waiter):
                out.append(waiter)
                deadlines = self._deadlines
        return out

    def next_deadline(self) -> float:
        """Return when somebody is to be evicted next; infinity where nobody is."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].waiting:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else inf

    def waiters(self) -> list[Waiter]:
        """Return all that wait, by class, the highest first, then by age."""
        return [waiter for rank in sorted(self._classes, reverse=True) for waiter in self._classes[rank].waiters]
