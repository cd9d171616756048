"""Endpoints that names stand for: looked up again and again by the control process, last good answer kept.

What is found goes where the configuration's own endpoints go, and is probed like them (``StaticSource``); this source
says when all has been found out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from sidecar.config.addresses import server_place
from sidecar.discovery.planned import StaticEndpoint, StaticReplica, merged_endpoints
from sidecar.settings import DnsType
from sidecar.state.memory import KnownName
from sidecar.telemetry.logs import Throttle, get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.discovery.source import Emit
    from sidecar.settings import Dns, DnsServers, Probe, Settings

DNS_PORT: Final = 53
LEAST_REFRESH_S: Final = 1.0
"""However short a TTL is, nobody is asked more often."""
JITTER: Final = 0.1
RETRY_S: Final = 1.0
"""After a lookup that failed; doubling up to the time between two lookups."""

_log = get_log("dns")

Name = tuple[str, DnsType]
"""What is looked up."""


class DnsError(Exception):
    """Nobody could say what a name stands for; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a name stands for: (address, port) in order; 0 where the name has no port. ``ttl_s`` is the shortest one's.

    ``passed_over``: how many there were over the bound, or without a port. ``unknown``: of addresses of these versions
    of IP (4, 6) nobody could say whether there are any.
    """

    places: tuple[tuple[str, int], ...]
    ttl_s: float
    passed_over: int = 0
    unknown: tuple[int, ...] = ()


class Asking(Protocol):
    """Looks names up (``sidecar.discovery.lookups``)."""

    async def addresses(self, name: str) -> Answer:
        """Return the addresses of a name."""

    async def services(self, name: str) -> Answer:
        """Return where a service is."""


@dataclass(frozen=True, slots=True)
class DnsPlan:
    """What one model has looked up."""

    model: str
    dns: Dns
    probe: Probe | None

    @property
    def name(self) -> Name:
        """What is looked up."""
        return self.dns.name.lower().rstrip("."), self.dns.type


def dns_plans(settings: Settings) -> tuple[DnsPlan, ...]:
    """Return what ``settings`` has looked up."""
    return tuple(DnsPlan(model.name, model.dns, model.probe) for model in settings.models if model.dns is not None)


class Followed:
    """What is known of one name. ``places`` is the last good answer, None before the first; ``good_at`` its time."""

    def __init__(self) -> None:
        self.places: tuple[tuple[str, int], ...] | None = None
        self.good_at = -inf
        self.empty_since: float | None = None
        self.tried = False
        self.failure = ""
        self.failures_running = 0
        self.found_total = 0
        self.empty_total = 0
        self.failed_total = 0
        self.passed_over = 0
        self.seconds_total = 0.0
        self.failed_throttle = Throttle(60.0)
        self.empty_throttle = Throttle(60.0)


class DnsSource:
    """Looks up the names of the configuration.

    Args:
        plans: what to look up.
        servers: who is asked.
        make: makes what asks them; raises ``DnsError`` where there is nobody to ask.
        take: takes all endpoints whenever they are others.
        clock: monotonic seconds; ``rng`` spreads lookups.
        first_s: the longest time that first answers are waited for.
        recalled: what names stood for before this process.
    """

    name = "dns"

    def __init__(
        self,
        plans: tuple[DnsPlan, ...],
        servers: DnsServers,
        make: Callable[[DnsServers], Asking],
        take: Callable[[], None],
        *,
        clock: Callable[[], float],
        rng: Callable[[], float],
        first_s: float,
        recalled: tuple[KnownName, ...] = (),
    ) -> None:
        self._plans = plans
        self._servers = servers
        self._make = make
        self._asking: Asking | None = None
        self._take = take
        self._clock = clock
        self._rng = rng
        self._first_s = first_s
        self._began_at = clock()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[Name, asyncio.Task[None]] = {}
        self.followed: dict[Name, Followed] = {plan.name: Followed() for plan in plans}
        for known in recalled:
            followed = self.followed.get((known.name, DnsType(known.type)))
            if followed is not None:
                followed.places = known.places
        self.endpoints: tuple[StaticEndpoint, ...] = ()
        self._combine()

    @property
    def tried(self) -> bool:
        """Whether each name was looked up once, or that takes too long."""
        return (
            all(followed.tried for followed in self.followed.values())
            or self._clock() - self._began_at >= self._first_s
        )

    @property
    def complete(self) -> bool:
        """Whether each name has said what it stands for: a name that never answered may stand for anything."""
        return all(followed.places is not None for followed in self.followed.values())

    async def run(self, emit: Emit) -> None:
        """Look names up until cancelled."""
        self._began_at = self._clock()
        async with asyncio.TaskGroup() as self._tasks:
            self._follow_all()
            self._tasks.create_task(asyncio.Event().wait(), name="dns-forever")

    def configure(self, plans: tuple[DnsPlan, ...], servers: DnsServers) -> None:
        """Go by another configuration. What is known of a name stays; who must take the endpoints is the caller."""
        self._plans = plans
        if servers != self._servers:
            self._servers = servers
            self._asking = None
        wanted = {plan.name for plan in plans}
        self.followed = {name: self.followed.get(name) or Followed() for name in sorted(wanted)}
        for name in self._running.keys() - wanted:
            self._running.pop(name).cancel()
        self._combine()
        if self._tasks is not None:
            self._follow_all()

    def known(self) -> tuple[KnownName, ...]:
        """Return what the names stand for, for a process that comes after this one."""
        return tuple(
            KnownName(name, kind.value, followed.places)
            for (name, kind), followed in self.followed.items()
            if followed.places
        )

    def _follow_all(self) -> None:
        if self._tasks is None:
            return
        for name in self.followed:
            if name not in self._running:
                self._running[name] = self._tasks.create_task(self._follow(name), name=f"dns-{name[0]}")

    async def _follow(self, name: Name) -> None:
        while True:
            ttl_s = await self.look_up(name)
            followed = self.followed[name]
            most = min(plan.dns.refresh_s for plan in self._plans if plan.name == name)
            wait_s = max(LEAST_REFRESH_S, min(most, ttl_s))
            if followed.failures_running:
                wait_s = min(most, RETRY_S * 2 ** min(followed.failures_running - 1, 16))
            await asyncio.sleep(wait_s * (1.0 - JITTER * self._rng()))

    async def look_up(self, name: Name) -> float:
        """Look a name up once; return for how long the answer holds, seconds."""
        followed = self.followed[name]
        began = self._clock()
        try:
            if self._asking is None:
                self._asking = self._make(self._servers)
            text, kind = name
            answer = await (self._asking.services(text) if kind is DnsType.SRV else self._asking.addresses(text))
        except DnsError as error:
            self._failed(name, followed, str(error))
            return inf
        finally:
            followed.tried = True
            followed.seconds_total += self._clock() - began
        followed.failures_running = 0
        followed.failure = ""
        followed.passed_over = answer.passed_over
        if answer.places:
            followed.found_total += 1
            followed.empty_since = None
            followed.good_at = self._clock()
            kept = [place for place in followed.places or () if version_of(place[0]) in answer.unknown]
            if kept:
                followed.failure = f"nobody knows of {', '.join(f'IPv{one}' for one in answer.unknown)}: those are kept"
            self._found(name, followed, tuple(dict.fromkeys((*answer.places, *kept))))
        else:
            self._empty(name, followed)
        return answer.ttl_s

    def _failed(self, name: Name, followed: Followed, why: str) -> None:
        followed.failed_total += 1
        followed.failures_running += 1
        followed.failure = why
        held_back = followed.failed_throttle.admit(self._clock())
        if held_back is not None:
            _log.warning("dns.failed", name=name[0], why=why, kept=len(followed.places or ()), held_back=held_back)

    def _empty(self, name: Name, followed: Followed) -> None:
        """The name is said to have nothing: that may well be an error of whoever says so."""
        now = self._clock()
        followed.empty_total += 1
        followed.failure = "the name has no such records"
        if followed.empty_since is None:
            followed.empty_since = now
        if not followed.places:
            followed.places = ()
            return
        kept = [plan.dns.keep_empty_s for plan in self._plans if plan.name == name]
        if all(keep_s is not None and now - followed.empty_since >= keep_s for keep_s in kept):
            self._found(name, followed, ())
            return
        held_back = followed.empty_throttle.admit(now)
        if held_back is not None:
            _log.warning("dns.empty", name=name[0], kept=len(followed.places), held_back=held_back)

    def _found(self, name: Name, followed: Followed, places: tuple[tuple[str, int], ...]) -> None:
        before, followed.places = followed.places, places
        if before == places:
            return
        new, gone = set(places) - set(before or ()), set(before or ()) - set(places)
        _log.info("dns.changed", name=name[0], endpoints=len(places), new=_shown(new), gone=_shown(gone))
        self._combine()
        self._take()

    def _combine(self) -> None:
        held: list[tuple[str, StaticReplica]] = []
        for plan in self._plans:
            for host, port in self.followed[plan.name].places or ():
                place = f"[{host}]" if ":" in host else host
                url = f"{plan.dns.scheme.value}://{place}:{port or plan.dns.port}"
                held.append((url, StaticReplica(plan.model, "", plan.probe)))
        self.endpoints = merged_endpoints(held)


def lookups_of(servers: DnsServers) -> Asking:
    """Return what asks name servers. It is loaded here, where somebody is to be asked: it takes time and memory."""
    from sidecar.discovery.lookups import Lookups

    places = tuple((host, port or DNS_PORT) for host, port in map(server_place, servers.servers))
    return Lookups(places, servers.timeout_s)


def version_of(address: str) -> int:
    """Return the version of IP that an address is of."""
    return 6 if ":" in address else 4


def _shown(places: set[tuple[str, int]]) -> Sequence[str]:
    return [f"{host} {port}" if port else host for host, port in sorted(places)[:16]]


def without_twins(
    configured: tuple[StaticEndpoint, ...], found: tuple[StaticEndpoint, ...]
) -> tuple[StaticEndpoint, ...]:
    """Return both, the configured ones first; what has the id of one of those is it, and not listed again."""
    ids = {endpoint.id for endpoint in configured}
    return configured + tuple(endpoint for endpoint in found if endpoint.id not in ids)
