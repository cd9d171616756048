"""Between client and server of the ``h2`` library, which refuse what RFC 9113 forbids, every byte comes through.

The client makes calls at once, in pieces and sizes of all kinds, with windows of all sizes, reads late, and gives some
calls up; the server echoes. Had a connection of ours said anything that its state does not allow, ``h2`` would raise.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.grpc_by_hand import GrpcBench, Peer, call_fields, grpc_bench, message

CALLS = st.lists(
    st.tuples(st.lists(st.sampled_from([0, 1, 100, 5000, 16379, 40_000]), max_size=4), st.booleans()),
    min_size=1,
    max_size=6,
)


class Side:
    """One end: ``h2`` on the other side of one of our connections."""

    def __init__(self, peer: Peer, *, client: bool, window: int) -> None:
        self.peer = peer
        self.h2 = H2Connection(H2Configuration(client_side=client, header_encoding=None))
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.out: dict[int, bytes] = defaultdict(bytes)  # what is still to be sent, by stream
        self.ends: dict[int, bool] = {}  # streams whose end follows that
        self.got: dict[int, bytes] = defaultdict(bytes)
        self.status: dict[int, bytes] = {}
        self.late: list[tuple[int, int]] = []  # bytes read, but not said to be
        self._read = 0
        self._client = client

    def exchange(self) -> bool:
        """Carry what each said to the other; False where neither said anything."""
        said = self.peer.transport.written[self._read :]
        self._read += len(said)
        events = self.h2.receive_data(said) if said else []
        reset = {event.stream_id for event in events if isinstance(event, StreamReset)}  # by now they are gone
        for event in events:
            if isinstance(event, StreamReset) or getattr(event, "stream_id", 0) not in reset:
                self._take(event)
            elif isinstance(event, DataReceived):  # the connection's window is to be given back all the same
                self.late.append((event.stream_id, event.flow_controlled_length))
        self._send_on()
        back = self.h2.data_to_send()
        if back:
            self.peer.send(back)
        return bool(said or back)

    def _take(self, event: Event) -> None:
        assert not isinstance(event, ConnectionTerminated), event
        if isinstance(event, RequestReceived):
            self.h2.send_headers(event.stream_id, [(b":status", b"200"), (b"content-type", b"application/grpc")])
            self.out[event.stream_id] = b""
        elif isinstance(event, ResponseReceived | TrailersReceived):
            found = dict(event.headers).get(b"grpc-status")
            if found is not None:
                self.status[event.stream_id] = found
        elif isinstance(event, DataReceived):
            self.got[event.stream_id] += event.data
            self.late.append((event.stream_id, event.flow_controlled_length))
            if not self._client:
                self.out[event.stream_id] += event.data
        elif isinstance(event, StreamReset):
            self.out.pop(event.stream_id, None)
            self.ends.pop(event.stream_id, None)
        if isinstance(event, StreamEnded) and not self._client:
            self.ends[event.stream_id] = True

    def _send_on(self) -> None:
        for stream, data in list(self.out.items()):
            while data:
                size = min(len(data), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
                if size <= 0:
                    break
                self.h2.send_data(stream, data[:size])
                data = data[size:]
            self.out[stream] = data
            if not data and self.ends.pop(stream, False):
                del self.out[stream]
                if self._client:
                    self.h2.end_stream(stream)
                else:
                    self.h2.send_headers(stream, [(b"grpc-status", b"0"), (b"x-t", b"%d" % stream)], end_stream=True)

    def read_late(self) -> bool:
        """Say of everything that came that it was read."""
        late, self.late = self.late, []
        for stream, size in late:
            self.h2.acknowledge_received_data(size, stream)
        return bool(late)


def run(bench: GrpcBench, client: Side, servers: list[Side]) -> None:
    """Let everybody speak until nobody has anything to say."""
    while True:
        moved = client.exchange()
        for server in list(servers):
            moved |= server.exchange()
            moved |= server.read_late()
        moved |= client.exchange()
        if not moved and not client.read_late():
            return
        bench.loop.run_soon()


@settings(max_examples=60)
@given(CALLS, st.sampled_from([1000, 16_384, 65_535, 1_000_000]), st.sampled_from([1000, 65_535]), st.integers(1, 100))
def test_every_byte_of_every_call_comes_through(
    calls: list[tuple[list[int], bool]], client_window: int, server_window: int, most: int
) -> None:
    with grpc_bench() as bench:
        servers: list[Side] = []

        def greet(peer: Peer) -> None:
            server = Side(peer, client=False, window=server_window)
            server.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: most})
            servers.append(server)
            peer.send_now(server.h2.data_to_send())

        bench.loop.greet = greet
        client = Side(bench.connect(preface=False), client=True, window=client_window)
        sent: dict[int, bytes] = {}
        given_up: set[int] = set()
        for sizes, gives_up in calls:
            stream = client.h2.get_next_available_stream_id()
            fields: list[Any] = call_fields()
            client.h2.send_headers(stream, fields)
            sent[stream] = b"".join(message(bytes([size % 251]) * size) for size in sizes)
            client.out[stream] = sent[stream]
            client.ends[stream] = True
            client.exchange()
            if gives_up:
                given_up.add(stream)
        for stream in given_up & client.out.keys():
            client.h2.reset_stream(stream, 8)
            client.out.pop(stream)
            client.ends.pop(stream, None)
        cut = given_up - client.status.keys()
        run(bench, client, servers)
        for stream, data in sent.items():
            if stream not in cut:
                assert client.got[stream] == data
                assert client.status[stream] == b"0"
        assert bench.buffered() == 0
