"""Two sessions back to back, without sockets: every byte passes by hand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.settings import ListenerTls, UpstreamTls
from sidecar.tls.material import HTTP1, client_context, server_context
from sidecar.tls.transport import RefusedError, TlsTransport, TruncatedError
from tests.support.certificates import Authority, write
from tests.support.fake_transport import FakeTransport


class Loop:
    """Keeps what was to be called."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Timer] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, _: float, callback: Callable[[], None]) -> Timer:
        self.later.append(Timer(callback))
        return self.later[-1]

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Application(asyncio.Protocol):
    """Remembers what it was told; ``pause_at`` makes it stop reading once it has that many bytes."""

    def __init__(self) -> None:
        self.data = b""
        self.told: list[Any] = []
        self.keep_open = False
        self.pause_at: int | None = None
        self.transport: TlsTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        assert data
        assert self.told == ["made"], "nothing comes after the end"
        self.data += data
        if self.pause_at is not None and len(self.data) >= self.pause_at:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", exc))


class Side:
    """One end: its session over a transport that only remembers, and the application behind."""

    def __init__(self, context: ssl.SSLContext, *, server: bool, let_in: bool = True) -> None:
        self.loop = Loop()
        self.application = Application()
        self.let_in = let_in
        self.failures: list[Exception] = []
        self.refusals: list[RefusedError] = []
        self.raw = FakeTransport()
        self.session = TlsTransport(
            self.loop,  # type: ignore[arg-type]
            context,
            self,
            timeout_s=1.0,
            server_name=None if server else "a.test",
            server_side=server,
        )
        self._lost = False

    def established(self, _: TlsTransport) -> asyncio.Protocol | None:
        return self.application if self.let_in else None

    def failed(self, _: TlsTransport, error: Exception) -> None:
        self.failures.append(error)

    def refused(self, error: RefusedError) -> None:
        self.refusals.append(error)

    def begin(self) -> None:
        self.session.connection_made(self.raw)

    def take(self) -> bytes:
        out, self.raw.written = self.raw.written, b""
        return out

    def settle(self) -> None:
        """Do what a loop does with a transport that was closed."""
        self.loop.run()
        if self.raw.closing and not self._lost:
            self._lost = True
            self.session.connection_lost(None)


class Pair:
    """A client and a server; ``pass_on`` carries all that they wrote until nothing is left, in pieces of ``size``."""

    def __init__(self, client: Side, server: Side) -> None:
        self.client = client
        self.server = server
        client.begin()
        server.begin()

    def pass_on(self, size: int = 1 << 20) -> None:
        while True:
            moved = False
            for source, target in ((self.client, self.server), (self.server, self.client)):
                data = source.take()
                for start in range(0, len(data), size):
                    if not target.raw.closing:
                        target.session.data_received(data[start : start + size])
                        target.loop.run()
                moved = moved or bool(data)
            if not moved:
                return


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority()
    cert_file, key_file = authority.issue("a.test").write(directory, "a")
    ca_file = write(directory / "ca.pem", authority.pem)
    server = server_context(ListenerTls(cert_file=cert_file, key_file=key_file), HTTP1)
    return client_context(UpstreamTls(ca_file=ca_file), HTTP1), server


def joined(contexts: tuple[ssl.SSLContext, ssl.SSLContext], size: int = 1 << 20) -> Pair:
    pair = Pair(Side(contexts[0], server=False), Side(contexts[1], server=True))
    pair.pass_on(size)
    for side in (pair.client, pair.server):
        assert side.application.told == ["made"]
        assert side.failures == []
        assert all(timer.cancelled for timer in side.loop.later)
    return pair


MESSAGES = st.lists(st.tuples(st.booleans(), st.integers(0, 70_000)), max_size=6)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, size=st.sampled_from([1, 3, 100, 5000, 1 << 20]), pause_at=st.integers(0, 100_000))
def test_bytes_come_through_in_any_pieces_and_whoever_stops_reading(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], messages: list[tuple[bool, int]], size: int, pause_at: int
) -> None:
    pair = joined(contexts, max(size, 50))
    pair.server.application.pause_at = pause_at
    sent = {True: b"", False: b""}
    for number, (from_client, length) in enumerate(messages):
        side = pair.client if from_client else pair.server
        data = bytes([number + 1]) * (length if size > 100 else length % 300)
        sent[from_client] += data
        side.application.transport.write(data)
    pair.client.application.transport.close()
    pair.pass_on(size)
    got = pair.server.application
    if not pair.server.raw.reading:  # what was not taken yet waits, and the end behind it
        got.pause_at = None
        assert "eof" not in got.told
        got.transport.resume_reading()
        pair.server.settle()
    assert got.data == sent[True]
    assert got.told[:2] == ["made", "eof"]
    assert pair.server.raw.closing, "an end is answered with one"


def waits(session: TlsTransport) -> bool:
    return session.unread


def test_what_waits_here_counts_as_unread(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    session = pair.client.application.transport
    assert waits(session) is False
    session.pause_reading()
    pair.server.application.transport.write(b"unasked")
    pair.client.session.data_received(pair.server.take())  # it was read before the pause took effect
    assert waits(session) is True
    assert pair.client.application.data == b""
    session.resume_reading()
    pair.client.loop.run()
    assert waits(session) is False
    assert pair.client.application.data == b"unasked"


def test_an_answer_without_a_goodbye_is_cut(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    pair.server.application.transport.write(b"all of it?")
    pair.pass_on()
    assert not pair.client.session.eof_received()
    pair.client.session.connection_lost(None)
    assert pair.client.application.data == b"all of it?"
    (told,) = pair.client.application.told[1:]
    assert isinstance(told[1], TruncatedError)


def test_an_answer_with_a_goodbye_is_whole(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    pair.server.application.transport.write(b"all of it")
    pair.server.application.transport.close()
    assert pair.server.raw.closing
    pair.pass_on()
    pair.client.settle()
    assert pair.client.application.data == b"all of it"
    assert pair.client.application.told == ["made", "eof", ("lost", None)]


def test_a_caller_that_just_goes_has_gone(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    assert not pair.server.session.eof_received()
    pair.server.session.connection_lost(None)
    made, eof, (lost, error) = pair.server.application.told
    assert (made, eof, lost) == ("made", "eof", "lost")
    assert isinstance(error, TruncatedError)


def test_one_side_may_end_and_go_on_reading(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    server, client = pair.server.application, pair.client.application
    client.keep_open = True
    assert server.transport.can_write_eof()
    server.transport.write(b"the last")
    server.transport.write_eof()
    server.transport.write(b"nothing more")
    assert pair.server.raw.half_closed
    pair.pass_on()
    assert (client.data, client.told) == (b"the last", ["made", "eof"])
    assert pair.client.session.eof_received(), "and so stays open"
    client.transport.write(b"still")
    pair.pass_on()
    assert server.data == b"still"
    client.transport.close()
    pair.pass_on()
    assert server.told == ["made", "eof"]


def half_closed(contexts: tuple[ssl.SSLContext, ssl.SSLContext], spoilt: bool = False) -> Pair:
    """Return a pair whose server stopped reading in the middle of what came, and then ended its own half."""
    pair = joined(contexts)
    server, client = pair.server.application, pair.client.application
    server.keep_open = client.keep_open = True
    server.pause_at = 1
    client.transport.write(b"a" * 200_000)  # more than is put through at once
    data = bytearray(pair.client.take())
    if spoilt:
        data[-1] ^= 1
    pair.server.session.data_received(bytes(data))
    assert 0 < len(server.data) < 200_000
    server.transport.write_eof()
    server.pause_at = None
    pair.pass_on()
    assert spoilt or client.told == ["made", "eof"]  # else it gets the alert instead
    assert server.told == ["made"]
    assert waits(pair.server.session)
    return pair


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_came_before_our_end_is_read_behind_it(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], version: ssl.TLSVersion
) -> None:
    contexts[0].maximum_version = version
    try:
        pair = half_closed(contexts)
    finally:
        contexts[0].maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
    server, client = pair.server.application, pair.client.application
    server.transport.resume_reading()
    pair.server.loop.run()
    assert server.data == b"a" * 200_000
    client.transport.write(b"b" * 1000)
    client.transport.close()
    pair.pass_on()
    assert server.data == b"a" * 200_000 + b"b" * 1000
    assert server.told == ["made", "eof"]
    assert not waits(pair.server.session)


def test_broken_records_behind_our_end_are_told(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    for before in (True, False):
        pair = half_closed(contexts, spoilt=before)
        server, client = pair.server.application, pair.client.application
        server.transport.resume_reading()
        pair.server.loop.run()
        if not before:
            client.transport.write(b"b" * 1000)
            data = bytearray(pair.client.take())
            data[-1] ^= 1
            pair.server.session.data_received(bytes(data))
        assert pair.server.raw.aborted
        pair.server.settle()
        whole = 200_000 // 16384 * 16384 if before else 200_000
        assert server.data == b"a" * whole, "what came whole arrives"
        ((lost, error),) = server.told[1:]
        assert (lost, type(error)) == ("lost", ssl.SSLError)


def test_an_end_finds_what_waits_here_first(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    server = pair.server.application
    server.transport.pause_reading()
    pair.client.application.transport.write(b"last words")
    pair.client.application.transport.close()
    pair.server.session.data_received(pair.client.take())
    server.transport.resume_reading()
    assert not pair.server.session.eof_received(), "it came before the loop did what it was asked to"
    assert (server.data, server.told) == (b"last words", ["made", "eof"])
    pair.server.settle()
    assert server.told[2:] == [("lost", None)]


def test_a_caller_that_goes_in_the_middle_of_a_record_is_cut(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    client, server = pair.client.application, pair.server.application
    client.transport.write(b"whole")
    whole = pair.client.take()
    client.transport.write(b"half")
    pair.server.session.data_received(whole + pair.client.take()[:-1])
    assert not pair.server.session.eof_received()
    pair.server.session.connection_lost(None)
    assert server.data == b"whole"
    ((lost, error),) = server.told[1:]
    assert (lost, type(error)) == ("lost", TruncatedError)


def test_who_is_not_let_in_gets_an_end(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = Pair(Side(contexts[0], server=False), Side(contexts[1], server=True, let_in=False))
    pair.pass_on()
    pair.server.settle()
    assert pair.server.raw.closing
    assert pair.server.application.told == []
    assert pair.client.application.told == ["made", "eof"]


def test_a_handshake_ends_once_though_its_owner_crashes(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    class Crashes(Side):
        def established(self, _: TlsTransport) -> None:
            raise RuntimeError("no")

    pair = Pair(Side(contexts[0], server=False), Crashes(contexts[1], server=True))
    with pytest.raises(RuntimeError):
        pair.pass_on()
    pair.server.session.connection_lost(None)
    assert pair.server.failures == []
    assert pair.server.application.told == []


def test_a_handshake_ends_once_whatever_ends_it(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    def time_is_over(side: Side) -> None:
        side.loop.later[0].callback()
        assert side.raw.aborted
        side.settle()

    def nonsense(side: Side) -> None:
        side.session.data_received(b"GET / HTTP/1.1\r\n\r\n")
        side.settle()

    def goes(side: Side) -> None:
        assert not side.session.eof_received()
        side.settle()

    def breaks(side: Side) -> None:
        side.session.connection_lost(OSError("broken"))

    ends: dict[Callable[[Side], None], type[Exception]] = {
        time_is_over: TimeoutError,
        nonsense: ssl.SSLError,
        goes: ConnectionResetError,
        breaks: OSError,
    }
    for end, kind in ends.items():
        side = Side(contexts[1], server=True)
        side.begin()
        end(side)
        (error,) = side.failures
        assert isinstance(error, kind)
        assert side.application.told == []
        assert side.loop.later[0].cancelled or end is time_is_over


def test_broken_records_end_a_session(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    pair.server.application.transport.write(b"x" * 100)
    data = bytearray(pair.server.take())
    data[-1] ^= 1
    pair.client.session.data_received(bytes(data))
    assert pair.client.raw.aborted
    pair.client.settle()
    assert pair.client.application.data == b""
    (_, error) = pair.client.application.told[1]
    assert isinstance(error, ssl.SSLError)


def test_a_certificate_that_is_refused_afterwards_is_told_apart(tmp_path: Path) -> None:
    authority = Authority()
    cert_file, key_file = authority.issue("a.test").write(tmp_path, "a")
    ca_file = write(tmp_path / "ca.pem", authority.pem)
    asks = server_context(ListenerTls(cert_file=cert_file, key_file=key_file), HTTP1)
    asks.load_verify_locations(ca_file)
    asks.verify_mode = ssl.CERT_REQUIRED
    pair = Pair(Side(client_context(UpstreamTls(ca_file=ca_file), HTTP1), server=False), Side(asks, server=True))
    pair.pass_on()
    assert len(pair.server.failures) == 1
    assert pair.client.failures == [], "for TLS 1.3 the handshake was over"
    pair.client.settle()
    made, (lost, error) = pair.client.application.told
    assert (made, lost) == ("made", "lost")
    assert isinstance(error, RefusedError)
    assert pair.client.refusals == [error], "its owner is told, as it is of a handshake that failed"
    assert pair.server.refusals == []
    assert str(error) == "TLS: our certificate was refused (tlsv13 alert certificate required)"


def test_nothing_is_written_after_the_end(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    pair = joined(contexts)
    for side in (pair.client, pair.server):
        side.application.transport.abort()
        assert side.application.transport.is_closing()
        side.application.transport.write(b"late")
        side.application.transport.close()
        assert side.raw.written == side.raw.late == b""
