"""The gRPC data path by hand: fake transports, frame by frame; the ``hpack`` library reads heads."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import hpack

from router.cluster import Cluster
from router.model import EndpointRecord, EndpointSeen, Event, Replica
from router.outcomes import AttemptResult, Outcome
from router.policy import ModelPolicy, Policies, RetryPolicy
from sidecar.grpc.call import Call
from sidecar.grpc.downstream import CallerConnection
from sidecar.grpc.phases import ENDING
from sidecar.grpc.plane import GrpcPlane
from sidecar.grpc.upstream import WorkerConnection
from sidecar.http1.forwarding import ListenerRules
from sidecar.http1.plane import Plane
from sidecar.http2 import frames
from sidecar.http2.frames import HEAD, PREFACE, WINDOW, Code, frame, headers_frames, settings_frame
from sidecar.settings import Limits, Timeouts
from sidecar.telemetry.page import Page
from tests.support.by_hand import HandLoop
from tests.support.fake_transport import FakeTransport
from tests.support.fleet import first_only
from tests.support.pages import begun_page

METHOD = b"/test.Echo/Unary"
INFER = b"/inference.GRPCInferenceService/ModelInfer"
HeadFields = list[tuple[bytes, bytes]]


def message(data: bytes = b"", *, compressed: bool = False) -> bytes:
    """Return a gRPC message."""
    return bytes((compressed,)) + len(data).to_bytes(4, "big") + data


def call_fields(path: bytes = METHOD, *more: tuple[bytes, bytes]) -> HeadFields:
    """Return the head of a call as clients send it."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"a.test"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]


def infer(model: bytes, version: bytes = b"") -> bytes:
    """Return the start of a ModelInferRequest."""
    out = b"\x0a" + bytes((len(model),)) + model
    return out + (b"\x12" + bytes((len(version),)) + version if version else b"") + b"\x1a\x02id"


@dataclass
class Seen:
    """One frame that a peer got. ``fields``: of HEADERS, whose CONTINUATION frames are put together."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    fields: HeadFields

    @property
    def end(self) -> bool:
        return self.kind in (frames.DATA, frames.HEADERS) and self.flags & frames.END_STREAM != 0

    @property
    def code(self) -> int:
        """Error code of RST_STREAM and GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == frames.GOAWAY else self.payload, "big")

    def value(self, name: bytes) -> bytes:
        (only,) = [value for key, value in self.fields if key == name]
        return only

    def names(self) -> list[bytes]:
        return [key for key, _ in self.fields]


class Peer:
    """The other end of one of our connections."""

    def __init__(self, protocol: asyncio.Protocol, transport: FakeTransport, loop: GrpcLoop) -> None:
        self.protocol = protocol
        self.transport = transport
        self._loop = loop
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._read = 0
        self._held: list[Seen] = []

    def send(self, data: bytes) -> None:
        """Send bytes, and let everything happen that follows from them."""
        self.protocol.data_received(data)
        self._loop.run_soon()

    def send_now(self, data: bytes) -> None:
        """Send bytes in the middle of something."""
        self.protocol.data_received(data)

    def head(self, stream: int, fields: HeadFields, *, end: bool = False) -> None:
        self.send(self.head_bytes(stream, fields, end=end))

    def head_bytes(self, stream: int, fields: HeadFields, *, end: bool = False) -> bytes:
        return headers_frames(stream, self._encoder.encode(fields), end=end)

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.send(frame(frames.DATA, frames.END_STREAM if end else 0, stream, data))

    def reset(self, stream: int, code: int = frames.Code.CANCEL) -> None:
        self.send(frames.reset_frame(stream, code))

    def ended(self) -> bool:
        """Return whether we have shut our side."""
        return self.transport.half_closed

    def take(self) -> list[Seen]:
        """Return the frames that came since the last call."""
        data = self.transport.written
        if self._read == 0 and data.startswith(PREFACE):
            self._read = len(PREFACE)
        seen: list[Seen] = []
        while len(data) - self._read >= frames.HEAD_BYTES:
            high, low, kind, flags, stream = HEAD.unpack_from(data, self._read)
            start = self._read + frames.HEAD_BYTES
            self._read = start + (high << 8 | low)
            one = Seen(kind, flags, stream, data[start : self._read], [])
            if kind == frames.CONTINUATION:
                seen[-1].payload += one.payload
                seen[-1].flags |= flags
                one = seen[-1]
            else:
                seen.append(one)
            if kind in (frames.HEADERS, frames.CONTINUATION) and one.flags & frames.END_HEADERS:
                decoded = self._decoder.decode(one.payload, raw=True)
                one.fields = [(bytes(field[0]), bytes(field[1])) for field in decoded]
        return seen

    def got(self, kind: int) -> list[Seen]:
        """Return the frames of a kind that came since the last call."""
        return [one for one in self.take() if one.kind == kind]

    def only(self, kind: int) -> Seen:
        (one,) = self.got(kind)
        return one


def status(peer: Peer, stream: int = 1) -> tuple[int, str]:
    """Return the status of the call that ended, and warmroute's outcome where it is its own."""
    ends = [one for one in peer.got(frames.HEADERS) if one.end and one.stream == stream]
    assert len(ends) == 1, ends
    fields = dict(ends[0].fields)
    return int(fields[b"grpc-status"]), fields.get(b"warmroute-outcome", b"").decode()


def goaway(peer: Peer) -> Code | None:
    """Return the code with which the connection was ended, None where it lives."""
    last = peer.got(frames.GOAWAY)
    return Code(last[-1].code) if last else None


def setting(key: int, value: int) -> bytes:
    """Return a SETTINGS frame that sets one thing."""
    return settings_frame({key: value})


class GrpcLoop(HandLoop):
    """Workers stand at once, and say their settings."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[Peer] = []
        self.refuse = 0
        self.settings: dict[int, int] = {}
        self.greet: Callable[[Peer], None] | None = None  # instead of them
        self.later: list[Any] = []
        self.live: set[Peer] = set()
        self.time: Callable[[], float] = lambda: 0.0

    async def create_connection(
        self, new: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[FakeTransport, asyncio.Protocol]:
        if self.refuse:
            self.refuse -= 1
            raise ConnectionRefusedError(111, "Connection refused")
        transport, protocol = await super().create_connection(new, host, port)
        self.workers.append(Peer(protocol, transport, self))
        self.live.add(self.workers[-1])
        if self.greet is not None:
            self.greet(self.workers[-1])
        else:
            protocol.data_received(settings_frame(self.settings))
        return transport, protocol

    def create_task(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(coroutine, name=name)
        if self._tasks.is_running():  # in its turn, as on a real loop
            self.soon.append((self._finish, (task,)))
        else:
            self._finish(task)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Run a task to its end; as on a real loop it keeps to itself what it raised."""
        self._tasks.run_until_complete(asyncio.wait({task}))

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> Any:
        timer = super().call_later(delay_s, callback, *arguments)
        self.later.append(self.soon.pop())
        return timer

    def call_at(self, _when: float, callback: Callable[..., object], *arguments: Any) -> Any:
        return self.call_later(0.0, callback, *arguments)

    def run_soon(self) -> None:
        """Run what is due in this turn of the loop, not what waits for time to pass."""
        self.run()

    def fire(self) -> None:
        """Let every timer end."""
        later, self.later = self.later, []
        self.soon += later
        self.run()


class GrpcBench:
    """Callers in front of two workers, o0 and o1, that hold model m; ``o0`` is drawn first."""

    def __init__(self, page: Page, limits: Limits, timeouts: Timeouts, *, default: bool, idempotent: bool) -> None:
        self.loop = GrpcLoop()
        self.now = 100.0
        self.loop.time = lambda: self.now
        policies = Policies(retry=RetryPolicy(backoff_min_ms=1.0, backoff_max_ms=1.0))
        models = (ModelPolicy("m", idempotent=idempotent, default=default), ModelPolicy("n"))
        self.cluster = Cluster(policies, models, self.now, picker=first_only)
        self.shared: list[Event] = []
        self.plane = Plane(
            cluster=self.cluster,
            page=page,
            loop=self.loop,  # type: ignore[arg-type]
            clock=lambda: self.now,
            rng=_First(1),
            limits=limits,
            timeouts=timeouts,
            share=self.shared.extend,
        )
        self.grpc = GrpcPlane(self.plane)
        for name, models_held in (("o0", ("m",)), ("o1", ("m", "n"))):
            replicas = tuple(Replica(model) for model in models_held)
            record = EndpointRecord(name, "grpc://a.test:1", protocol="grpc", replicas=replicas, static=True)
            self.cluster.apply(EndpointSeen(record, self.now), self.now)
        self.callers: list[Peer] = []
        self.opened: list[Call] = []  # every call that was taken on
        self.caller = self.connect()

    @property
    def live(self) -> set[Peer]:
        """Connections to workers that were not lost; taking one out loses it for the test."""
        return self.loop.live

    def connect(
        self,
        *,
        settings: dict[int, int] | None = None,
        preface: bool = True,
        rules: ListenerRules | None = None,
        address: str = "",
    ) -> Peer:
        """Open a caller's connection; ``preface``: it says who it is."""
        transport = FakeTransport()
        transport.peername = (address, 1) if address else None
        protocol = CallerConnection(self.grpc, rules or ListenerRules())
        protocol.connection_made(transport)
        peer = Peer(protocol, transport, self.loop)
        self.callers.append(peer)
        if preface:
            peer.send(PREFACE + settings_frame(settings or {}))
            peer.take()
        return peer

    @property
    def worker(self) -> Peer:
        """The worker's connection that was made last."""
        return self.loop.workers[-1]

    def call(self, stream: int = 1, body: bytes = b"x", *more: tuple[bytes, bytes], path: bytes = METHOD) -> Peer:
        """Make a unary call, and return the worker's connection that it went to."""
        self.caller.head(stream, call_fields(path, *more))
        self.caller.data(stream, message(body), end=True)
        return self.worker

    def answer(self, worker: Peer, stream: int = 1, body: bytes = b"y", status: bytes = b"0") -> None:
        """Answer a call."""
        worker.head(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        worker.data(stream, message(body))
        worker.head(stream, [(b"grpc-status", status)], end=True)

    def pass_time(self, seconds: float, *, step_s: float = 0.25) -> None:
        """Let time pass, with a sweep every quarter of a second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + step_s)
            self.grpc.sweep(self.now)
            self.loop.run_soon()

    @property
    def outcomes(self) -> dict[str, int]:
        self.plane.settle(self.now)
        counted: Counter[str] = Counter()
        for _, row in self.plane.page.models():
            for index, outcome in enumerate(Outcome):
                counted[outcome.value] += int(self.plane.words[row + index])
        return dict(+counted)

    @property
    def results(self) -> dict[str, int]:
        self.plane.settle(self.now)
        counted: Counter[str] = Counter()
        for _, row in self.plane.page.endpoints():
            for index, result in enumerate(AttemptResult):
                counted[result.value] += int(self.plane.words[row + index])
        return dict(+counted)

    @property
    def in_flight(self) -> int:
        return sum(endpoint.in_flight for endpoint in self.cluster.endpoints.values())

    def buffered(self) -> int:
        """Return how many bytes wait in all streams."""
        ours: list[Any] = [*self.grpc.connections, *(peer.protocol for peer in self.loop.workers)]
        return sum(stream.waiting_bytes for connection in ours for stream in connection.streams.values())

    def check_windows(self) -> None:
        """Of each caller's window no byte is lost, and none is given back twice: it is open, owed, or waits here."""
        for connection in self.grpc.connections:
            for stream in connection.streams.values():
                call: Call = stream.call
                if call.phase < ENDING:
                    waits = 0 if call.up is None else call.up.waiting_bytes - call.up.prepaid
                    assert stream.receive_window + stream.owed + call._unpaid + waits == WINDOW

    def check_rest(self) -> None:
        """Nothing is in hand any more, nothing crashed, and nothing was written to a closed transport."""
        self.loop.run_soon()
        assert self.loop.errors == []
        assert self.in_flight == 0
        assert self.grpc.calls == 0
        assert not self.grpc.ending
        assert not self.grpc.watchers
        assert sum(self.outcomes.values()) == len(self.opened), "every call ends in one outcome"
        for peer in self.loop.workers:
            assert isinstance(peer.protocol, WorkerConnection)
            assert not peer.protocol.streams
            assert peer.transport.late == b""


class _First(random.Random):
    def random(self) -> float:
        return 0.0


@contextmanager
def grpc_bench(
    *, limits: Limits | None = None, timeouts: Timeouts | None = None, default: bool = True, idempotent: bool = False
) -> Iterator[GrpcBench]:
    """Make one; at the end everything must have come to rest."""
    with begun_page() as page:
        made = GrpcBench(page, limits or Limits(), timeouts or Timeouts(), default=default, idempotent=idempotent)

        def count(*arguments: Any) -> Call:
            made.opened.append(Call(*arguments))
            return made.opened[-1]

        try:
            with mock.patch("sidecar.grpc.downstream.Call", count):
                yield made
            made.check_rest()
        finally:
            made.loop.close()
