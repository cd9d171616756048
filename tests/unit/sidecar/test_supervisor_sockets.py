from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.settings import Admin, Listener
from sidecar.sockets import (
    TCP_FASTOPEN,
    BindError,
    Found,
    Granted,
    OpenListener,
    bound_address,
    bound_addresses,
    check_free,
    granted,
    open_admin,
    open_listeners,
    resolve,
)

SOMAXCONN = int(Path("/proc/sys/net/core/somaxconn").read_text())
FASTOPEN = int(Path("/proc/sys/net/ipv4/tcp_fastopen").read_text())


def close(opened: tuple[OpenListener, ...]) -> None:
    for item in opened:
        for sock in item.sockets:
            sock.close()


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        yield bound_address(sock)


def test_each_process_gets_a_socket_on_the_one_port_that_the_first_was_given() -> None:
    opened = open_listeners((Listener(address="127.0.0.1:0", processes=3, name="in"),))
    try:
        (listener,) = opened
        assert {bound_address(sock) for sock in listener.sockets} == {listener.address}
        assert len({sock.fileno() for sock in listener.sockets}) == 3
        assert listener.name == "in"
        assert not listener.address.endswith(":0")
        for sock in listener.sockets:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    finally:
        close(opened)


def test_connections_are_spread_over_the_sockets_of_a_listener() -> None:
    opened = open_listeners((Listener(address="127.0.0.1:0", processes=2),))
    host, _, port = opened[0].address.rpartition(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(64)]
    counts = []
    try:
        for sock in opened[0].sockets:
            count = 0
            while True:
                try:
                    connection, _ = sock.accept()
                except BlockingIOError:
                    break
                connection.close()
                count += 1
            counts.append(count)
    finally:
        for client in clients:
            client.close()
        close(opened)
    assert sum(counts) == 64
    assert min(counts) > 8


def test_ipv6_addresses_are_shown_in_brackets() -> None:
    opened = open_listeners((Listener(address="[::1]:0", processes=1),))
    try:
        assert opened[0].address.startswith("[::1]:")
    finally:
        close(opened)


def test_what_the_kernel_granted_is_asked_of_the_kernel() -> None:
    opened = open_listeners((Listener(address="127.0.0.1:0", processes=1, backlog=65535, fastopen_queue=7),))
    try:
        got = opened[0].granted
        assert got.backlog == min(65535, SOMAXCONN)
        assert got.backlog_asked == 65535
        assert got.fastopen_queue == (7 if FASTOPEN & 2 else 0)
    finally:
        close(opened)


@pytest.mark.parametrize(
    ("granted", "remedy"),
    [
        (Granted(4096, 4096, 256, 256), ""),
        (Granted(128, 4096, 0, 0), "backlog: sysctl net.core.somaxconn=4096"),
        (Granted(4096, 4096, 0, 256), "fast open: sysctl net.ipv4.tcp_fastopen=3"),
        (Granted(64, 64, 64, 256), "fast-open queue: sysctl net.core.somaxconn=256"),
        (
            Granted(128, 512, 0, 16),
            "backlog: sysctl net.core.somaxconn=512; fast open: sysctl net.ipv4.tcp_fastopen=3",
        ),
    ],
)
def test_remedy_names_the_sysctl(granted: Granted, remedy: str) -> None:
    assert granted.remedy == remedy


def test_a_second_sidecar_is_refused_though_reuseport_would_let_it_in() -> None:
    first = open_listeners((Listener(address="127.0.0.1:0", processes=2),))
    try:
        address = first[0].address
        with pytest.raises(BindError) as raised:
            open_listeners((Listener(address="127.0.0.1:0"), Listener(address=address)))
        assert str(raised.value) == (
            f"{address} is already taken by another process; choose another with --listen HOST:PORT or "
            "listeners[1].address"
        )
    finally:
        close(first)


def test_check_free_names_the_setting(taken: str) -> None:
    with pytest.raises(BindError) as raised:
        check_free(taken, "--admin HOST:PORT")
    assert str(raised.value) == f"{taken} is already taken by another process; choose another with --admin HOST:PORT"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("8080", "'8080' must be HOST:PORT, for example 127.0.0.1:8080; set another with --listen"),
        ("203.0.113.7:9", "203.0.113.7:9 is no address of this machine; choose another with --listen"),
    ],
)
def test_addresses_that_cannot_be_bound(address: str, text: str) -> None:
    with pytest.raises(BindError) as raised:
        check_free(address, "--listen")
    assert str(raised.value) == text


def test_names_are_resolved() -> None:
    family, sockaddr = resolve("localhost:80", "--listen")
    assert family in (socket.AF_INET, socket.AF_INET6)
    assert sockaddr[1] == 80


def test_a_unix_listener_is_one_socket_for_all_processes_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "run" / "in.sock"
    (opened,) = open_listeners((Listener(address=f"unix:{path}", processes=3, unix_mode="0666"),))
    try:
        assert opened.address == opened.name == f"unix:{path}"
        assert len(opened.sockets) == 3
        assert len({sock.fileno() for sock in opened.sockets}) == 1
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert (opened.granted.backlog, opened.granted.backlog_asked) == (min(4096, SOMAXCONN), 4096)
        assert opened.granted.fastopen_asked == 0, "there is no fast open, so nothing is to be missed"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            opened.sockets[2].accept()[0].close()
        opened.close()
        assert path.exists()
        opened.remove_socket_file()
        assert not path.exists()
    finally:
        opened.close()


def test_a_unix_listener_s_address_that_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.sock"
    opened = open_listeners((Listener(address=f"unix:{path}"),))
    try:
        with pytest.raises(BindError) as raised:
            open_listeners((Listener(address=f"unix:{path}"),))
        assert str(raised.value) == (
            f"{path} is already taken by another process; choose another with --listen unix:/PATH or "
            "listeners[0].address"
        )
        assert path.exists()
    finally:
        close(opened)


def test_a_listener_that_cannot_be_opened_leaves_no_socket_file_of_the_others(tmp_path: Path, taken: str) -> None:
    path = tmp_path / "in.sock"
    with pytest.raises(BindError):
        open_listeners((Listener(address=f"unix:{path}"), Listener(address=taken)))
    assert not path.exists()


def test_admin_sockets_unix_first_private_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "admin.sock"
    opened = open_admin(Admin(socket=str(path), address="127.0.0.1:0"))
    try:
        assert [sock.family for sock in opened.sockets] == [socket.AF_UNIX, socket.AF_INET]
        assert opened.addresses[0] == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        opened.remove_socket_file()
        assert not path.exists()
    finally:
        for sock in opened.sockets:
            sock.close()


def test_a_relative_admin_socket_is_known_by_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Given(0)
    monkeypatch.chdir(tmp_path)
    opened = open_admin(Admin(socket="run/admin.sock", address=None), held)
    try:
        address = f"unix:{tmp_path}/run/admin.sock"
        assert held.asked == [(address, address, True)]  # and not that of a sidecar that was started elsewhere
        assert opened.asked == opened.addresses == (address,)
    finally:
        opened.remove_socket_file()
        for sock in opened.sockets:
            sock.close()


def test_the_umask_is_what_it_was_after_binding(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        opened = open_admin(Admin(socket=str(tmp_path / "a.sock"), address=None))
        for sock in opened.sockets:
            sock.close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_a_socket_file_that_nobody_answers_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    opened = open_admin(Admin(socket=str(path), address=None))
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        assert opened.file is not None
        assert opened.file.inode[1] == path.stat().st_ino
    finally:
        for sock in opened.sockets:
            sock.close()


def test_a_socket_that_answers_is_taken_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        with pytest.raises(BindError, match="is already taken by another process") as raised:
            open_admin(Admin(socket=str(path), address=None))
        assert str(raised.value).endswith("choose another with --admin-socket PATH or admin.socket")
        assert path.exists()


def test_a_file_in_the_socket_s_place_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("precious")
    with pytest.raises(BindError, match="exists and is not a socket"):
        open_admin(Admin(socket=str(path), address=None))
    assert path.read_text() == "precious"


def test_the_socket_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    first = open_admin(Admin(socket=str(path), address=None))
    for sock in first.sockets:
        sock.close()
    keep = tmp_path / "keep"
    keep.hardlink_to(path)  # so that the successor cannot get the same inode
    second = open_admin(Admin(socket=str(path), address=None))
    try:
        first.remove_socket_file()
        assert path.exists()
    finally:
        for sock in second.sockets:
            sock.close()


def test_a_path_too_long_for_a_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(BindError, match="longer than the 107 bytes a Unix socket may have"):
        open_admin(Admin(socket=str(tmp_path / ("x" * 120)), address=None))


def test_a_taken_tcp_address_leaves_no_admin_socket_behind(tmp_path: Path, taken: str) -> None:
    path = tmp_path / "admin.sock"
    with pytest.raises(BindError, match=r"admin\.address"):
        open_admin(Admin(socket=str(path), address=taken))
    assert not path.exists()


class Given:
    """What another supervisor hands over: ``count`` listening sockets of one address."""

    def __init__(self, count: int) -> None:
        self.sockets: list[socket.socket] = []
        port = 0
        for _ in range(count):
            self.sockets.append(socket.create_server(("127.0.0.1", port), reuse_port=True))
            port = self.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.asked: list[tuple[str, str, bool]] = []

    def take(self, asked: str, address: str, *, admin: bool = False) -> Found:
        self.asked.append((asked, address, admin))
        taken, self.sockets = self.sockets, []
        return Found(taken, self.address, 44)


@pytest.mark.parametrize(
    ("given", "processes", "shares"), [(2, 2, [1, 1, 0]), (1, 3, [1, 1, 1, 0]), (5, 2, [3, 2, 0]), (3, 1, [3, 0])]
)
def test_inherited_sockets_are_all_kept_and_shared_out(given: int, processes: int, shares: list[int]) -> None:
    held = Given(given)
    kept = {sock.fileno() for sock in held.sockets}
    (opened,) = open_listeners((Listener(address=held.address, processes=processes, backlog=77),), held)
    try:
        assert held.asked == [(held.address, held.address, False)]
        assert opened.address == held.address
        assert kept <= {sock.fileno() for sock in opened.sockets}
        assert [len(opened.sockets_of(index)) for index in range(len(shares))] == shares
        assert {bound_address(sock) for sock in opened.sockets} == {held.address}
        listening = {
            sock.fileno() for sock in opened.sockets if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        }
        assert listening == kept  # the others get no connection while nobody accepts there
        assert {sock.fileno() for sock in opened.sockets if opened.is_later(sock)} == {
            sock.fileno() for sock in opened.sockets
        } - kept
    finally:
        opened.close()


def test_what_another_sidecar_listens_on_stays_as_it_has_it_until_it_is_taken_over() -> None:
    held = Given(1)
    (sock,) = held.sockets
    sock.listen(44)
    queue = sock.getsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN)
    listener = Listener(address=held.address, processes=2, backlog=77, fastopen_queue=9)
    (opened,) = open_listeners((listener,), held)
    try:
        assert granted(sock, 0, 0).backlog == 44
        assert sock.getsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN) == queue
        assert [opened.backlog_of(each) for each in opened.sockets] == [44, 0]
        own = opened.taken_over(listener)
        assert own.granted.backlog == granted(sock, 0, 0).backlog == 77
        assert sock.getsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN) == 9
        assert [(own.is_later(each), own.backlog_of(each)) for each in own.sockets] == [(False, 0)] * 2
    finally:
        opened.close()


def test_the_mode_of_a_unix_socket_s_file_stays_until_it_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "in.sock"
    (old,) = open_listeners((Listener(address=f"unix:{path}", processes=2, unix_mode="0666"),))
    held = Given(1)
    held.sockets[0].close()
    held.sockets = [old.sockets[0]]
    listener = Listener(address=f"unix:{path}", processes=2, unix_mode="0600")
    (opened,) = open_listeners((listener,), held)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert {opened.backlog_of(each) for each in opened.sockets} == {44}
        opened.taken_over(listener)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.unlink()
        held.sockets = [old.sockets[0]]
        with pytest.raises(BindError, match="No such file or directory"):  # who starts it again could not be reached
            open_listeners((listener,), held)
    finally:
        old.close()


def test_how_addresses_would_be_bound_is_known_but_for_ports_of_the_kernel_s_choice() -> None:
    addresses = ("127.0.0.1:8080", "[::1]:81", "localhost:82", "127.0.0.1:0", "unix:/run/x", "127.0.0.1:99999")
    found = bound_addresses(tuple(Listener(address=address) for address in addresses))
    assert found[:2] == ("127.0.0.1:8080", "[::1]:81")
    assert found[2] in ("127.0.0.1:82", "[::1]:82")
    assert found[3:] == ("unix:/run/x",)
