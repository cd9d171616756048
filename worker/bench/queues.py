"""``warmroute bench queues``: what the orders of a worker's queue do to whom, by a simulation over the real queues."""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from worker.bench.results import quantile
from worker.bench.tables import table
from worker.execution.queues import Order, Queue, Ticket, make_queue
from worker.flag_types import count, number

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS: Final = 4
RUN_S: Final = 0.01
REQUESTS: Final = 50_000
MOST_SEED: Final = 1 << 48


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who sends a ``share`` of all requests, each with that ticket."""

    name: str
    share: float
    ticket: Ticket


CALLERS: Final = (
    Caller("greedy, 80% of the requests", 0.8, Ticket(tenant="greedy")),
    Caller("modest, 10%", 0.1, Ticket(tenant="modest")),
    Caller("urgent, 10%", 0.1, Ticket(level=1, tenant="urgent")),
)


@dataclass(slots=True)
class Outcome:
    """What became of a caller's requests: how long those took that were let in, and how many were not."""

    took_s: list[float] = field(default_factory=list)
    rejected: int = 0

    @property
    def rejected_ratio(self) -> float:
        """The share of its requests that found the queue full."""
        return self.rejected / max(1, self.rejected + len(self.took_s))


@dataclass(eq=False, slots=True)
class _Call:
    caller: Caller
    came_s: float
    ticket: Ticket
    size: int = 1


def simulate(
    order: Order, load: float, queue_limit: int, requests: int, rng: random.Random, threads: int = THREADS
) -> dict[str, Outcome]:
    """Return what became of each caller's requests.

    They come by chance (Poisson) and take a time of chance (exponential, 10 ms on average) on ``threads`` threads.
    ``load``: what comes over what the threads can do; over 1 is overload.
    """
    queue: Queue[_Call] = make_queue(order, {})
    outcomes = {caller.name: Outcome() for caller in CALLERS}
    shares = [caller.share for caller in CALLERS]
    ends: list[tuple[float, int, _Call]] = []
    now, number = 0.0, 0

    def begin(call: _Call) -> None:
        nonlocal number
        number += 1
        heapq.heappush(ends, (now + rng.expovariate(1 / RUN_S), number, call))

    def end_until(until: float) -> None:
        nonlocal now
        while ends and ends[0][0] <= until:
            now, _, call = heapq.heappop(ends)
            outcomes[call.caller.name].took_s.append(now - call.came_s)
            following = queue.pop()
            if following is not None:
                begin(following)

    comes = 0.0
    for _ in range(requests):
        comes += rng.expovariate(load * threads / RUN_S)
        end_until(comes)
        now = comes
        caller = rng.choices(CALLERS, shares)[0]
        call = _Call(caller, now, caller.ticket)
        if len(ends) < threads:
            begin(call)
        elif len(queue) < queue_limit:
            queue.push(call)
        else:
            outcomes[caller.name].rejected += 1
    end_until(float("inf"))
    return outcomes


def report(load: float, queue_limit: int, requests: int, seed: int) -> str:
    """Return the table: a row for each order and caller."""
    rows = []
    for order in Order:
        outcomes = simulate(order, load, queue_limit, requests, random.Random(seed))  # noqa: S311 - a simulation
        for name, outcome in outcomes.items():
            p50, p99 = (quantile(outcome.took_s, share) * 1000 for share in (0.5, 0.99))
            rows.append([order.value, name, f"{p50:,.0f}", f"{p99:,.0f}", f"{outcome.rejected_ratio:.0%}"])
    return table(["order", "caller", "P50, ms", "P99, ms", "rejected"], rows)


def add_command(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser, by its ``add_parser``."""
    parser = add(
        "queues",
        help="simulate the orders of a worker's queue",
        description="Simulate what each order of a worker's queue does to a greedy, a modest and an urgent caller: "
        f"{THREADS} threads, runs of 10 ms on average.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--load", type=number(0.01, 10), default=1.2, metavar="X", help="what comes over what can be done (1.2)"
    )
    parser.add_argument("--queue", type=count(0, 1 << 20), default=64, metavar="N", help="requests that may wait (64)")
    parser.add_argument(
        "--requests", type=count(1000, 10_000_000), default=REQUESTS, metavar="N", help=f"in all ({REQUESTS})"
    )
    parser.add_argument("--seed", type=count(0, MOST_SEED), default=0, metavar="N", help="of what is by chance (0)")
    parser.set_defaults(command=_run)


def _run(given: argparse.Namespace) -> int:
    print(report(given.load, given.queue, given.requests, given.seed))
    return 0
