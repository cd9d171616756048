"""A real data process that is short of something: it refuses new work, goes on with the old, and recovers."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import h2.connection
import h2.events

from sidecar.telemetry.page import Scalar
from tests.integration.test_data_path_process import QUICK, worker
from tests.support.data_process import DataProcess, read_answer


def ask(sock: socket.socket, target: str = "/") -> bytes:
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return read_answer(sock)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_over_its_memory_it_refuses_requests_and_says_it_lives(tmp_path: Path) -> None:
    """A process that stands idle needs more than 32 MiB, so it is over from its first look on."""
    settings = QUICK | {"overload": {"memory_bytes": 32 << 20, "hard_ratio": 0.6, "soft_ratio": 0.5}}
    with worker() as one, DataProcess(tmp_path, **settings) as data:
        data.snapshot(one.address)
        changed = data.process.await_event("overload.changed", resource="memory", after="hard")
        assert (changed["level"], changed["most"]) == ("warning", 32 << 20)
        with data.connect() as sock:
            refused = ask(sock)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in refused
        assert b"bytes of memory" in refused
        assert data.once("/v2/health/live") == 200
        assert data.once("/v2/health/ready") == 503
        assert one.served == 0
        data.until(lambda: data.scalar(Scalar.OVERLOAD_MEMORY_NOW) == 2, "shown")
        assert data.scalar(Scalar.RESIDENT_BYTES_NOW) > 0.6 * (32 << 20)
        assert data.scalar(Scalar.OVERLOAD_REFUSED_TOTAL) == 2
        assert data.stop() == 0


def call(sock: socket.socket, path: str) -> dict[str, str]:
    """Make a gRPC call with an empty message on a new connection; return all that came as metadata."""
    client = h2.connection.H2Connection()
    client.initiate_connection()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)]
    client.send_headers(1, [*fields, ("content-type", "application/grpc"), ("te", "trailers")])
    client.send_data(1, b"\0\0\0\0\0", end_stream=True)
    sock.sendall(client.data_to_send())
    metadata: dict[str, str] = {}
    while data := sock.recv(65536):
        for event in client.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                metadata |= {bytes(name).decode(): bytes(value).decode() for name, value in event.headers}
            if isinstance(event, h2.events.StreamEnded):
                return metadata
        sock.sendall(client.data_to_send())
    return metadata


def test_calls_are_refused_as_requests_are_and_their_health_is_answered(tmp_path: Path) -> None:
    overload = {"memory_bytes": 32 << 20, "hard_ratio": 0.6, "soft_ratio": 0.5}
    listeners = [{"address": "127.0.0.1:0", "processes": 1, "protocol": "grpc"}]
    with DataProcess(tmp_path, **QUICK, listeners=listeners, overload=overload) as data:
        data.snapshot("grpc://127.0.0.1:1")
        data.process.await_event("overload.changed", resource="memory", after="hard")
        data.process.await_event("process.accepting")
        with data.connect() as sock:
            refused = call(sock, "/any.Service/Method")
        assert "bytes of memory" in refused["grpc-message"]
        assert refused["grpc-status"] in {"8", "14"}  # RESOURCE_EXHAUSTED, UNAVAILABLE
        with data.connect() as sock:
            assert call(sock, "/grpc.health.v1.Health/Check")["grpc-status"] == "0"
        data.until(lambda: data.scalar(Scalar.OVERLOAD_REFUSED_TOTAL) == 1, "counted")
        assert data.stop() == 0


def test_half_of_its_descriptors_carry_what_the_other_half_accepted(tmp_path: Path) -> None:
    """More callers than it has descriptors for: those it took are all served at once, and health is answered."""
    with worker() as one, DataProcess(tmp_path, max_files=200, **QUICK) as data:
        data.snapshot(one.address)
        limits = data.process.await_event("overload.limits", level="warning")
        most = limits["connections"]
        assert (limits["descriptors"], limits["remedy"]) == (200, "raise the limit on open files to 8704")
        assert 40 < most < 80
        taken = [data.connect() for _ in range(most)]
        more = [data.connect() for _ in range(100)]
        assert data.once("/v2/health/live") == 200
        for sock in taken:  # each needs a connection to the worker at the same time
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [read_answer(sock)[:12] for sock in taken] == [b"HTTP/1.1 200"] * most
        for sock in more:
            sock.close()
        data.until(lambda: data.scalar(Scalar.REFUSED_CONNECTIONS_TOTAL) >= 80, "counted")
        for sock in taken:
            sock.close()
        data.until(lambda: data.once() == 200, "served again")
        assert data.stop() == 0


def test_a_burst_that_takes_the_last_descriptor_is_survived(tmp_path: Path) -> None:
    """The kernel accepts for us and there is nothing to accept with: it must not spin, and must go on afterwards."""
    with worker() as one, DataProcess(tmp_path, max_files=40, **QUICK) as data:
        data.snapshot(one.address)
        held = data.connect()
        assert ask(held).startswith(b"HTTP/1.1 200 ")
        burst = [socket.create_connection(("127.0.0.1", data.port), timeout=10) for _ in range(60)]
        before, began = cpu_s(data.process.pid), time.monotonic()
        assert ask(held).startswith(b"HTTP/1.1 200 ")
        data.until(lambda: time.monotonic() - began > 1.0, "a second")
        assert cpu_s(data.process.pid) - before < 0.3
        assert ask(held).startswith(b"HTTP/1.1 200 ")
        for sock in burst:
            sock.close()
        held.close()

        def served() -> bool:
            try:
                return data.once() == 200
            except (OSError, IndexError):  # reset: the last of them are still there
                return False

        data.until(served, "served again")
        assert data.stop() == 0
