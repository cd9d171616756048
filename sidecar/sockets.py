"""The listening sockets of a sidecar: made once by the supervisor, inherited by its children.

Each data process has a socket of its own per listener (SO_REUSEPORT), so the kernel spreads connections and a process
that died is replaced behind the same accept queue: what waits there is served by its successor.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from router.urls import MAX_UNIX_PATH_BYTES
from sidecar.config.addresses import AddressError, fits_unix_socket, split_address, unix_path
from sidecar.sysctl import fastopen_for_servers, sysctl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.settings import Admin, Listener

TCP_FASTOPEN = getattr(socket, "TCP_FASTOPEN", 23)
_TCP_INFO_MAX_BACKLOG = 28  # tcp_info.tcpi_sacked: of a listening socket, its largest backlog (tcp(7), ss(8))
_ADMIN_BACKLOG = 64
_TRY_CONNECT_S = 0.5

SockAddr: TypeAlias = tuple[str, int] | tuple[str, int, int, int]


class BindError(Exception):
    """An address that cannot be listened on. The text is one line: what, why, and which setting changes it."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What the kernel granted a listener, against what was asked for."""

    backlog: int
    backlog_asked: int
    fastopen_queue: int  # 0 where fast open has no effect
    fastopen_asked: int

    @property
    def remedy(self) -> str:
        """What an operator can change to get what was asked for; empty where it was granted."""
        parts = []
        if self.backlog < self.backlog_asked:
            parts.append(f"backlog: sysctl net.core.somaxconn={self.backlog_asked}")
        if self.fastopen_asked and not self.fastopen_queue:
            parts.append("fast open: sysctl net.ipv4.tcp_fastopen=3")
        elif self.fastopen_queue < self.fastopen_asked:
            parts.append(f"fast-open queue: sysctl net.core.somaxconn={self.fastopen_asked}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The file of a Unix socket of ours. ``inode``: (device, inode), by which another's in its place is told."""

    path: Path
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> SocketFile:
        """Return the file that is at ``path`` now."""
        return cls(path, _inode(path))

    def remove(self) -> None:
        """Remove it, unless another process has put its own there since."""
        if _inode(self.path) == self.inode:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class OpenListener:
    """One listener's sockets, by data process index. There may be more of them than processes (see sockets_of)."""

    index: int  # into Settings.listeners
    name: str
    address: str  # as bound: the port is known
    sockets: tuple[socket.socket, ...]  # of a Unix socket the same one for all: the kernel knows no others there
    granted: Granted
    processes: int
    asked: str  # the address as configured
    file: SocketFile | None = None
    taken: int = 0  # how many of the sockets, the first ones, another sidecar has too
    kept_backlog: int = 0  # with which those listen there; 0 where there are none

    def sockets_of(self, index: int) -> tuple[socket.socket, ...]:
        """Return the sockets on which data process ``index`` accepts.

        One each; where fewer processes than before took sockets over, some have more: to close one would reset what
        waits in its queue.
        """
        return self.sockets[index :: self.processes] if index < self.processes else ()

    def is_later(self, sock: socket.socket) -> bool:
        """Whether a socket is bound only, so that it gets no connection while another sidecar serves on the address."""
        return self.taken > 0 and sock not in self.sockets[: self.taken]

    def backlog_of(self, sock: socket.socket) -> int:
        """Return with which backlog to listen while another sidecar serves; 0 for the one that is configured."""
        return 0 if self.is_later(sock) else self.kept_backlog

    def taken_over(self, listener: Listener) -> OpenListener:
        """Have the sockets that another sidecar had be as ``listener`` is configured: they are nobody else's any more.

        :raises OSError: a Unix socket's file is gone, or another user's.
        """
        for sock in dict.fromkeys(self.sockets[: self.taken]):
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, listener.fastopen_queue)
            sock.listen(listener.backlog)
        if self.taken and self.file is not None:
            self.file.path.chmod(int(listener.unix_mode, 8))
        now = granted(self.sockets[0], listener.backlog, listener.fastopen_queue)
        return replace(self, granted=now, taken=0, kept_backlog=0)

    def close(self) -> None:
        """Close the sockets; a file in the file system stays."""
        for sock in self.sockets:
            sock.close()

    def remove_socket_file(self) -> None:
        """Remove a Unix socket's file, unless another process has put its own there since."""
        if self.file is not None:
            self.file.remove()


@dataclass(slots=True)
class OpenAdmin:
    """The admin API's sockets, the Unix socket first where there is one."""

    sockets: tuple[socket.socket, ...] = ()
    addresses: tuple[str, ...] = ()  # as bound, for people
    asked: tuple[str, ...] = ()  # as configured, paths absolute
    file: SocketFile | None = None

    def leave_file(self, addresses: set[str]) -> None:
        """Leave the Unix socket's file, where that is one of ``addresses``: it is another process's now."""
        if self.file is not None and self.addresses[0] in addresses:
            self.file = None

    def remove_socket_file(self) -> None:
        """Remove the Unix socket's file, unless another process has put its own there since."""
        if self.file is not None:
            self.file.remove()


class Found(NamedTuple):
    """Sockets that another process has open already: how they are bound, and with which backlog they listen there."""

    sockets: Sequence[socket.socket] = ()
    address: str = ""
    backlog: int = 0


class Inherited(Protocol):
    """Where sockets come from that another process has open already (sidecar/handover.py)."""

    def take(self, asked: str, address: str, *, admin: bool = False) -> Found:
        """Return the sockets of an address, as configured or as bound; without any where it has none."""


class Nothing:
    """No other process has anything open for us."""

    def take(self, asked: str, address: str, *, admin: bool = False) -> Found:
        """Return nothing."""
        return Found()


NOTHING = Nothing()


def open_listeners(listeners: tuple[Listener, ...], inherited: Inherited = NOTHING) -> tuple[OpenListener, ...]:
    """Bind and listen for every listener and data process; what is ``inherited`` stays as it is.

    Sockets that are to stand beside inherited ones are bound only: once they listen, the kernel gives them their share
    of the connections, while nobody accepts there yet, and perhaps never will.

    Raises:
        BindError: an address is taken, not allowed or does not exist; nothing stays open.
    """
    with ExitStack() as undo:
        opened = tuple(_open_listener(index, listener, inherited, undo) for index, listener in enumerate(listeners))
        undo.pop_all()
        return opened


def open_admin(admin: Admin, inherited: Inherited = NOTHING) -> OpenAdmin:
    """Bind and listen for the admin API: a Unix socket of mode 0600, and a TCP socket; or take over what is inherited.

    A socket file that nobody answers on any more is removed; a missing directory is made, mode 0700.

    Raises:
        BindError: an address is taken, not allowed or does not exist; nothing stays open.
    """
    with ExitStack() as undo:
        opened = OpenAdmin()
        if admin.socket is not None:
            path = Path(admin.socket).absolute()
            address = f"unix:{path}"
            found = inherited.take(address, address, admin=True)
            if found.sockets:
                unix, file = undo.enter_context(found.sockets[0]), SocketFile.of(path)
            else:
                unix, file = _bind_unix(path, 0o600, _ADMIN_BACKLOG, "--admin-socket PATH or admin.socket", undo)
            opened = OpenAdmin((unix,), (address,), (address,), file)  # a relative path is another one elsewhere
        if admin.address is not None:
            found = inherited.take(admin.address, _as_bound(admin.address), admin=True)
            bound = found.address
            if found.sockets:
                tcp = undo.enter_context(found.sockets[0])
            else:
                tcp, bound = _bind_admin(admin.address, undo)
            opened.sockets += (tcp,)
            opened.addresses += (bound,)
            opened.asked += (admin.address,)
        undo.pop_all()
        return opened


def bound_addresses(listeners: tuple[Listener, ...]) -> tuple[str, ...]:
    """Return how the addresses of ``listeners`` would be bound; without those whose port the kernel chooses."""
    found = (_as_bound(listener.address) for listener in listeners)
    return tuple(address for address in found if address and not address.endswith(":0"))


def _as_bound(address: str) -> str:
    """Return the address as :func:`bound_address` has it once bound; empty where it cannot be resolved."""
    if unix_path(address) is not None:
        return address
    try:
        family, sockaddr = resolve(address, "")
    except BindError:
        return ""
    host, port = sockaddr[:2]
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"


def check_free(address: str, change: str) -> None:
    """Refuse an address that somebody listens on already; ``change`` names the setting that chooses another.

    SO_REUSEPORT alone would let a second sidecar of the same user share the port in silence.

    Raises:
        BindError: taken, not allowed, or no such address.
    """
    family, sockaddr = resolve(address, change)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        with _refusal(address, change):
            probe.bind(sockaddr)
            probe.listen(1)


def resolve(address: str, change: str) -> tuple[socket.AddressFamily, SockAddr]:
    """Return the family and socket address of ``HOST:PORT`` (an IPv6 HOST in brackets).

    Raises:
        BindError: not of that form, or the name has no address.
    """
    try:
        host, port = split_address(address)
        flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except AddressError as error:
        raise BindError(f"{address!r} {error}; set another with {change}") from error
    except (OSError, UnicodeError) as error:
        raise BindError(f"{address}: {error}; set another with {change}") from error
    family, _, _, _, sockaddr = found[0]
    return family, sockaddr  # type: ignore[return-value]  # typeshed also knows other families


def bound_address(sock: socket.socket) -> str:
    """Return ``HOST:PORT`` as bound, IPv6 in brackets."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


def granted(sock: socket.socket, backlog_asked: int, fastopen_asked: int) -> Granted:
    """Ask the kernel what a listening socket really got; of a Unix socket it tells no more than its cap."""
    if sock.family == socket.AF_UNIX:
        return Granted(min(backlog_asked, sysctl("net.core.somaxconn") or backlog_asked), backlog_asked, 0, 0)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_MAX_BACKLOG + 4)
    (backlog,) = struct.unpack_from("I", info, _TCP_INFO_MAX_BACKLOG)
    queue = (
        sock.getsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN)
        if fastopen_for_servers(sysctl("net.ipv4.tcp_fastopen"))
        else 0
    )
    return Granted(backlog, backlog_asked, queue, fastopen_asked)


def _open_listener(index: int, listener: Listener, inherited: Inherited, undo: ExitStack) -> OpenListener:
    found = inherited.take(listener.address, _as_bound(listener.address))
    sockets = [undo.enter_context(sock) for sock in found.sockets]
    taken = len(sockets)
    path = unix_path(listener.address)
    if path is not None:
        return _open_unix_listener(index, listener, Path(path), found, undo)
    change = f"--listen HOST:PORT or listeners[{index}].address"
    if not sockets:
        check_free(listener.address, change)
    family, sockaddr = resolve(found.address or listener.address, change)
    while len(sockets) < listener.processes:
        sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
        if sockets:
            sockaddr = sockets[0].getsockname()  # port 0: the first one's choice holds for all
        with _refusal(listener.address, change):
            sock.bind(sockaddr)
        sockets.append(sock)
    for sock in sockets[taken:]:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, listener.fastopen_queue)
        sock.setblocking(False)
    if not taken:
        for sock in sockets:  # after every bind: nobody is connected to a set that is not complete
            sock.listen(listener.backlog)
    address = bound_address(sockets[0])
    return OpenListener(
        index,
        listener.name or address,
        address,
        tuple(sockets),
        granted(sockets[0], listener.backlog, listener.fastopen_queue),
        listener.processes,
        listener.address,
        taken=taken,
        kept_backlog=found.backlog,
    )


def _open_unix_listener(index: int, listener: Listener, path: Path, found: Found, undo: ExitStack) -> OpenListener:
    change = f"--listen unix:/PATH or listeners[{index}].address"
    if found.sockets:
        sock = found.sockets[0]
        with _refusal(listener.address, change):
            path.lstat()
        file = SocketFile.of(path)
    else:
        sock, file = _bind_unix(path, int(listener.unix_mode, 8), listener.backlog, change, undo)
    return OpenListener(
        index,
        listener.name or listener.address,
        listener.address,
        (sock,) * listener.processes,
        granted(sock, listener.backlog, 0),
        listener.processes,
        listener.address,
        file,
        len(found.sockets) and listener.processes,
        found.backlog,
    )


def _bind_admin(address: str, undo: ExitStack) -> tuple[socket.socket, str]:
    change = "--admin HOST:PORT or admin.address"
    family, sockaddr = resolve(address, change)
    sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _refusal(address, change):
        sock.bind(sockaddr)
        sock.listen(_ADMIN_BACKLOG)
    sock.setblocking(False)
    return sock, bound_address(sock)


def _bind_unix(path: Path, mode: int, backlog: int, change: str, undo: ExitStack) -> tuple[socket.socket, SocketFile]:
    if not fits_unix_socket(path):
        raise BindError(
            f"{path} is longer than the {MAX_UNIX_PATH_BYTES} bytes a Unix socket may have; set a shorter one with "
            f"{change}"
        )
    sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    with _refusal(str(path), change):
        path.parent.mkdir(mode=0o755 if mode & 0o077 else 0o700, parents=True, exist_ok=True)
        _remove_stale(path, change)
        mask = os.umask(0o777 & ~mode)  # the file must never be open to others, not even for an instant
        try:
            sock.bind(str(path))
        finally:
            os.umask(mask)
        file = SocketFile.of(path)
        undo.callback(file.remove)
        sock.listen(backlog)
    sock.setblocking(False)
    return sock, file


def _remove_stale(path: Path, change: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BindError(f"{path} exists and is not a socket; set another with {change}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TRY_CONNECT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # whoever made it is gone
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@contextmanager
def _refusal(address: str, change: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "is already taken by another process"
        elif error.errno in (errno.EACCES, errno.EPERM):
            why = "may not be listened on by this user (ports below 1024 need CAP_NET_BIND_SERVICE)"
        elif error.errno == errno.EADDRNOTAVAIL:
            why = "is no address of this machine"
        else:
            why = f"cannot be listened on ({error.strerror or error})"
        raise BindError(f"{address} {why}; choose another with {change}") from error


def _inode(path: Path) -> tuple[int, int]:
    try:
        status = path.lstat()
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)
