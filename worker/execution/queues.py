"""Who is next: the orders in which calls that wait for a thread get one. Pure; the caller locks.

``fifo``
    As they came. Everybody waits as long; one caller who sends much makes all others wait for it.
``priority``
    The lowest level first, those of one level as they came. Urgent calls hardly wait; under overload the last level
    gets what the others leave, which may be nothing.
``fair``
    By turns between tenants, in the ratio of their weights (start-time fair queueing). Whoever sends more than its
    share waits longer, and nobody else does; nobody starves.

All take a call, give the next one and drop one in constant time; ``fair`` in the logarithm of the tenants that wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

LEVELS: Final = 10
"""Priorities go from 1, the most urgent, to this."""
DEFAULT_LEVEL: Final = 5
MAX_TENANTS: Final = 1024
"""Tenants that wait at once and are told apart; all others share one turn."""
MAX_WEIGHT: Final = 1000.0
_BACKGROUND: Final = "\0background"
_OTHERS: Final = "\0others"


class Order(StrEnum):
    """Which queue calls wait in."""

    FIFO = "fifo"
    PRIORITY = "priority"
    FAIR = "fair"


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a call may ask of the queue. ``deadline``: monotonic seconds, after which nobody wants its answer.

    ``background``: nobody waits for it, so that it goes behind everybody else where there is an order.
    """

    level: int = DEFAULT_LEVEL
    tenant: str = ""
    deadline: float | None = None
    background: bool = False


DEFAULT_TICKET: Final = Ticket()


class Waits(Protocol):
    """What waits. ``size``: how many requests it stands for, counted when it gets its turn."""

    @property
    def ticket(self) -> Ticket:
        """What it asks of the queue; stays the same while it waits."""

    @property
    def size(self) -> int:
        """See the class."""


T = TypeVar("T", bound=Waits)


class Queue(Protocol[T]):
    """Calls that wait."""

    def push(self, call: T) -> None:
        """Take ``call`` in."""

    def pop(self) -> T | None:
        """Return the next call, which waits no longer; None where none waits."""

    def remove(self, call: T) -> bool:
        """Have ``call`` wait no longer; False where it did not."""

    def rank(self, ticket: Ticket) -> Hashable:
        """Return what is equal for calls between which only the time of arrival decides."""

    def __len__(self) -> int:
        """Return how many wait."""


class Fifo(Generic[T]):
    """See this module's text."""

    def __init__(self) -> None:
        self._calls: OrderedDict[T, None] = OrderedDict()

    def push(self, call: T) -> None:
        """See :class:`Queue`."""
        self._calls[call] = None

    def pop(self) -> T | None:
        """See :class:`Queue`."""
        for call in self._calls:
            del self._calls[call]  # and no popitem(), which may find no memory for its answer once it has taken it
            return call
        return None

    def remove(self, call: T) -> bool:
        """See :class:`Queue`."""
        if call not in self._calls:
            return False
        del self._calls[call]
        return True

    def rank(self, ticket: Ticket) -> Hashable:
        """See :class:`Queue`; the background is kept apart, because its waits are not counted."""
        return ticket.background

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._calls)


class ByPriority(Generic[T]):
    """See this module's text."""

    def __init__(self) -> None:
        self._levels: tuple[OrderedDict[T, None], ...] = tuple(OrderedDict() for _ in range(LEVELS + 1))
        self._count = 0

    def push(self, call: T) -> None:
        """See :class:`Queue`."""
        self._levels[_level(call.ticket)][call] = None
        self._count += 1

    def pop(self) -> T | None:
        """See :class:`Queue`."""
        for level in self._levels if self._count else ():
            for call in level:
                del level[call]
                self._count -= 1
                return call
        return None

    def remove(self, call: T) -> bool:
        """See :class:`Queue`."""
        level = self._levels[_level(call.ticket)]
        if call not in level:
            return False
        del level[call]
        self._count -= 1
        return True

    def rank(self, ticket: Ticket) -> Hashable:
        """See :class:`Queue`."""
        return _level(ticket)

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count


def _level(ticket: Ticket) -> int:
    return LEVELS if ticket.background else min(max(ticket.level, 1), LEVELS) - 1


class _Tenant(Generic[T]):
    __slots__ = ("calls", "finish", "name", "start", "turn", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.calls: OrderedDict[T, None] = OrderedDict()
        self.start = 0.0
        self.finish = 0.0
        self.turn = -1  # of its entry in the heap that counts; -1: none does


class Fair(Generic[T]):
    """See this module's text.

    The virtual clock stands where the tenant began that had the last turn. A tenant's turn comes when the clock gets to
    its start, and moves its next one on by what it was given over its weight. When nobody waits, all is forgotten.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """``weights``: by tenant, more than 0; those that are not in it have 1."""
        self._weights = dict(weights)
        self._tenants: dict[str, _Tenant[T]] = {}
        self._turns: list[tuple[float, int, _Tenant[T]]] = []
        self._places: dict[T, _Tenant[T]] = {}
        self._clock = 0.0
        self._turn = 0

    def push(self, call: T) -> None:
        """See :class:`Queue`."""
        tenant = self._tenant(self._name(call.ticket))
        tenant.calls[call] = None
        self._places[call] = tenant
        if len(tenant.calls) == 1:
            self._line_up(tenant)

    def _name(self, ticket: Ticket) -> str:
        return _BACKGROUND if ticket.background else ticket.tenant

    def _tenant(self, name: str) -> _Tenant[T]:
        tenant = self._tenants.get(name)
        if tenant is not None:
            return tenant
        if len(self._tenants) >= MAX_TENANTS:
            self._forget()
        if len(self._tenants) >= MAX_TENANTS:
            name = _OTHERS
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, self._weights.get(name, 1.0))
        return tenant

    def _forget(self) -> None:
        """Forget the tenants of which nothing waits and that owe nothing."""
        for name in [name for name, one in self._tenants.items() if not one.calls and one.finish <= self._clock]:
            del self._tenants[name]

    def _line_up(self, tenant: _Tenant[T]) -> None:
        tenant.start = max(self._clock, tenant.finish)
        tenant.turn = self._turn
        heapq.heappush(self._turns, (tenant.start, self._turn, tenant))
        self._turn += 1

    def pop(self) -> T | None:
        """See :class:`Queue`."""
        while self._turns:
            start, turn, tenant = heapq.heappop(self._turns)
            if turn != tenant.turn:
                continue  # what was to have this turn left
            tenant.turn = -1
            self._clock = start
            call = tenant.calls.popitem(last=False)[0]
            del self._places[call]
            tenant.finish = start + max(1, call.size) / tenant.weight
            if tenant.calls:
                self._line_up(tenant)
            self._forget_all_where_none_wait()
            return call
        return None

    def remove(self, call: T) -> bool:
        """See :class:`Queue`."""
        tenant = self._places.pop(call, None)
        if tenant is None:
            return False
        del tenant.calls[call]
        if not tenant.calls:
            tenant.turn = -1
            if len(self._turns) > 2 * len(self._places) + MAX_TENANTS:
                self._turns = [entry for entry in self._turns if entry[1] == entry[2].turn]
                heapq.heapify(self._turns)
        self._forget_all_where_none_wait()
        return True

    def _forget_all_where_none_wait(self) -> None:
        if not self._places:
            self._tenants.clear()
            self._turns.clear()
            self._clock = 0.0

    def rank(self, ticket: Ticket) -> Hashable:
        """See :class:`Queue`."""
        return self._name(ticket)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._places)


def make_queue(order: Order, weights: Mapping[str, float]) -> Queue[T]:
    """Return an empty queue of that ``order``; ``weights`` are those of tenants, for ``fair``."""
    match order:
        case Order.FIFO:
            return Fifo()
        case Order.PRIORITY:
            return ByPriority()
        case Order.FAIR:
            return Fair(weights)
