"""A name server on loopback that says what the test wants: records, nothing, failures, silence."""

from __future__ import annotations

import asyncio
from collections import Counter

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.support.loops import turns


class NameServer(asyncio.DatagramProtocol):
    """``records``: by (name with its final dot, type in capitals), a list of values, or a response code.

    A name of which nothing stands there does not exist; ``silent``: nobody is answered.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str] | dns.rcode.Rcode] = {}
        self.ttl_s = 30
        self.silent = False
        self.asked: Counter[tuple[str, str]] = Counter()
        self.transport: asyncio.DatagramTransport | None = None

    async def start(self) -> int:
        """Begin; return the port."""
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self.transport = transport
        port: int = transport.get_extra_info("sockname")[1]
        return port

    async def stop(self) -> None:
        if self.transport is not None:
            self.transport.close()
            await turns(1)  # it closes in the loop's next turn

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text().lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        if self.silent or self.transport is None:
            return
        answer = dns.message.make_response(query)
        found = self.records.get((name, kind))
        if isinstance(found, dns.rcode.Rcode):
            answer.set_rcode(found)
        elif found:
            answer.answer.append(dns.rrset.from_text_list(question.name, self.ttl_s, "IN", kind, found))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)
