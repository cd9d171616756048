"""Asking a name server over a real socket: addresses, services, and every way not to get an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import dns.rcode
import pytest

from sidecar.discovery.dns import DnsError, lookups_of
from sidecar.settings import DnsServers
from tests.support.name_server import NameServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.discovery.dns import Answer, Asking


Records = dict[tuple[str, str], list[str] | dns.rcode.Rcode]


def ask(records: Records, what: Callable[[Asking], Awaitable[Answer]]) -> Answer:
    async def main() -> Answer:
        server = NameServer()
        server.records = records
        port = await server.start()
        try:
            return await what(lookups_of(DnsServers(servers=(f"127.0.0.1:{port}",), timeout_s=0.5)))
        finally:
            await server.stop()

    return asyncio.run(main())


def addresses(**records: list[str] | dns.rcode.Rcode) -> Answer:
    return ask({("w.test.", kind): said for kind, said in records.items()}, lambda asking: asking.addresses("w.test"))


def test_both_kinds_of_addresses_come_in_order() -> None:
    answer = addresses(A=["10.0.0.2", "10.0.0.1"], AAAA=["fd00::1"])
    assert answer.places == (("10.0.0.1", 0), ("10.0.0.2", 0), ("fd00::1", 0))
    assert answer.ttl_s == 30.0


def test_one_kind_is_enough_also_where_the_other_fails() -> None:
    half = addresses(A=["10.0.0.1"], AAAA=dns.rcode.SERVFAIL)
    assert (half.places, half.unknown) == ((("10.0.0.1", 0),), (6,))
    half = addresses(A=dns.rcode.REFUSED, AAAA=["fd00::1"])
    assert (half.places, half.unknown) == ((("fd00::1", 0),), (4,))
    assert addresses(A=["10.0.0.1"], AAAA=[]).places == (("10.0.0.1", 0),)


def test_a_name_with_nothing_and_one_that_is_not_there_are_empty() -> None:
    assert addresses(A=[], AAAA=[]).places == ()
    assert addresses().places == ()


def test_a_service_at_port_0_is_nowhere() -> None:
    name = ("_h._tcp.w.test.", "SRV")
    records: Records = {
        name: ["0 0 0 one.test.", "5 0 0 two.test.", "10 0 82 two.test."],
        ("one.test.", "A"): ["10.0.0.1"],
        ("two.test.", "A"): ["10.0.0.2"],
    }
    answer = ask(records, lambda asking: asking.services("_h._tcp.w.test"))
    assert (answer.places, answer.passed_over) == ((("10.0.0.2", 82),), 2)
    records[name] = ["0 0 0 one.test."]
    with pytest.raises(DnsError, match=r"^an SRV record with port 0, where nobody can be$"):  # the last answer is kept
        ask(records, lambda asking: asking.services("_h._tcp.w.test"))


def test_failures_are_no_empty_answers() -> None:
    for said in (dns.rcode.SERVFAIL, dns.rcode.REFUSED):
        with pytest.raises(DnsError):
            addresses(A=said, AAAA=said)


def test_silence_ends_in_time() -> None:
    async def main() -> None:
        server = NameServer()
        server.silent = True
        port = await server.start()
        try:
            asking = lookups_of(DnsServers(servers=(f"127.0.0.1:{port}",), timeout_s=0.3))
            async with asyncio.timeout(5):
                with pytest.raises(DnsError, match="lifetime"):
                    await asking.addresses("w.test")
        finally:
            await server.stop()

    asyncio.run(main())


def test_services_of_the_lowest_priority_count() -> None:
    records: Records = {
        ("_h._tcp.w.test.", "SRV"): ["10 5 81 one.test.", "10 0 82 two.test.", "20 0 83 spare.test."],
        ("one.test.", "A"): ["10.0.0.1"],
        ("two.test.", "A"): ["10.0.0.2"],
        ("two.test.", "AAAA"): ["fd00::2"],
        ("spare.test.", "A"): ["10.0.0.3"],
    }
    answer = ask(records, lambda asking: asking.services("_h._tcp.w.test"))
    assert answer.places == (("10.0.0.1", 81), ("10.0.0.2", 82), ("fd00::2", 82))


def test_a_service_that_is_said_not_to_be_there_is_empty() -> None:
    records: Records = {("_h._tcp.w.test.", "SRV"): ["0 0 0 ."]}
    assert ask(records, lambda asking: asking.services("_h._tcp.w.test")).places == ()


def test_a_service_of_which_a_target_is_not_to_be_found_out_is_a_failure() -> None:
    records: Records = {
        ("_h._tcp.w.test.", "SRV"): ["0 0 81 one.test.", "0 0 82 two.test."],
        ("one.test.", "A"): ["10.0.0.1"],
        ("two.test.", "A"): dns.rcode.SERVFAIL,
        ("two.test.", "AAAA"): dns.rcode.SERVFAIL,
    }
    with pytest.raises(DnsError):
        ask(records, lambda asking: asking.services("_h._tcp.w.test"))
