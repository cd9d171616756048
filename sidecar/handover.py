"""How a new supervisor takes the listening sockets over from the one that runs, while both serve.

The one that runs waits on an abstract Unix socket whose name only tells the user and a listener's address. Whoever
connects must be of the same user (SO_PEERCRED) or root. Messages are JSON datagrams (SOCK_SEQPACKET), sockets come
along as SCM_RIGHTS (unix(7))::

    successor                    predecessor
    Hello                   ->
                            <-   Sockets (one per address), Memory, Given       or Refused
    (starts its processes on the same sockets; both accept)
    Ready                   ->
                            <-   Yielded    (it drains from now on)

Until ``Ready`` the predecessor goes on as if nothing were, whatever becomes of the successor.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from sidecar.sockets import Found
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PROTOCOL = 1
GREETING_S = 5.0
"""Longest wait for the next message while sockets are handed over."""
READY_S = 30.0
"""How long a successor may take from there until all its processes accept."""
MAX_FDS = 64
"""Sockets in one message: as many as a listener may have processes."""
_MAX_BYTES = 65536
_UCRED = struct.Struct("3i")

log = get_log("upgrade")


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A successor is there."""

    protocol: int
    version: str
    pid: int


class Sockets(msgspec.Struct, frozen=True, tag=True):
    """The listening sockets of one address come with this. ``asked`` is as configured, ``address`` as bound.

    ``backlog`` is what they listen with: of a Unix socket the kernel does not tell.
    """

    admin: bool
    asked: str
    address: str
    backlog: int = 0


class Memory(msgspec.Struct, frozen=True, tag=True):
    """The memory file of the control process comes with this: holds, faults, the last good view of the store."""


class Given(msgspec.Struct, frozen=True, tag=True):
    """That was all."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """No, or no longer."""

    why: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All processes of the successor accept. ``taken`` are the addresses, as bound, that it took over."""

    taken: tuple[str, ...]


class Yielded(msgspec.Struct, frozen=True, tag=True):
    """The predecessor serves its admin API no more, and drains."""


Message = Hello | Sockets | Memory | Given | Refused | Ready | Yielded
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class HandoverError(Exception):
    """Why nothing can be taken over; one line, with what to do."""


def name_for(address: str) -> str:
    """Return the name (without its leading NUL) on which the one that listens on ``address`` waits for successors."""
    return f"warmroute-upgrade-{os.geteuid()}-{hashlib.sha256(address.encode()).hexdigest()[:32]}"


def upgrade_command(executable: str, command: Sequence[str], address: str) -> list[str]:
    """Return the command that starts the successor of a process which was started with ``command``."""
    kept: list[str] = []
    skip = False
    for word in command[1:]:
        if skip:
            skip = False
        elif word == "--upgrade-from":
            skip = True
        elif word != "--upgrade" and not word.startswith("--upgrade-from="):
            kept.append(word)
    return [executable, *kept, "--upgrade-from", address]


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of who connected."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def _receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """Return the next message, None at the end; with the descriptors that came along."""
    data, fds, _, _ = socket.recv_fds(sock, _MAX_BYTES, MAX_FDS)
    if not data:
        return None, fds
    try:
        return _DECODER.decode(data), fds
    except msgspec.DecodeError as error:
        for fd in fds:
            os.close(fd)
        raise HandoverError(f"unreadable message: {error}") from error


def _send(sock: socket.socket, message: Message, fds: Iterable[int] = ()) -> None:
    socket.send_fds(sock, [msgspec.json.encode(message)], list(fds))


class Offer(msgspec.Struct, frozen=True):
    """What is given to a successor, with the descriptors."""

    sockets: tuple[tuple[Sockets, tuple[int, ...]], ...]
    memory_fd: int


class Gate:
    """Where successors come to the one that runs. Never blocks. ``refusal`` says why none may take over now, or ''."""

    def __init__(self, addresses: Sequence[str], offer: Callable[[], Offer], refusal: Callable[[], str]) -> None:
        self._addresses = tuple(addresses)
        self._offer = offer
        self._refusal = refusal
        self._open: dict[str, socket.socket] = {}
        self._successor: socket.socket | None = None
        self._greeted = False
        self._until = 0.0
        self.pid = 0
        """Of the successor that is starting; 0 where none is."""

    def open(self) -> bool:
        """Wait on every address' name; False where another process (one that drains, most likely) has one yet."""
        for address in self._addresses:
            if address not in self._open:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                try:
                    sock.bind("\0" + name_for(address))
                    sock.listen(4)
                except OSError:
                    sock.close()
                    continue
                self._open[address] = sock
        return len(self._open) == len(self._addresses)

    @property
    def readers(self) -> list[socket.socket]:
        """What to call :meth:`step` for when it can be read."""
        return [*self._open.values(), *([self._successor] if self._successor is not None else [])]

    @property
    def due(self) -> float:
        """When to call it all the same."""
        return self._until if self._successor is not None else float("inf")

    def step(self, now: float) -> Ready | None:
        """Do what there is to do; return the successor's word once it is ready."""
        for sock in self._open.values():
            self._accept(sock, now)
        if self._successor is None:
            return None
        try:
            message, fds = _receive(self._successor)
        except BlockingIOError:
            if now >= self._until:
                self.refuse("it took too long")
            return None
        except (OSError, HandoverError) as error:
            self._drop(str(error))
            return None
        for fd in fds:
            os.close(fd)
        return self._take(message, now)

    def _accept(self, sock: socket.socket, now: float) -> None:
        try:
            peer, _ = sock.accept()
        except OSError:
            return
        peer.setblocking(False)
        pid, uid = _peer(peer)
        if uid not in (os.geteuid(), 0):
            log.warning("upgrade.refused", pid=pid, uid=uid, why="of another user")
            peer.close()
            return
        why = self._refusal()
        if not why and self._successor is not None:
            why = f"process {self.pid} takes over already: wait for it"
        if why:
            log.warning("upgrade.refused", pid=pid, why=why)
            try:
                _send(peer, Refused(why))
            except OSError as error:
                log.warning("upgrade.unheard", pid=pid, error=str(error))
            peer.close()
            return
        self._successor, self.pid, self._greeted = peer, pid, False
        self._until = now + GREETING_S

    def _take(self, message: Message | None, now: float) -> Ready | None:
        if isinstance(message, Hello) and not self._greeted:
            self._greeted = True
            self._until = now + READY_S + GREETING_S
            if message.protocol != PROTOCOL:
                self.refuse(f"it speaks upgrade protocol {message.protocol}, this one {PROTOCOL}: restart instead")
            else:
                self._give(message)
            return None
        if isinstance(message, Ready) and self._greeted:
            return message
        self._drop("it left" if message is None else f"unexpected {type(message).__name__}")
        return None

    def _give(self, hello: Hello) -> None:
        assert self._successor is not None  # noqa: S101
        offer = self._offer()
        log.info("upgrade.began", pid=self.pid, version=hello.version, addresses=len(offer.sockets))
        try:
            for message, fds in offer.sockets:
                _send(self._successor, message, fds)
            _send(self._successor, Memory(), (offer.memory_fd,))
            _send(self._successor, Given())
        except OSError as error:
            self._drop(str(error))

    def refuse(self, why: str) -> None:
        """Tell the successor that is starting, where one is, to leave."""
        if self._successor is not None:
            try:
                _send(self._successor, Refused(why))
            except OSError as error:
                why = f"{why} ({error})"
            self._drop(why)

    def _drop(self, why: str) -> None:
        if self._successor is not None:
            log.error("upgrade.failed", pid=self.pid, why=why, effect="this one goes on")
            self._successor.close()
        self._successor, self.pid = None, 0

    def yielded(self) -> None:
        """Tell the successor that all is its own now. Nobody else can come any more."""
        successor, self._successor = self._successor, None
        self.close()
        if successor is not None:
            try:
                _send(successor, Yielded())
            except OSError as error:
                log.warning("upgrade.unheard", pid=self.pid, error=str(error))
            successor.close()

    def close(self) -> None:
        """Wait for nobody any more."""
        for sock in self._open.values():
            sock.close()
        self._open.clear()
        if self._successor is not None:
            self._successor.close()
            self._successor = None


class Inheritance:
    """The successor's end: the sockets of the one that runs, and the conversation with it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.pid, _ = _peer(sock)
        self.memory = b""
        self.yielded = False
        self.refused = ""
        self.said_ready = False
        self.taken: set[str] = set()
        self._sockets: list[tuple[Sockets, list[socket.socket]]] = []

    @classmethod
    def claim(cls, addresses: Iterable[str], version: str) -> Inheritance:
        """Take over from the one that listens on one of ``addresses``.

        Raises:
            HandoverError: there is none, or it refuses.
        """
        tried = list(addresses)
        for address in tried:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(GREETING_S)
            try:
                sock.connect("\0" + name_for(address))
            except OSError:
                sock.close()
                continue
            made = cls(sock)
            try:
                made._greet(version)
            except (OSError, HandoverError) as error:
                made.close()
                raise HandoverError(f"process {made.pid} does not hand over: {error}") from error
            sock.setblocking(False)
            return made
        where = ", ".join(tried)
        raise HandoverError(
            f"no sidecar of this user to take over from listens on {where}: start without --upgrade, or name where it "
            f"listens with --upgrade-from"
        )

    def _greet(self, version: str) -> None:
        _, uid = _peer(self._sock)
        if uid not in (os.geteuid(), 0):
            raise HandoverError(f"it belongs to user {uid}")
        with suppress(OSError):  # it has refused already, without waiting for that: its word waits to be read
            _send(self._sock, Hello(PROTOCOL, version, os.getpid()))
        while True:
            message, fds = self._next()
            if isinstance(message, Sockets):
                self._sockets.append((message, [socket.socket(fileno=fd) for fd in fds]))
            elif isinstance(message, Memory) and fds:
                self.memory = os.pread(fds[0], os.fstat(fds[0]).st_size, 0)
                os.close(fds[0])
            elif isinstance(message, Given):
                return
            elif isinstance(message, Refused):
                raise HandoverError(message.why)
            else:
                raise HandoverError("it ended while it handed over")

    def _next(self) -> tuple[Message | None, list[int]]:
        try:
            return _receive(self._sock)
        except ConnectionResetError:  # said once where the other side closed unread; what it sent before comes after
            return _receive(self._sock)

    def take(self, asked: str, address: str, *, admin: bool = False) -> Found:
        """Return the sockets of an address, as configured or as bound; without any where it has none."""
        for index, (about, sockets) in enumerate(self._sockets):
            if about.admin is admin and (about.asked == asked or about.address == address):
                del self._sockets[index]
                self.taken.add(about.address)
                return Found(sockets, about.address, about.backlog)
        return Found()

    def close_rest(self) -> None:
        """Close what the configuration does not name any more."""
        for _, sockets in self._sockets:
            for sock in sockets:
                sock.close()
        self._sockets.clear()

    @property
    def readers(self) -> list[socket.socket]:
        """What to call :meth:`step` for when it can be read."""
        return [self._sock] if not self.yielded and not self.refused else []

    def ready(self) -> None:
        """Say that every process accepts."""
        self.said_ready = True
        try:
            _send(self._sock, Ready(tuple(sorted(self.taken))))
        except OSError as error:  # it is gone: step() will see that
            log.warning("upgrade.unheard", pid=self.pid, error=str(error))

    def step(self) -> None:
        """Hear what the predecessor says. One that is gone without a word leaves everything to us."""
        try:
            message, fds = _receive(self._sock)
        except BlockingIOError:
            return
        except (OSError, HandoverError) as error:
            log.warning("upgrade.predecessor_gone", pid=self.pid, error=str(error))
            message, fds = None, []
        for fd in fds:
            os.close(fd)
        if isinstance(message, Refused):
            self.refused = message.why
        elif isinstance(message, Yielded) or message is None:
            self.yielded = True

    def close(self) -> None:
        """End the conversation."""
        self._sock.close()
        self.close_rest()
