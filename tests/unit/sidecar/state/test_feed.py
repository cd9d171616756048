from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from router.model import EndpointRecord, EndpointSeen, Replica, Tick
from sidecar import channel
from sidecar.channel import Channel, Ping
from sidecar.state.feed import MAX_QUEUED, Feed, Port


class Owner:
    """Makes snapshots of one message and collects what comes up."""

    def snapshot_messages(self) -> list[object]:
        return [Ping(-1.0)]

    def from_data(self, index: int, message: object) -> None:
        raise AssertionError("nothing is sent up here")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    control, data = (Channel(end) for end in channel.pair())
    yield control, data
    control.close()
    data.close()


def drain(data: Channel) -> list[object]:
    return list(data.receive(most=1_000_000))


def test_messages_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    control, data = ends
    port = Port(0, control)
    port.put([Ping(1.0), Ping(2.0)])
    port.put([Ping(3.0)])
    assert drain(data) == [Ping(1.0), Ping(2.0), Ping(3.0)]
    assert not port.waiting


def test_what_is_not_read_waits_and_nothing_is_lost(ends: tuple[Channel, Channel]) -> None:
    control, data = ends
    port = Port(0, control)
    sent = 0
    while not port.waiting:
        port.put([Ping(float(sent))])
        sent += 1
    for _ in range(100):
        port.put([Ping(float(sent))])
        sent += 1
    got: list[object] = []
    while len(got) < sent:
        got += drain(data)
        port.flush()
    assert got == [Ping(float(number)) for number in range(sent)]


def test_one_that_falls_behind_loses_its_queue_and_gets_a_snapshot_instead(ends: tuple[Channel, Channel]) -> None:
    control, data = ends
    port = Port(0, control)
    while not port.behind:
        port.put([Ping(0.0)])
    port.put([Ping(1.0)])
    assert (port.behind_total, port.waiting) == (1, True)
    drain(data)
    port.put_snapshot([Ping(2.0)])
    port.put([Ping(3.0)])
    assert drain(data) == [Ping(2.0), Ping(3.0)]
    assert not port.behind


def test_a_snapshot_may_be_larger_than_the_queue(ends: tuple[Channel, Channel]) -> None:
    control, data = ends
    port = Port(0, control)
    port.put_snapshot([Ping(float(number)) for number in range(5 * MAX_QUEUED)])
    port.put([Ping(-1.0)])
    assert not port.behind
    got: list[object] = []
    while len(got) < 5 * MAX_QUEUED + 1:
        got += drain(data)
        port.flush()
    assert got[-1] == Ping(-1.0)


def test_a_message_too_large_is_counted_and_passed_over(ends: tuple[Channel, Channel]) -> None:
    control, data = ends
    port = Port(0, control)
    huge = EndpointRecord("a", "http://x", replicas=tuple(Replica("m" * 100, str(n)) for n in range(2000)))
    port.put([EndpointSeen(huge, 0.0), Ping(1.0)])
    assert drain(data) == [Ping(1.0)]
    assert port.too_large_total == 1


def test_messages_that_cannot_be_sent_flood_no_log(
    ends: tuple[Channel, Channel], caplog: pytest.LogCaptureFixture
) -> None:
    control, _ = ends
    port = Port(0, control)
    with caplog.at_level(logging.ERROR, "warmroute.feed"):
        port.put([EndpointSeen(EndpointRecord("a\ud800", "http://x"), 0.0)] * 50)
    assert port.too_large_total == 50
    assert [record.message for record in caplog.records] == ["channel.too_large"]


@pytest.mark.parametrize(
    "odd",
    [
        EndpointRecord("a", "http://x", queue_depth=1 << 64),
        EndpointRecord("a", "http://x", free_memory_bytes=10**400),
        EndpointRecord("a\ud800", "http://x"),
        EndpointRecord("a", "http://x", queue_depth=object()),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_has_no_encoding_holds_nothing_up(ends: tuple[Channel, Channel], odd: EndpointRecord) -> None:
    control, data = ends
    port = Port(0, control)
    port.put([EndpointSeen(odd, 0.0), Ping(1.0)])
    port.put_snapshot([EndpointSeen(odd, 0.0), Ping(2.0)])
    assert drain(data) == [Ping(1.0), Ping(2.0)]
    assert (port.too_large_total, port.waiting) == (2, False)


def test_pings_go_only_to_those_that_keep_up(ends: tuple[Channel, Channel]) -> None:
    control, data = ends
    feed = Feed([control], Owner())
    feed.ping(Ping(1.0))
    assert drain(data) == [Ping(1.0)]
    port = feed.ports[0]
    while not port.behind:
        port.put([Ping(0.0)])
    drain(data)
    feed.ping(Ping(2.0))
    assert drain(data) == []
    feed.send_snapshot()
    assert drain(data) == [Ping(-1.0)]


def test_a_message_that_is_none_of_the_channels_is_a_fault_of_ours(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(KeyError):
        Port(0, ends[0]).put([Tick()])
