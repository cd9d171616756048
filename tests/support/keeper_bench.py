"""A keeper without a control process around it, between a source and two data processes' ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Replica
from router.policy import ModelPolicy, Policies
from sidecar import channel
from sidecar.channel import Channel, Ping
from sidecar.state.keeper import Keeper
from sidecar.state.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.discovery.source import Emit


class Source:
    """A source whose state the test sets."""

    name = "redis"

    def __init__(self) -> None:
        self.tried = False
        self.complete = False

    async def run(self, emit: Emit) -> None:
        raise AssertionError("the tests emit themselves")


class Bench:
    """A keeper with two data processes' ends, at time ``now``."""

    def __init__(self, memory: Memory | None = None, runs: Callable[[int], bool] = lambda pid: True) -> None:
        self.now = 100.0
        pairs = [channel.pair() for _ in range(2)]
        self.data = [Channel(data) for _, data in pairs]
        self.control = [Channel(control) for control, _ in pairs]
        self.source = Source()
        cluster = Cluster(Policies(), [ModelPolicy("m")], self.now)
        memory = memory or Memory(None)
        self.keeper = Keeper(
            cluster, self.control, [self.source], memory, memory.load(), clock=lambda: self.now, runs=runs
        )

    def seen(self, name: str, epoch: str = "e1") -> EndpointSeen:
        event = EndpointSeen(EndpointRecord(name, "http://127.0.0.1:1", epoch, replicas=(Replica("m"),)), self.now)
        self.keeper.found("redis", event)
        return event

    def close(self) -> None:
        for end in (*self.data, *self.control):
            end.close()

    def sent(self, index: int = 0) -> list[object]:
        return [message for message in self.data[index].receive(10_000) if not isinstance(message, Ping)]
