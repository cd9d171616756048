"""Endpoints that names stand for: what is kept when a name says nothing, or is not to be asked."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING

import msgspec
import pytest

from sidecar.config.addresses import server_place
from sidecar.discovery.dns import Answer, DnsError, DnsPlan, DnsSource, dns_plans, without_twins
from sidecar.discovery.planned import StaticEndpoint
from sidecar.settings import Dns, DnsServers, DnsType, Probe, Settings
from sidecar.state.memory import KnownName

if TYPE_CHECKING:
    from sidecar.discovery.dns import Name

NAME: Name = ("w.test", DnsType.A)


class Said:
    """Says of names what the test has it say."""

    def __init__(self) -> None:
        self.answer: Answer | Exception = Answer((), inf)
        self.asked: list[tuple[str, str]] = []

    def _say(self) -> Answer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def addresses(self, name: str) -> Answer:
        self.asked.append(("a", name))
        return self._say()

    async def services(self, name: str) -> Answer:
        self.asked.append(("srv", name))
        return self._say()


class Rig:
    def __init__(self, *plans: DnsPlan, recalled: tuple[KnownName, ...] = ()) -> None:
        self.said = Said()
        self.now = 0.0
        self.taken = 0
        self.source = DnsSource(
            plans,
            DnsServers(),
            lambda _: self.said,
            self.take,
            clock=lambda: self.now,
            rng=lambda: 0.5,
            first_s=2.0,
            recalled=recalled,
        )

    def take(self) -> None:
        self.taken += 1

    def look(self, answer: Answer | Exception, name: Name = NAME) -> list[str]:
        self.said.answer = answer
        asyncio.run(self.source.look_up(name))
        return self.urls()

    def urls(self) -> list[str]:
        return [endpoint.address for endpoint in self.source.endpoints]


def plan(model: str = "m", probe: Probe | None = None, **dns: object) -> DnsPlan:
    return DnsPlan(model, Dns(**{"name": "w.test", "port": 80} | dns), probe)  # type: ignore[arg-type]


def found(*addresses: str, ttl_s: float = 30.0) -> Answer:
    return Answer(tuple((address, 0) for address in addresses), ttl_s)


ONE, TWO = "http://10.0.0.1:80", "http://10.0.0.2:80"


def test_addresses_become_endpoints_with_the_models_probe() -> None:
    probe = Probe(path="/ready")
    rig = Rig(plan(probe=probe))
    assert (rig.source.tried, rig.source.complete) == (False, False)
    assert rig.look(found("10.0.0.1", "fd00::1")) == [ONE, "http://[fd00::1]:80"]
    assert (rig.source.tried, rig.source.complete) == (True, True)
    assert [endpoint.id for endpoint in rig.source.endpoints] == ["10.0.0.1:80", "[fd00::1]:80"]
    (replica,) = rig.source.endpoints[0].replicas
    assert (replica.model, replica.version, replica.probe) == ("m", "", probe)
    assert rig.taken == 1
    rig.look(found("10.0.0.1", "fd00::1"))
    assert rig.taken == 1  # the same again is no news


def test_services_bring_their_ports() -> None:
    name: Name = ("_h._tcp.w.test", DnsType.SRV)
    rig = Rig(plan(name="_h._tcp.W.test.", type=DnsType.SRV, port=None))
    assert rig.look(Answer((("10.0.0.1", 81), ("10.0.0.1", 82)), 5.0), name) == [
        "http://10.0.0.1:81",
        "http://10.0.0.1:82",
    ]
    assert rig.said.asked == [("srv", "_h._tcp.w.test")]


def test_what_leaves_a_good_answer_is_gone_at_once() -> None:
    rig = Rig(plan())
    rig.look(found("10.0.0.1", "10.0.0.2"))
    assert rig.look(found("10.0.0.2")) == [TWO]
    assert rig.taken == 2


def test_a_failure_is_said_though_an_empty_answer_was_just_before(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(plan())
    rig.look(found("10.0.0.1"))
    with caplog.at_level(logging.WARNING, "warmroute.dns"):
        for rig.now, answer in (
            (1.0, found()),
            (2.0, found()),
            (3.0, DnsError("SERVFAIL")),
            (4.0, DnsError("SERVFAIL")),
        ):
            rig.look(answer)
    assert [record.message for record in caplog.records] == ["dns.empty", "dns.failed"]


@pytest.mark.parametrize("answer", [DnsError("SERVFAIL"), found()])
def test_a_name_that_says_nothing_takes_nothing_away(answer: Answer | Exception) -> None:
    rig = Rig(plan())
    rig.look(found("10.0.0.1"))
    for rig.now in (10.0, 1e4, 1e7):
        assert rig.look(answer) == [ONE]
    assert rig.taken == 1
    followed = rig.source.followed[NAME]
    assert followed.failure
    assert (followed.found_total, followed.empty_total + followed.failed_total) == (1, 3)
    assert rig.look(found("10.0.0.2")) == [TWO]
    assert rig.source.followed[NAME].failure == ""


def test_an_empty_answer_may_be_believed_after_a_time_and_a_failure_never() -> None:
    rig = Rig(plan(keep_empty_s=60.0))
    rig.look(found("10.0.0.1"))
    rig.now = 100.0
    assert rig.look(found()) == [ONE]
    rig.now = 159.0
    assert rig.look(DnsError("timed out")) == [ONE]
    assert rig.look(found()) == [ONE]
    rig.now = 160.0
    assert rig.look(DnsError("timed out")) == [ONE]
    assert rig.look(found()) == []
    assert rig.look(found("10.0.0.1")) == [ONE]
    rig.now = 219.0
    assert rig.look(found()) == [ONE]  # the time begins anew


def test_a_name_that_was_never_known_is_tried_but_not_complete_until_it_says_something() -> None:
    rig = Rig(plan())
    rig.look(DnsError("timed out"))
    assert (rig.source.tried, rig.source.complete) == (True, False)
    rig.look(found())
    assert (rig.source.tried, rig.source.complete) == (True, True)
    assert rig.urls() == []


def test_first_answers_are_waited_for_no_longer_than_that() -> None:
    rig = Rig(plan())
    tried = []
    for rig.now in (1.9, 2.0):
        tried.append(rig.source.tried)
    assert tried == [False, True]


def test_half_an_answer_keeps_the_other_half() -> None:
    rig = Rig(plan())
    rig.look(found("10.0.0.1", "10.0.0.2", "fd00::1"))
    half = Answer((("fd00::1", 0), ("fd00::2", 0)), 30.0, unknown=(4,))
    assert rig.look(half) == ["http://[fd00::1]:80", "http://[fd00::2]:80", ONE, TWO]
    assert "IPv4" in rig.source.followed[NAME].failure
    assert rig.look(found("10.0.0.2", "fd00::2")) == [TWO, "http://[fd00::2]:80"]


def test_what_an_earlier_process_knew_is_there_at_once_and_complete() -> None:
    earlier = Rig(plan(), plan("n", name="_h._tcp.w.test", type=DnsType.SRV, port=None))
    earlier.look(found("10.0.0.1"))
    earlier.look(Answer((("10.0.0.2", 81),), 30.0), ("_h._tcp.w.test", DnsType.SRV))
    rig = Rig(*(plan(), plan("n", name="_h._tcp.w.test", type=DnsType.SRV, port=None)), recalled=earlier.source.known())
    assert rig.urls() == [ONE, "http://10.0.0.2:81"]
    assert (rig.source.tried, rig.source.complete) == (False, True)
    assert rig.look(DnsError("timed out")) == [ONE, "http://10.0.0.2:81"]
    other = Rig(plan("m", name="other.test"), recalled=earlier.source.known())
    assert other.urls() == []


def test_models_share_a_name_and_their_endpoints() -> None:
    rig = Rig(plan("a"), plan("b"), plan("c", port=81))
    rig.look(found("10.0.0.1"))
    assert rig.said.asked == [("a", "w.test")]
    held = {endpoint.id: [one.model for one in endpoint.replicas] for endpoint in rig.source.endpoints}
    assert held == {"10.0.0.1:80": ["a", "b"], "10.0.0.1:81": ["c"]}


def test_another_configuration_keeps_what_is_known_of_names_that_stay() -> None:
    rig = Rig(plan("a"), plan("b", name="v.test"))
    rig.look(found("10.0.0.1"))
    rig.look(found("10.0.0.2"), ("v.test", DnsType.A))
    rig.source.configure((plan("a", port=90), plan("c", name="x.test")), DnsServers())
    assert rig.urls() == ["http://10.0.0.1:90"]
    assert not rig.source.complete
    assert set(rig.source.followed) == {NAME, ("x.test", DnsType.A)}


def test_an_endpoint_of_the_configuration_is_not_listed_again() -> None:
    one, two = StaticEndpoint("10.0.0.1:80", ONE, ()), StaticEndpoint("10.0.0.2:80", TWO, ())
    assert without_twins((one,), (one, two)) == (one, two)


def test_plans_are_those_of_the_configuration() -> None:
    models = [{"name": "m", "dns": {"name": "w.test", "port": 80}}, {"name": "n", "endpoints": [ONE]}]
    made = msgspec.convert({"version": 1, "listeners": [{"address": "127.0.0.1:0"}], "models": models}, Settings)
    assert [(one.model, one.name) for one in dns_plans(made)] == [("m", NAME)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1", ("10.0.0.1", 0)),
        ("10.0.0.1:5353", ("10.0.0.1", 5353)),
        ("fd00::1", ("fd00::1", 0)),
        ("[fd00::1]", ("fd00::1", 0)),
        ("[fd00::1]:5353", ("fd00::1", 5353)),
    ],
)
def test_name_servers_are_addresses(text: str, place: tuple[str, int]) -> None:
    assert server_place(text) == place


@pytest.mark.parametrize(
    "text", ["", "dns.test", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x", "[::1", "::1]:53", ":53"]
)
def test_nothing_else_is_a_name_server(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        server_place(text)
