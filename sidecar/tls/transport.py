"""One TLS session between a plain transport and an application's protocol.

Towards the loop it is the protocol of the plain transport, towards the application its transport. The loop's own TLS
transports are not used, for what they do at the end of a connection (docs/adr/0011-tls.md): here nothing that arrived
is lost while reading is paused, what is still to be sent can be asked for, our side can be shut alone, and an end
without close_notify, which anyone on the way can make, is told from a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from sidecar.tls.names import identity_of

if TYPE_CHECKING:
    from typing import Literal

PREFIX: Final = "TLS: "
"""What begins a text that says why there is no session, where it stands beside other reasons."""
RECORD_BYTES: Final = 16384
"""Most that one record holds (RFC 8446 5.1): a read of this size always takes a whole one."""
SLICE_BYTES: Final = 65536
"""Most that is put through at once. The buffers between keep the largest size that they ever had."""

_HANDSHAKE: Final = 0
_OPEN: Final = 1
_CLOSING: Final = 2  # nothing is read or written any more; what was written is on its way
_CLOSED: Final = 3


class TruncatedError(ConnectionResetError):
    """The connection ended without close_notify: whoever cut it need not be the peer (RFC 8446 6.1)."""

    def __init__(self) -> None:
        super().__init__("ended without close_notify")


class RefusedError(ConnectionRefusedError):
    """The server did not take our certificate, and so nothing that we sent (in TLS 1.3 it may say so afterwards)."""


_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)


class Owner(Protocol):
    """Who began a session, and hears how its handshake ended: exactly one of the first two, once."""

    def established(self, session: TlsTransport) -> asyncio.Protocol | None:
        """The peer is who its certificate says; return the protocol to serve it, or None: it may not come in."""

    def failed(self, session: TlsTransport, error: Exception) -> None:
        """There is no session."""

    def refused(self, error: RefusedError) -> None:
        """There was one for us alone: the server did not take our certificate."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """One session. ``server_name`` is what a client asks for and checks; None on the server's side."""

    __slots__ = (
        "_alive",
        "_application",
        "_backlog",
        "_broken",
        "_ended",
        "_failure",
        "_half_closed",
        "_heard",
        "_held",
        "_identity",
        "_incoming",
        "_loop",
        "_object",
        "_outgoing",
        "_owner",
        "_partial",
        "_raw",
        "_state",
        "_timeout_s",
        "_timer",
        "_told",
        "server_side",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        owner: Owner,
        *,
        timeout_s: float | None,
        server_name: str | None = None,
        server_side: bool,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self._owner = owner
        self._application: asyncio.Protocol
        self._raw: asyncio.Transport
        self._state = _HANDSHAKE
        self._identity: bytes | None = None  # of the peer, once somebody asked
        self._held = False  # the application reads no more for now
        self._ended = False  # the peer said that it sends no more
        self._told = False  # and the application knows
        self._half_closed = False  # and we said so
        self._backlog: list[bytes] = []  # decrypted, and not given to the application yet
        self._partial = False  # the last that came is a part of a record
        self._broken: Exception | None = None  # what is behind that cannot be read
        self._heard = False  # the application was given something
        self._failure: Exception | None = None
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._alive = False  # the application was told that there is a connection, and not yet that it is gone
        self.server_side: Final = server_side

    # --- what concerns TLS ----------------------------------------------------------------------------------------

    @property
    def object(self) -> ssl.SSLObject:
        """The session as OpenSSL knows it."""
        return self._object

    @property
    def unread(self) -> bool:
        """Whether something arrived that the application was not given yet."""
        return (
            self._incoming.pending > 0
            or bool(self._backlog)
            or self._broken is not None
            or (self._ended and not self._told)
        )

    # --- the plain transport's protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._raw = cast("asyncio.Transport", transport)
        if self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self._out_of_time)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        """Decrypt, and give what is in it to the application in one piece."""
        if len(data) <= SLICE_BYTES:
            self._incoming.write(data)
            self._take()
        else:
            rest = memoryview(data)
            while rest and self._state <= _OPEN:
                self._incoming.write(rest[:SLICE_BYTES])
                rest = rest[SLICE_BYTES:]
                self._take()

    def eof_received(self) -> bool:
        """The plain connection ended in order; whether the session did is another question."""
        if self._state == _HANDSHAKE:
            self._fail_handshake(ConnectionResetError("closed inside the handshake"))
        elif self._state == _OPEN:
            if self.unread:
                self._deliver()
            if self._state == _OPEN:
                return self._ended or self._cut()  # ended: the application was told, and wants to go on writing
        return False

    def _cut(self) -> bool:
        """It ended without close_notify; return whether the application wants to go on writing.

        A caller that is gone is gone; but an answer cut short must not look whole, nor may what came be dropped because
        the rest of its record is missing.
        """
        self._failure = TruncatedError()
        if self.server_side and not self._partial:
            return bool(self._application.eof_received())
        self._state = _CLOSING
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, or whoever waited for it to come to be."""
        state, self._state = self._state, _CLOSED
        if state == _HANDSHAKE:
            self._settle_handshake()
            self._owner.failed(self, exc or self._failure or ConnectionResetError("closed inside the handshake"))
        elif self._alive:
            self._alive = False
            self._application.connection_lost(exc or self._failure)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        if self._alive:
            self._application.pause_writing()

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._alive:
            self._application.resume_writing()

    # --- the handshake --------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert that tells the peer
            self._fail_handshake(error)
            return
        self._flush()
        self._settle_handshake()
        self._state = _CLOSING  # whatever becomes of it, the handshake is over and its owner told so
        application = self._owner.established(self)
        if application is None:
            self._state = _OPEN
            self.close()
            return
        self._application = application
        self._state = _OPEN
        self._alive = True
        application.connection_made(self)
        if self._incoming.pending:
            self._deliver()

    def _out_of_time(self) -> None:
        self._timer = None
        self._failure = TimeoutError(f"no handshake in {self._timeout_s} s")
        self._raw.abort()

    def _fail_handshake(self, error: Exception) -> None:
        self._settle_handshake()
        self._state = _CLOSED
        self._raw.close()
        self._owner.failed(self, error)

    def _settle_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- reading ----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        if self._state == _HANDSHAKE:
            self._shake_hands()
        elif self._state == _OPEN:
            self._deliver()

    def _deliver(self) -> None:
        """Give the application what can be decrypted, and the end where it is there."""
        if self._held or self._state != _OPEN:
            return
        self._decrypt()
        if self._backlog:
            pieces, self._backlog = self._backlog, []
            self._heard = True
            self._application.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._broken is not None:
            self._fail(self._broken)
        elif self._ended:
            self._tell_end()

    def _decrypt(self) -> None:
        """Decrypt all that there is, up to the end or to what cannot be read."""
        incoming, read, add = self._incoming, self._object.read, self._backlog.append
        if not incoming.pending or self._broken is not None:
            return
        self._partial = False
        try:
            while incoming.pending:
                piece = read(RECORD_BYTES)
                if not piece:
                    self._ended = True
                    incoming.read()  # nothing may follow (RFC 8446 6.1)
                    break
                add(piece)
        except ssl.SSLWantReadError:
            self._partial = True
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            self._broken = error
            incoming.read()
        if self._outgoing.pending:  # an answer of OpenSSL's own, such as one to a change of keys, or an alert
            self._flush()

    def _tell_end(self) -> None:
        if not self._told and not self._held and self._state == _OPEN:
            self._told = True
            if not self._application.eof_received():
                self.close()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if (
            isinstance(error, ssl.SSLError)
            and error.reason in _CERTIFICATE_ALERTS
            and not (self.server_side or self._heard)
        ):
            alert = error.reason.replace("_", " ").lower()
            self._failure = RefusedError(f"{PREFIX}our certificate was refused ({alert})")
            self._owner.refused(self._failure)
        if self._state == _OPEN:
            self._state = _CLOSING
            self._raw.abort()

    def pause_reading(self) -> None:
        """Give the application nothing until it says so."""
        self._held = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Go on; what waits here comes first."""
        if self._held:
            self._held = False
            if self.unread:
                self._loop.call_soon(self._deliver)
            self._raw.resume_reading()

    def is_reading(self) -> bool:
        """Whether the application wants to read."""
        return not self._held

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send."""
        if self._state != _OPEN or self._half_closed or not data:
            return
        try:
            if len(data) <= SLICE_BYTES:
                self._object.write(data)  # all of it: the buffer behind takes whatever comes
                self._raw.write(self._outgoing.read())
            else:
                rest = memoryview(data)
                while rest:
                    self._object.write(rest[:SLICE_BYTES])
                    self._raw.write(self._outgoing.read())
                    rest = rest[SLICE_BYTES:]
        except ssl.SSLError as error:
            self._fail(error)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Say that nothing follows; go on reading."""
        if self._state == _OPEN and not self._half_closed:
            self._decrypt()  # OpenSSL, where it finds data as it says goodbye, never reads again
            self._half_closed = True
            self._say_goodbye()
            self._raw.write_eof()

    def can_write_eof(self) -> Literal[True]:
        """True: close_notify is for one direction (RFC 8446 6.1); a peer of TLS 1.2 may close at it."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes still wait for the peer."""
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high mark."""
        return self._raw.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which writing is paused and resumed, in encrypted bytes."""
        self._raw.set_write_buffer_limits(high, low)

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self._raw.write(data)

    def _say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError, ValueError):  # it cannot have the peer's answer yet
            self._object.unwrap()
        self._flush()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what was written, then close_notify, then end. The peer's answer to that is not waited for."""
        if self._state == _OPEN:
            self._state = _CLOSING
            if not self._half_closed:
                self._say_goodbye()
            self._raw.close()

    def abort(self) -> None:
        """End at once, without close_notify."""
        if self._state == _OPEN:
            self._state = _CLOSING
        self._raw.abort()

    def is_closing(self) -> bool:
        """Whether it ends or has ended."""
        return self._state > _OPEN or self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``ssl_object``, ``cipher``, ``peercert``, ``peer_identity``, or what the plain transport knows.

        ``peer_identity`` is :func:`sidecar.tls.names.identity_of` the peer's certificate.
        """
        if name == "ssl_object":
            return self._object
        if name == "cipher":
            return self._object.cipher()
        if name == "peercert":
            return self._object.getpeercert()
        if name == "peer_identity":
            if self._identity is None:
                self._identity = identity_of(self._object.getpeercert)
            return self._identity
        return self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Put another application in the place of the one there is."""
        self._application = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the application."""
        return self._application
