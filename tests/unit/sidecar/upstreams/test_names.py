"""Hosts of endpoints: looked up apart from connecting, remembered, last good kept."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest

from sidecar.telemetry.page import Scalar
from sidecar.upstreams.names import MOST_ADDRESSES, MOST_NAMES, Names, is_address
from tests.support.loops import turns


class Resolving:
    """A loop's two methods: names stand for what the test says, addresses refuse where it says so."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[str] | OSError] = {}
        self.refusing: set[str] = set()
        self.asked: list[str] = []
        self.connected: list[str] = []
        self.gate: asyncio.Event | None = None

    def create_task(self, coroutine: Any, *, name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    async def getaddrinfo(self, host: str, port: object, **_: object) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if self.gate is not None:
            await self.gate.wait()
        found = self.hosts[host]
        if isinstance(found, OSError):
            raise found
        return [(0, 0, 0, "", (address, 0)) for address in found]

    async def create_connection(self, new: Any, host: str, port: int) -> tuple[Any, Any]:
        self.connected.append(host)
        if host in self.refusing:
            raise ConnectionRefusedError(111, "refused")
        return object(), new()


class Rig:
    def __init__(self) -> None:
        self.loop = Resolving()
        self.now = 0.0
        self.counted: Counter[Scalar] = Counter()
        self.names = Names(self.loop, lambda: self.now, self.count, 5.0)  # type: ignore[arg-type]

    def count(self, scalar: Scalar, by: int) -> None:
        self.counted[scalar] += by

    async def connect(self, host: str = "w.test") -> None:
        await self.names.connect(asyncio.Protocol, host, 80)
        await turns(1)  # a lookup beside it may end

    async def settle(self) -> None:
        await turns(5)


def test_addresses_are_never_looked_up() -> None:
    rig = Rig()
    for host in ("127.0.0.1", "::1", "fe80::1%lo"):
        assert is_address(host)
        asyncio.run(rig.connect(host))
    assert rig.loop.asked == []
    assert not is_address("w.test")


def test_what_is_known_is_used_at_once_and_looked_up_again_beside_that() -> None:
    rig = Rig()

    async def main() -> None:
        rig.loop.hosts["w.test"] = ["10.0.0.1"]
        await rig.connect()
        rig.now = 4.9
        await rig.connect()
        assert rig.loop.asked == ["w.test"]
        rig.now = 5.0
        rig.loop.hosts["w.test"] = ["10.0.0.2"]
        rig.loop.gate = asyncio.Event()
        await rig.connect()  # does not wait for the lookup
        await rig.connect()  # nor begin another
        assert rig.loop.asked == ["w.test"] * 2
        rig.loop.gate.set()
        await rig.settle()
        await rig.connect()
        assert rig.loop.connected == ["10.0.0.1"] * 4 + ["10.0.0.2"]

    asyncio.run(main())
    assert rig.counted[Scalar.NAME_LOOKUPS_TOTAL] == 2
    assert rig.counted[Scalar.NAME_LOOKUPS_FAILED_TOTAL] == 0


def test_a_lookup_that_fails_keeps_what_was_known() -> None:
    rig = Rig()

    async def main() -> None:
        rig.loop.hosts["w.test"] = ["10.0.0.1"]
        await rig.connect()
        rig.loop.hosts["w.test"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        for rig.now in (6.0, 12.0, 18.0):
            await rig.connect()
            await rig.settle()
        assert rig.loop.connected == ["10.0.0.1"] * 4

    asyncio.run(main())
    assert rig.counted[Scalar.NAME_LOOKUPS_FAILED_TOTAL] == 3


def test_a_name_that_was_never_known_is_an_error_that_names_it_and_all_who_wait_hear_it() -> None:
    rig = Rig()

    async def main() -> None:
        rig.loop.hosts["w.test"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = await asyncio.gather(rig.connect(), rig.connect(), return_exceptions=True)
        assert [str(error) for error in found] == ["w.test: Name or service not known"] * 2
        assert rig.loop.asked == ["w.test"]
        with pytest.raises(OSError, match=r"w\.test"):
            await rig.connect()  # it is asked again at once: nobody has anything to lose
        assert rig.loop.asked == ["w.test"] * 2

    asyncio.run(main())


def test_a_caller_that_gives_up_leaves_the_lookup_to_the_others() -> None:
    rig = Rig()

    async def main() -> None:
        rig.loop.hosts["w.test"] = ["10.0.0.1"]
        rig.loop.gate = asyncio.Event()
        first = asyncio.create_task(rig.connect())
        second = asyncio.create_task(rig.connect())
        await rig.settle()
        first.cancel()
        await rig.settle()
        rig.loop.gate.set()
        await second
        assert first.cancelled()
        assert rig.loop.asked == ["w.test"]

    asyncio.run(main())


def test_each_address_is_tried_in_order_and_the_last_error_is_told() -> None:
    rig = Rig()

    async def main() -> None:
        rig.loop.hosts["w.test"] = ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
        rig.loop.refusing = {"10.0.0.1"}
        await rig.connect()
        assert rig.loop.connected == ["10.0.0.1", "10.0.0.2"]
        rig.loop.refusing = {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
        with pytest.raises(ConnectionRefusedError):
            await rig.connect()

    asyncio.run(main())


def test_what_is_remembered_is_bounded() -> None:
    rig = Rig()

    async def main() -> None:
        rig.loop.hosts["w.test"] = [f"10.0.1.{number}" for number in range(100)]
        assert len(await rig.names.addresses("w.test")) == MOST_ADDRESSES
        for number in range(MOST_NAMES):
            rig.loop.hosts[f"n{number}.test"] = ["10.0.0.1"]
            await rig.names.addresses(f"n{number}.test")
        rig.loop.asked.clear()
        await rig.names.addresses("w.test")
        assert rig.loop.asked == ["w.test"]  # it was the first to be forgotten

    asyncio.run(main())
