"""Sockets go from one supervisor to the next, or stay; every refusal is told to whom it concerns."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from sidecar import handover
from sidecar.handover import Gate, HandoverError, Inheritance, Offer, Ready, Sockets, upgrade_command
from sidecar.sockets import Found


class Old:
    """The one that runs: a listener, an admin socket, a memory file, and the gate that gives them."""

    def __init__(self, name: str) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.admin = socket.create_server(("127.0.0.1", 0))
        self.memory = os.memfd_create("memory")
        os.write(self.memory, b"remembered")
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.refusal = ""
        self.now = 100.0
        self.name = name
        self.gate = Gate([name], self.offer, lambda: self.refusal)
        assert self.gate.open()

    def offer(self) -> Offer:
        return Offer(
            (
                (Sockets(False, "127.0.0.1:0", self.address, 44), (self.listener.fileno(),)),
                (Sockets(True, "127.0.0.1:0", "127.0.0.1:9"), (self.admin.fileno(),)),
            ),
            self.memory,
        )

    def serve(self, done: Callable[[], bool]) -> Ready | None:
        """Step the gate until ``done`` or until a successor is ready."""
        for _ in range(2000):
            ready = self.gate.step(self.now)
            if ready is not None or done():
                return ready
            threading.Event().wait(0.002)
        raise AssertionError("nothing comes of it")

    def close(self) -> None:
        self.gate.close()
        self.listener.close()
        self.admin.close()
        os.close(self.memory)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    made = Old(f"test {tmp_path}")
    yield made
    made.close()


@contextmanager
def claimed(old: Old) -> Iterator[Inheritance | HandoverError]:
    """Claim in a thread while the gate is stepped here."""
    found: list[Inheritance | HandoverError] = []

    def claim() -> None:
        try:
            found.append(Inheritance.claim(["nobody", old.name], "9.9"))
        except HandoverError as error:
            found.append(error)

    thread = threading.Thread(target=claim)
    thread.start()
    old.serve(lambda: bool(found))
    thread.join(10)
    try:
        yield found[0]
    finally:
        if isinstance(found[0], Inheritance):
            found[0].close()


def given(found: Inheritance | HandoverError) -> Inheritance:
    assert isinstance(found, Inheritance), found
    return found


def test_everything_goes_over_and_then_the_one_before_yields(old: Old) -> None:
    with claimed(old) as found:
        heir = given(found)
        assert heir.memory == b"remembered"
        (admin,), at, _ = heir.take("127.0.0.1:0", "", admin=True)
        admin.close()
        assert at == "127.0.0.1:9"
        assert heir.take("x", "y") == Found()
        (sock,), bound, backlog = heir.take("127.0.0.1:77", old.address)
        with sock, socket.create_connection(old.listener.getsockname()), sock.accept()[0]:
            assert (bound, backlog) == (old.address, 44)
        assert old.gate.pid == heir.pid == os.getpid()
        heir.step()
        assert (heir.yielded, heir.refused) == (False, "")
        heir.ready()
        ready = old.serve(lambda: False)
        assert ready == Ready(tuple(sorted({old.address, "127.0.0.1:9"})))
        old.gate.yielded()
        heir.step()
        assert heir.yielded
        assert heir.readers == []
    with pytest.raises(HandoverError, match=r"^no sidecar of this user to take over from listens on "):
        Inheritance.claim([old.name], "9.9")


@pytest.mark.parametrize("when", ["draining", "busy"])
def test_none_may_come_while_it_ends_or_another_one_takes_over(old: Old, when: str) -> None:
    if when == "draining":
        old.refusal = "the sidecar is draining"
        with claimed(old) as found:
            assert str(found) == f"process {os.getpid()} does not hand over: the sidecar is draining"
        return
    with claimed(old) as first, claimed(old) as second:
        given(first)
        assert str(second).endswith(f"process {os.getpid()} takes over already: wait for it")


def test_a_successor_that_leaves_or_takes_too_long_is_forgotten(old: Old) -> None:
    with claimed(old) as found:
        given(found)
    old.serve(lambda: old.gate.pid == 0)
    with claimed(old) as found:
        heir = given(found)
        old.now += handover.READY_S + handover.GREETING_S
        assert old.gate.due == old.now
        old.gate.step(old.now)
        assert old.gate.pid == 0
        heir.step()
        assert heir.refused == "it took too long"


@contextmanager
def stranger(old: Old) -> Iterator[socket.socket]:
    """Connect as a successor that has said nothing yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(5)
        peer.connect("\0" + handover.name_for(old.name))
        old.serve(lambda: old.gate.pid != 0)
        yield peer


def test_a_successor_of_another_protocol_is_told_to_restart(old: Old) -> None:
    with stranger(old) as peer:
        handover._send(peer, handover.Hello(2, "9.9", 1))
        old.serve(lambda: old.gate.pid == 0)
        message, _ = handover._receive(peer)
        assert message == handover.Refused("it speaks upgrade protocol 2, this one 1: restart instead")


def test_nonsense_from_a_successor_ends_its_attempt_only(old: Old) -> None:
    for nonsense in (b"{}", b'{"type": "Ready", "taken": []}', b"\xff"):
        with stranger(old) as peer:
            peer.send(nonsense)
            old.serve(lambda: old.gate.pid == 0)
    with claimed(old) as found:
        given(found)


def test_a_predecessor_that_dies_leaves_everything(old: Old) -> None:
    with claimed(old) as found:
        heir = given(found)
        old.gate.close()
        heir.step()
        assert heir.yielded


def test_a_name_that_another_process_has_yet_is_tried_again(old: Old) -> None:
    second = Gate([old.name], old.offer, lambda: "")
    assert not second.open()
    assert second.readers == []
    old.gate.close()
    assert second.open()
    second.close()


def test_the_command_of_a_successor_is_that_of_the_one_before() -> None:
    first = ["python", "-P", "/bin/warmroute", "sidecar", "--config", "c.yaml"]
    second = upgrade_command("/venv/bin/python", first, "h:1")
    assert second == ["/venv/bin/python", *first[1:], "--upgrade-from", "h:1"]
    assert upgrade_command("/venv/bin/python", [*second, "--upgrade"], "h:2")[-2:] == ["--upgrade-from", "h:2"]
    assert upgrade_command("p", ["p", "sidecar", "--upgrade-from=h:9"], "h:2") == [
        "p",
        "sidecar",
        "--upgrade-from",
        "h:2",
    ]


def test_a_message_fits_what_is_read_at_once() -> None:
    longest = Sockets(admin=True, asked="unix:/" + "x" * 4000, address="unix:/" + "y" * 4000)
    assert len(msgspec.json.encode(longest)) < 65536
