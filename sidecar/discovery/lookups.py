"""What names stand for, by asking name servers (RFC 1035; SRV: RFC 2782). Imported where names are to be looked up.

SRV: of the records that say where the service is, only those of the lowest priority count, whatever their weights: how
much each endpoint gets is the router's to say. A target of "." says that there is none. A record with port 0 says
nothing: it is passed over, and an answer of such alone is none.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.rdatatype
import dns.resolver

from sidecar.discovery.dns import Answer, DnsError

MOST_ENDPOINTS = 1024
"""Of one name; what is listed beyond that, in order of address, is passed over and counted."""
MOST_TARGETS = 256
"""SRV targets of one name whose addresses are looked up."""
NOWHERE = "."
"""The SRV target of a service that is decidedly not there."""


class Lookups:
    """Asks ``servers`` (IP, port), those of /etc/resolv.conf where there are none; one lookup takes ``timeout_s``."""

    def __init__(self, servers: tuple[tuple[str, int], ...], timeout_s: float) -> None:
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=not servers)
        except dns.exception.DNSException as error:  # no resolv.conf, or an empty one
            raise DnsError(f"/etc/resolv.conf: {error}; set dns.servers") from error
        if servers:
            self._resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in servers]
        self._timeout_s = timeout_s

    async def addresses(self, name: str) -> Answer:
        """Return the addresses of a name, IPv4 first; none where it is said to have none.

        Raises:
            DnsError: nobody said anything of use.
        """
        both = await asyncio.gather(
            self._ask(name, dns.rdatatype.A), self._ask(name, dns.rdatatype.AAAA), return_exceptions=True
        )
        found: set[str] = set()
        ttl_s = float("inf")
        failed: BaseException | None = None
        unknown: list[int] = []
        for version, answer in zip((4, 6), both, strict=True):
            if isinstance(answer, BaseException):
                failed = answer
                unknown.append(version)
            elif answer is not None and answer.rrset is not None:
                found.update(record.address for record in answer.rrset)
                ttl_s = min(ttl_s, answer.rrset.ttl)
        if failed is not None and not found:  # some servers fail where they know of no IPv6
            raise failed
        return replace(_answer({(address, 0) for address in found}, ttl_s), unknown=tuple(unknown))

    async def services(self, name: str) -> Answer:
        """Return where a service is that a name's SRV records list.

        Raises:
            DnsError: nobody said anything of use, or not of every target.
        """
        answer = await self._ask(name, dns.rdatatype.SRV)
        if answer is None or answer.rrset is None:
            return Answer((), float("inf"))
        records = [record for record in answer.rrset if record.port or record.target.to_text() == NOWHERE]
        if not records:
            raise DnsError("an SRV record with port 0, where nobody can be")
        best = min(record.priority for record in records)
        targets = sorted({(record.target.to_text(), record.port) for record in records if record.priority == best})
        ttl_s = float(answer.rrset.ttl)
        places: set[tuple[str, int]] = set()
        unknown: set[int] = set()
        for target, port in targets[:MOST_TARGETS]:
            if target == NOWHERE:
                continue
            found = await self.addresses(target)
            ttl_s = min(ttl_s, found.ttl_s)
            unknown.update(found.unknown)
            places.update((address, port) for address, _ in found.places)
        answered = _answer(places, ttl_s)
        over = answered.passed_over + max(0, len(targets) - MOST_TARGETS) + len(answer.rrset) - len(records)
        return Answer(answered.places, ttl_s, over, tuple(sorted(unknown)))

    async def _ask(self, name: str, kind: dns.rdatatype.RdataType) -> dns.resolver.Answer | None:
        """Return the answer, None where the name is said not to exist."""
        try:
            return await self._resolver.resolve(
                name, kind, lifetime=self._timeout_s, search=True, raise_on_no_answer=False
            )
        except dns.resolver.NXDOMAIN:
            return None
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise DnsError(str(error) or type(error).__name__) from error


def _answer(places: set[tuple[str, int]], ttl_s: float) -> Answer:
    ordered = sorted(places, key=_order)
    return Answer(tuple(ordered[:MOST_ENDPOINTS]), ttl_s, max(0, len(ordered) - MOST_ENDPOINTS))


def _order(place: tuple[str, int]) -> tuple[bool, str, int]:
    address, port = place
    return ":" in address, address, port
