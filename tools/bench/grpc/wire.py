"""A load and an origin for unary calls that cost little: frames made before, heads that differ in one field."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, cast

import uvloop

from sidecar.http2 import frames
from sidecar.http2.frames import HEAD, MAX_WINDOW, PREFACE, WINDOW
from sidecar.http2.hpack import Decoder, Encoder, literal

if TYPE_CHECKING:
    from sidecar.http2.hpack import Field

METHOD = b"/bench.Test/Unary"
REQUEST = b"\0" + (1024).to_bytes(4, "big") + bytes(range(256)) * 4
ANSWER = b"\0" + (300).to_bytes(4, "big") + b"answer" * 50
CONNECTIONS = 4
CALLS_EACH = 8
_OPEN = frames.window_update(0, MAX_WINDOW - WINDOW)


class _Frames(asyncio.Protocol):
    """Reads frames."""

    def __init__(self) -> None:
        self._buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        data = self._buffer + data
        position, out = 0, []
        while len(data) - position >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
            stop = position + frames.HEAD_BYTES + (high << 8 | low)
            if stop > len(data):
                break
            answer = self.frame(kind, flags, stream_id, data, position + frames.HEAD_BYTES, stop)
            if answer:
                out.append(answer)
            position = stop
        self._buffer = data[position:]
        if out:
            self.transport.write(b"".join(out))

    def frame(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> bytes:
        """Return what to say to a frame."""
        if kind == frames.SETTINGS and not flags & frames.ACK:
            return frames.frame(frames.SETTINGS, frames.ACK, 0)
        if kind == frames.PING and not flags & frames.ACK:
            return frames.frame(frames.PING, frames.ACK, 0, data[start:stop])
        if kind in (frames.GOAWAY, frames.RST_STREAM):
            raise SystemExit(f"{type(self).__name__}: frame {kind} {data[start:stop]!r}")
        return b""


class Origin(_Frames):
    """Answers every call with the same bytes, literal fields that no table keeps."""

    def __init__(self) -> None:
        super().__init__()
        self._prefaced = False
        encoder = Encoder()
        head: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        self._head = encoder.encode(head)
        self._tail = Encoder().encode([(b"grpc-status", b"0"), (b"grpc-message", b"")])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self.transport.write(frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: 1000}) + _OPEN)

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        if not self._prefaced:
            self._prefaced = True
            data = data[len(PREFACE) :]
        super().data_received(data)

    def frame(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> bytes:
        """Return what to say to a frame."""
        if kind == frames.DATA and flags & frames.END_STREAM:
            return (
                frames.headers_frames(stream_id, self._head, end=False)
                + frames.frame(frames.DATA, 0, stream_id, ANSWER)
                + frames.headers_frames(stream_id, self._tail, end=True)
            )
        return super().frame(kind, flags, stream_id, data, start, stop)


class Caller(_Frames):
    """Keeps so many calls going until a time, and counts the answers.

    The time is asked of the clock at each answer: a timer of the loop counts from its round and may be early.
    """

    def __init__(self, calls: int, until: float) -> None:
        super().__init__()
        self._calls = calls
        self._until = until
        self._encoder = Encoder()
        self._ids = itertools.count(1, 2)
        self.done = 0
        self.bytes = 0
        self.started: dict[int, float] = {}
        self.took: list[float] = []
        self._decoder = Decoder(65536, 100)
        self.rested = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self.transport.write(PREFACE + frames.settings_frame({frames.ENABLE_PUSH: 0}) + _OPEN)
        self.transport.write(b"".join(self._call() for _ in range(self._calls)))

    def _call(self) -> bytes:
        stream_id = next(self._ids)
        fields: list[Field] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", METHOD),
            (b":authority", b"bench.test:80"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"grpc-python/1.85.1 grpc-c/54.0.0 (linux; chttp2)"),
            (b"grpc-accept-encoding", b"identity, deflate, gzip"),
            (b"grpc-timeout", b"30S"),
        ]
        block = self._encoder.encode(fields) + literal(b"x-request-id", b"%032x" % stream_id)
        self.started[stream_id] = time.perf_counter()
        return frames.headers_frames(stream_id, block, end=False) + frames.frame(
            frames.DATA, frames.END_STREAM, stream_id, REQUEST
        )

    def frame(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> bytes:
        """Return what to say to a frame."""
        if kind == frames.DATA:
            self.bytes += stop - start
        elif kind == frames.HEADERS:
            fields = self._decoder.decode(data[start:stop])
            if flags & frames.END_STREAM:
                if (b"grpc-status", b"0") not in fields:
                    raise SystemExit(f"a call failed: {fields}")
                now = time.perf_counter()
                self.took.append(now - self.started.pop(stream_id))
                self.done += 1
                if now < self._until:
                    return self._call()
                if not self.started:
                    self.rested.set()
                return b""
        return super().frame(kind, flags, stream_id, data, start, stop)


async def load(port: int, seconds: float) -> dict[str, float]:
    """Load ``port``; return how many calls were answered, in what time, and their p50 and p99.

    Raises:
        SystemExit: a call failed, or its answer was not whole.
    """
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    callers = [Caller(CALLS_EACH, began + seconds) for _ in range(CONNECTIONS)]
    for caller in callers:
        await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", port)  # type: ignore[misc]
    async with asyncio.timeout(seconds + 5):
        for caller in callers:
            await caller.rested.wait()
    lasted = time.perf_counter() - began
    done = sum(caller.done for caller in callers)
    if not done or sum(caller.bytes for caller in callers) != done * len(ANSWER):
        raise SystemExit("answers are not whole")
    took = sorted(t for caller in callers for t in caller.took)
    for caller in callers:
        caller.transport.close()
    p50, p99 = (took[len(took) * percent // 100] * 1e6 for percent in (50, 99))
    return {"units": done, "seconds": lasted, "p50_us": p50, "p99_us": p99}


async def serve(ports: list[int]) -> None:
    """Be the origin."""
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Origin, "127.0.0.1", port)
    await asyncio.Event().wait()


def main() -> None:
    """``load PORT SECONDS`` prints a line of JSON; ``origin PORT ...`` serves."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if sys.argv[1] == "load":
            print(json.dumps(runner.run(load(int(sys.argv[2]), float(sys.argv[3])))))
        else:
            runner.run(serve([int(port) for port in sys.argv[2:]]))


if __name__ == "__main__":
    main()
