"""The channel between the control process and one data process: typed messages over a SOCK_SEQPACKET socket pair.

SEQPACKET keeps message boundaries, so a process that died half-way never leaves half a message, and the supervisor can
hand the same socket to its successor. Sending never blocks: where the other side does not read, ``send`` returns False
and the sender decides (the control process sends a whole snapshot once the reader says hello again).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from router import model
from sidecar.faults.rules import FaultRule  # in the annotation of a message, which is read as it is decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_MESSAGE_BYTES = 96 * 1024
"""Largest datagram; well under the kernel's default send buffer of 208 KiB."""

BATCH = 64
"""Records per message where a list is split."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Data → control: a process starts or starts again and needs a snapshot. ``epoch`` is random per process."""

    index: int
    pid: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Listening:
    """Data → control: a listener accepts; what the kernel granted."""

    index: int
    listener: str
    address: str
    backlog: int
    fastopen_queue: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Control → data, twice a second: the control process is alive. ``epoch`` is random per control process.

    ``alive`` are the indices of the data processes that are, over which limits of the sidecar are divided; empty: not
    known yet. A change of it is told at once.
    """

    at: float
    epoch: str = ""
    alive: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadWanted:
    """Data → control: requests wait for a model that nobody has loaded, and its configuration says to have it loaded.

    Said again every two seconds while that is so.
    """

    model: str
    version: str


@dataclass(frozen=True, slots=True)
class GuardsInForce:
    """Data → control, once a second: all that is ejected at this process, in parts; the first and last are marked.

    So a control process that is new, or from which an event was lost, comes to show what requests meet.
    """

    ejected: tuple[model.EndpointEjected, ...]
    first: bool
    last: bool


GUARDS = BATCH // 2
"""Ejections in one message at most: of the longest names, with all that is told of their breakers."""


def guard_messages(ejected: tuple[model.EndpointEjected, ...]) -> Iterator[GuardsInForce]:
    """Yield ``ejected`` in parts that fit a message; one empty part where nothing is."""
    for start in range(0, max(1, len(ejected)), GUARDS):
        yield GuardsInForce(ejected[start : start + GUARDS], start == 0, start + GUARDS >= len(ejected))


OBSERVED_BYTES = 64 * 1024
"""What one message of observations may hold by :func:`_size_of`, unless one alone is larger."""

BUCKETS = 512
"""Latency buckets of one model version in one message at most; at the finest error there may be thousands."""


def observation_messages(
    source: int, observations: Iterable[model.Observation], at: float
) -> Iterator[model.PeerObserved]:
    """Yield observations in parts that fit a message, at least one; what one endpoint showed may be told in several."""
    batch: list[model.Observation] = []
    size = 0
    for part in (part for whole in observations for part in _parts(whole)):
        more = _size_of(part)
        if batch and (size + more > OBSERVED_BYTES or len(batch) >= BATCH):
            yield model.PeerObserved(source, tuple(batch), at)
            batch, size = [], 0
        batch.append(part)
        size += more
    yield model.PeerObserved(source, tuple(batch), at)


def _parts(whole: model.Observation) -> Iterator[model.Observation]:
    """Yield an observation whole, or where it is large a part for some model versions at a time."""
    if _size_of(whole) <= OBSERVED_BYTES // 2:
        yield whole
        return
    for seen in whole.seen:
        for start in range(0, max(1, len(seen.buckets)), BUCKETS):
            buckets = seen.buckets[start : start + BUCKETS]
            counts = seen
            if start:  # what is counted is told once
                counts = replace(
                    seen, successes=0, failures=0, unanswered=0, slow=0, others=0, overdue=0, failed_calls=0
                )
            yield replace(whole, seen=(replace(counts, buckets=buckets),), report=whole.report if start == 0 else None)


def _size_of(one: model.Observation) -> int:
    """Return more than the bytes that an observation takes in a message."""
    return (
        64
        + 4 * len(one.id)
        + sum(64 + 4 * (len(seen.model) + len(seen.version)) + 12 * len(seen.buckets) for seen in one.seen)
    )


@dataclass(frozen=True, slots=True)
class FaultsChanged:
    """Control → data: the whole list of faults in force."""

    rules: tuple[FaultRule, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Control → data: forget the answers that are kept of a model, or of all ("")."""

    model: str


@dataclass(frozen=True, slots=True)
class AnswerKept:
    """Data → control: an answer for the shared tier, at most ``entries`` and ``most_bytes`` of which are there."""

    key: bytes
    head: bytes
    body: bytes
    ttl_ms: int
    age_s: int
    entries: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerAsked:
    """Data → control: is there an answer in the shared tier? ``number`` comes back."""

    number: int
    key: bytes


@dataclass(frozen=True, slots=True)
class AnswerFound:
    """Control → data: the answer, kept for ``kept_ms`` of its time; no head where there is none.

    ``bad``: something stands there, but nothing that anybody kept.
    """

    number: int
    head: bytes = b""
    body: bytes = b""
    kept_ms: int = 0
    age_s: int = 0
    bad: bool = False


_TYPES: tuple[type, ...] = (
    Hello,
    Listening,
    Ping,
    FaultsChanged,
    model.EndpointSeen,
    model.EndpointsHeard,
    model.EndpointGone,
    model.SnapshotBegan,
    model.SnapshotEnded,
    model.StoreChanged,
    model.EndpointHeld,
    model.EndpointEjected,
    model.EndpointReturned,
    model.PeerObserved,
    GuardsInForce,
    model.BreakersHinted,
    CacheCleared,
    model.VersionsSteered,
    model.LoadsReported,
    LoadWanted,
    model.FleetMeasured,
    model.PrefixesSeen,
    AnswerKept,
    AnswerAsked,
    AnswerFound,
)
_CODES = {kind: code for code, kind in enumerate(_TYPES)}
_ENCODER = msgspec.msgpack.Encoder()
_FRAME: msgspec.msgpack.Decoder[tuple[int, msgspec.Raw]] = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_DECODERS: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(msgspec.msgpack.Decoder(kind) for kind in _TYPES)


class ChannelError(ValueError):
    """A message that cannot be sent (too large, or of a value that has no encoding) or read (not of this version)."""


def encode(message: object) -> bytes:
    """Return one message as a datagram.

    Raises:
        ChannelError: it is larger than MAX_MESSAGE_BYTES, or holds a value that has no encoding.
    """
    code = _CODES[type(message)]
    try:
        data = _ENCODER.encode((code, message))
    except (OverflowError, ValueError, TypeError) as error:  # an integer over 64 bits, half of a surrogate pair
        raise ChannelError(f"{type(message).__name__}: {type(error).__name__}: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise ChannelError(f"{type(message).__name__} of {len(data)} bytes, at most {MAX_MESSAGE_BYTES}")
    return data


def decode(data: bytes) -> object:
    """Read one datagram.

    Raises:
        ChannelError: not a message of this version.
    """
    try:
        code, raw = _FRAME.decode(data)
        return _DECODERS[code].decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, IndexError) as error:
        raise ChannelError(f"unreadable channel message: {error}") from error


def pair() -> tuple[socket.socket, socket.socket]:
    """Return (control end, data end) of a new channel, both non-blocking and inheritable."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
        end.set_inheritable(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ends


class Channel:
    """One end of the channel, for an event loop's ``add_reader`` (no loop's streams know SEQPACKET)."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.dropped = 0

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Return the channel on an inherited descriptor."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the descriptor, for ``add_reader``."""
        return self._sock.fileno()

    def send(self, message: object) -> bool:
        """Send one message at once; False where the other side is gone or does not keep up (counted in ``dropped``)."""
        try:
            self._sock.send(encode(message))
        except OSError:  # full (EAGAIN), or the reader's end is closed
            self.dropped += 1
            return False
        return True

    def receive(self, most: int = 64) -> Iterator[object]:
        """Yield the messages that are there, at most ``most`` so that a loop stays fair.

        Raises:
            ChannelError: a message of another version.
            EOFError: the other side closed for good.
        """
        for _ in range(most):
            try:
                data = self._sock.recv(MAX_MESSAGE_BYTES + 1)
            except BlockingIOError:
                return
            except OSError as error:
                raise EOFError(str(error)) from error
            if not data:
                raise EOFError("channel closed")
            yield decode(data)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()
