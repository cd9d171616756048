"""Connections spread over the data processes, and a process that dies takes nobody else's with it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.load import Load, echo, stream
from tests.support.product import PROCESSES, Sidecar, owners, running
from tests.support.sidecars import until
from tests.support.streaming_origin import streaming_origin

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(60)]

CONNECTIONS = 1000


def connect(sidecar: Sidecar) -> socket.socket:
    host, _, port = sidecar.listen.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=5)
    sock.sendall(b"HEAD /nothing HTTP/1.1\r\nHost: test\r\n\r\n")
    return sock


@pytest.mark.roomy
def test_two_data_processes_share_a_thousand_fresh_connections(tmp_path: Path) -> None:
    with (
        streaming_origin(tmp_path / "origin.log") as origin,
        running(tmp_path, "--to", origin) as sidecar,
        ExitStack() as open_ones,
    ):
        before = sidecar.metric("warmroute_connections_total")
        for _ in range(CONNECTIONS):
            open_ones.enter_context(connect(sidecar))
        until(lambda: sidecar.metric("warmroute_connections") == CONNECTIONS, "all are open at once")
        shares = [sidecar.metric("warmroute_connections", process=str(index)) for index in range(PROCESSES)]
        assert sum(shares) == CONNECTIONS
        assert all(0.4 * CONNECTIONS <= share <= 0.6 * CONNECTIONS for share in shares), shares
        assert sidecar.metric("warmroute_connections_total") - before == CONNECTIONS
        # what the metrics say is what the kernel says
        held = Counter(owners(sidecar.listen, sidecar.data_pids).values())
        assert [held[pid] for pid in sidecar.data_pids] == shares


@pytest.mark.roomy
def test_a_killed_data_process_cuts_its_own_connections_only(tmp_path: Path) -> None:
    with streaming_origin(tmp_path / "origin.log") as origin, running(tmp_path, "--to", origin) as sidecar:
        victim, survivor = sidecar.data_pids
        with Load(sidecar.listen, [stream(3)], clients=40, rate_per_s=400, rounds=1) as streams:
            until(lambda: len(owners(sidecar.listen, sidecar.data_pids)) == 40, "all are connected")
            time.sleep(0.3)  # and their streams run
            holder = owners(sidecar.listen, sidecar.data_pids)
            assert {victim, survivor} == set(holder.values())
            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            with Load(sidecar.listen, [echo()], clients=20, rate_per_s=200, rounds=10) as later:
                later.join()
            streams.join()
        assert {answer.port for answer in streams.failed()} == {port for port, pid in holder.items() if pid == victim}
        assert all(answer.begun and answer.ended - killed_at < 1 for answer in streams.failed()), streams.summary()
        # new connections wait in the accept queue of the dead process until its successor takes them
        assert len(later.answers) == 200
        assert later.failed() == [], later.summary()
        successor = until(lambda: sidecar.process.child("data-0") not in (victim, 0), "it is back")
        assert successor
        assert sidecar.data_pids[1] == survivor
        health = until(
            lambda: {
                process["pid"]: process["up"]
                for process in sidecar.json("/healthz")["processes"]
                if process["up"] and process["pid"] != victim
            },
            "the successor speaks",
        )
        assert set(health) == set(sidecar.data_pids)
        assert sidecar.metric("warmroute_process_restarts_total", process="0") == 1
        assert sidecar.metric("warmroute_process_restarts_total", process="1") == 0


def test_a_killed_control_process_fails_no_request_and_is_back_within_two_seconds(tmp_path: Path) -> None:
    with streaming_origin(tmp_path / "origin.log") as origin, running(tmp_path, "--to", origin) as sidecar:
        before = sidecar.process.child("control")
        with Load(sidecar.listen, [echo(), echo(), echo(), stream(1)]) as load:
            until(lambda: len(load.answers) > 50, "the load runs")
            for life in (1, 2):  # the second time it is started with a delay
                os.kill(sidecar.process.child("control"), signal.SIGKILL)
                killed_at = time.monotonic()
                sidecar.process.await_event("process.started", count=life + 1, name="control")
                until(lambda: sidecar.read("/healthz")[0] == 200 and sidecar.ready(), "it answers", within_s=2)
                back_s = time.monotonic() - killed_at
                assert back_s < 2
                time.sleep(0.5)
        assert sidecar.process.child("control") != before
        assert len(load.answers) > 100
        assert load.failed() == [], load.summary()
        assert sidecar.stop() == 0
