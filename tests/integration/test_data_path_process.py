"""A real data process: what it says and takes on its channel, how it goes on without control, how it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from router.model import (
    BreakerRule,
    EjectCause,
    EndpointEjected,
    EndpointGone,
    EndpointReturned,
    Evidence,
    GoneReason,
    LoadReport,
    PeerObserved,
    StoreChanged,
    StoreMode,
)
from router.outcomes import Outcome
from sidecar import data as data_module
from sidecar.boot import DataPlan, PlanFile, write_plan
from sidecar.channel import CacheCleared, FaultsChanged, GuardsInForce, Hello, Listening, Ping
from sidecar.faults.rules import FaultRule
from sidecar.telemetry.page import MODEL_LADDER, LadderWord, Scalar
from tests.support.data_process import DataProcess, read_answer

MODELS = [{"name": "m", "default": True}]
QUICK: dict[str, Any] = {"models": MODELS, "timeouts": {"drain_s": 5.0}}


class Worker:
    """A worker on threads: answers each request, or holds a stream open until it is told to go on."""

    def __init__(self) -> None:
        self._server = socket.socket()
        self._server.bind(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.go_on = threading.Event()
        self.streaming = threading.Event()
        self.served = 0
        self.fails = False
        self._sockets: list[socket.socket] = []

    def begin(self) -> None:
        """Accept; until then connecting is refused."""
        self._server.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            while data := read_answer(sock):
                self.served += 1
                if b"/stream" in data.split(b"\r\n")[0]:
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
                    self.streaming.set()
                    self.go_on.wait(30)
                    sock.sendall(b"later")
                elif self.fails:
                    sock.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                else:
                    report = b"endpoint-load-metrics: TEXT cpu_utilization=0.5,named_metrics.num_requests_waiting=3\r\n"
                    asked = b"\r\nendpoint-load-metrics-format: text\r\n" in data
                    sock.sendall(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\nok" % (report if asked else b""))
        except OSError:
            pass

    def close(self) -> None:
        self.go_on.set()
        if self.served:  # it listens: wake who waits in accept
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for sock in self._sockets:
            sock.close()


@contextmanager
def worker(*, listens: bool = True) -> Iterator[Worker]:
    made = Worker()
    if listens:
        made.begin()
    try:
        yield made
    finally:
        made.close()


def test_it_says_hello_and_accepts_once_it_has_a_snapshot(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        hello = data.receive(Hello)
        assert (hello.index, hello.pid) == (0, data.process.pid)
        again = data.receive(Hello)  # said again until a snapshot comes
        assert again.epoch == hello.epoch
        with data.connect() as early:  # the kernel accepts; nobody answers yet
            early.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            early.settimeout(0.2)
            with pytest.raises(TimeoutError):
                early.recv(1)
            data.snapshot(one.address)
            early.settimeout(10)
            assert read_answer(early).endswith(b"\r\n\r\nok")
        listening = data.receive(Listening)
        assert (listening.index, listening.address) == (0, f"127.0.0.1:{data.port}")
        assert listening.backlog >= 64
        observed = data.receive(PeerObserved)
        while not observed.observations:
            observed = data.receive(PeerObserved)
        (endpoint,) = observed.observations
        (seen,) = endpoint.seen
        assert (observed.source, endpoint.id, seen.successes, seen.failures) == (0, "o0", 1, 0)
        data.until(lambda: data.scalar(Scalar.UPSTREAM_CONNECTIONS_TOTAL) == 1, "counted")
        assert data.outcome(Outcome.OK) == 1
        assert data.stop() == 0


def test_a_load_report_in_an_answer_goes_to_the_control_process_and_not_to_the_caller(tmp_path: Path) -> None:
    models = [{**model, "load_reports": True} for model in MODELS]
    with worker() as one, DataProcess(tmp_path, models=models, timeouts={"drain_s": 5.0}) as data:
        data.snapshot(one.address)
        with data.connect() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"endpoint-load-metrics" not in read_answer(sock)
        observed = data.receive(PeerObserved)
        while not observed.observations:
            observed = data.receive(PeerObserved)
        (seen,) = observed.observations
        assert seen.report == LoadReport(0.5, 3)
        data.until(lambda: data.scalar(Scalar.LOAD_REPORTS_TOTAL) == 1, "counted")


def test_a_caller_that_is_not_read_is_seen_leaving(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, limits={"pipelined": 4096}, **QUICK) as data:
        data.snapshot(one.address)
        with data.connect() as sock:
            sock.sendall(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert one.streaming.wait(30)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2000)  # more than is read ahead
            time.sleep(0.2)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        data.until(lambda: data.outcome(Outcome.CLIENT_ABORT) == 1, "the abort")
        one.go_on.set()
        assert data.stop() == 0


def test_without_a_snapshot_it_accepts_after_a_while(tmp_path: Path) -> None:
    with DataProcess(tmp_path, **QUICK) as data:
        assert data.once() == 503
        assert data.process.events("snapshot.missing")[0]["level"] == "warning"
        assert data.stop() == 0


def test_it_goes_on_without_its_control_process_and_says_so(tmp_path: Path) -> None:
    """Degraded mode: the last snapshot is frozen; a warning, a gauge, and all of it undone once control is back."""
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        assert data.once() == 200
        lost = data.process.await_event("control.lost")
        assert lost["level"] == "warning"
        assert lost["silent_s"] >= 2.0
        assert data.scalar(Scalar.CONTROL_LOST_NOW) == 1
        assert data.scalar(Scalar.STORE_MODE_NOW) == list(StoreMode).index(StoreMode.FROZEN)
        assert data.once() == 200
        data.send(Ping(time.monotonic()))
        data.process.await_event("control.returned")
        assert data.scalar(Scalar.CONTROL_LOST_NOW) == 0
        assert data.scalar(Scalar.STORE_MODE_NOW) == list(StoreMode).index(StoreMode.LIVE)
        assert data.once() == 200
        assert data.stop() == 0


def test_a_new_control_process_is_told_what_the_one_before_knew(tmp_path: Path) -> None:
    with DataProcess(tmp_path, **QUICK) as data:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        data.snapshot(address)
        first = data.receive(Listening)
        assert data.once() == 502
        ejected = data.receive(EndpointEjected)
        data.send(Ping(time.monotonic(), "another"))
        assert data.receive(Listening) == first
        guards = data.receive(GuardsInForce)
        while not guards.ejected:
            guards = data.receive(GuardsInForce)
        (told,) = guards.ejected
        assert (told.id, told.cause, told.until) == (ejected.id, ejected.cause, ejected.until)
        assert data.stop() == 0


def test_it_takes_the_store_s_mode_faults_and_departures(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        assert data.once() == 200
        now = time.monotonic()
        data.send(StoreChanged(StoreMode.LOCAL, now))
        data.until(lambda: data.scalar(Scalar.STORE_MODE_NOW) == list(StoreMode).index(StoreMode.LOCAL), "the mode")
        data.send(FaultsChanged((FaultRule("f", "abort", 1.0, until=now + 60, status=418),)))
        data.until(lambda: data.once() == 418, "the fault")
        data.until(lambda: data.scalar(Scalar.FAULTS_INJECTED_TOTAL) == 1, "counted")
        data.send(FaultsChanged((FaultRule("f", "abort", 1.0, until=time.monotonic() + 0.3, status=418),)))
        data.until(lambda: data.once() == 200, "the fault is over by itself")
        data.send(EndpointGone("o0", GoneReason.REMOVED, time.monotonic()))
        data.process.await_event("endpoint.gone", endpoint="o0")
        assert data.once() == 503
        assert dict(data.page.endpoints()) == {}
        assert data.stop() == 0


def test_it_forgets_what_it_keeps_when_it_is_told_to(tmp_path: Path) -> None:
    models = [{"name": "m", "default": True, "cache": {"deterministic": True, "methods": ["GET"]}}]
    with worker() as one, DataProcess(tmp_path, models=models) as data:
        data.snapshot(one.address)

        def kept() -> int:
            rows = dict(data.page.models())
            return int(data.page.words[rows["m"] + MODEL_LADDER + LadderWord.ENTRIES_NOW])

        assert data.once() == 200
        data.until(lambda: kept() == 1, "kept")
        data.send(CacheCleared("other"))
        data.send(CacheCleared("m"))
        data.process.await_event("cache.cleared", model="m", answers=1)
        data.until(lambda: kept() == 0, "forgotten")
        assert data.stop() == 0


def test_what_it_cannot_read_is_logged_and_skipped(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.channel._sock.send(b"\xff not a message of this version")
        data.process.await_event("channel.unreadable", level="error")
        data.snapshot(one.address)
        assert data.once() == 200
        assert data.stop() == 0


def test_it_shares_what_it_ejects_and_lets_back(tmp_path: Path) -> None:
    settings = QUICK | {"policies": {"quarantine": {"base_s": 0.2, "max_s": 0.2}, "retry": {"attempts": 0}}}
    with worker(listens=False) as one, DataProcess(tmp_path, **settings) as data:
        data.snapshot(one.address)
        assert data.once() == 502
        ejected = data.receive(EndpointEjected)
        assert (ejected.id, ejected.cause, ejected.level) == ("o0", EjectCause.QUARANTINE, 1)
        assert data.process.await_event("endpoint.ejected")["cause"] == "quarantine"
        one.begin()
        data.until(lambda: data.once() == 200, "back")
        returned = data.receive(EndpointReturned)
        assert (returned.id, returned.cause) == ("o0", EjectCause.QUARANTINE)
        assert returned.at > ejected.at
        assert data.process.await_event("endpoint.returned")["endpoint"] == "o0"
        assert data.stop() == 0


def test_it_tells_of_the_steps_of_a_breaker(tmp_path: Path) -> None:
    settings = QUICK | {"policies": {"breaker": {"minimum_calls": 3, "half_open_calls": 1}, "retry": {"attempts": 0}}}
    with worker() as one, DataProcess(tmp_path, **settings) as data:
        data.snapshot(one.address)
        assert data.once() == 200
        now = time.monotonic()
        figures = Evidence(20, 12, 0, 3, p95_ms=31.0)
        opened = EndpointEjected("o0", EjectCause.BREAKER, now + 0.4, 1, now, "m", "", BreakerRule.GENERAL, figures)
        data.send(opened)
        data.until(lambda: data.once() == 503, "open here too")
        data.until(lambda: data.once() == 200, "tried again")
        half = data.process.await_event("breaker.half_open")
        assert (half["endpoint"], half["model"], half["rule"]) == ("o0", "m", "general")
        closed = data.process.await_event("breaker.closed")
        assert (closed["endpoint"], closed["model"]) == ("o0", "m")
        assert data.process.events("breaker.opened") == []  # the sibling that opened it has said so
        text = data.process.text()
        assert text.index("breaker.half_open") < text.index("breaker.closed")
        one.fails = True
        data.until(lambda: data.once() == 503, "open of its own")
        line = data.process.await_event("breaker.opened", level="warning")
        assert (line["endpoint"], line["model"], line["rule"], line["for_s"]) == ("o0", "m", "general", 60.0)
        assert (line["calls"], line["failed"], line["unanswered"], line["trials"]) == (3, 3, 0, False)
        assert line["why"] == "general: 3 of 3 calls failed"
        assert data.stop() == 0


def test_it_heeds_what_a_sibling_ejected_and_let_back(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        assert data.once() == 200
        now = time.monotonic()
        data.send(EndpointEjected("o0", EjectCause.BREAKER, now + 60, 1, now, "m"))
        data.until(lambda: data.once() == 503, "ejected here too")
        data.send(EndpointReturned("o0", EjectCause.BREAKER, time.monotonic(), "m"))
        data.until(lambda: data.once() == 200, "back here too")
        assert data.stop() == 0


def test_sigterm_lets_streams_end_and_takes_who_waits_in_the_queue(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        with data.connect() as stream, data.connect() as idle:
            assert data.ask(idle).endswith(b"ok")
            stream.sendall(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert one.streaming.wait(30)
            data.process.send(signal.SIGSTOP)  # so that a connection surely waits in the queue
            with data.connect() as queued:
                queued.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                data.process.send(signal.SIGTERM)
                data.process.send(signal.SIGCONT)
                answered = read_answer(queued)
                assert answered.endswith(b"ok")
                assert b"\r\nConnection: close\r\n" in answered
                assert queued.recv(1) == b""
            data.process.await_event("process.closed")
            assert data.scalar(Scalar.DRAINING_NOW) == 1
            late = data.ask(idle)  # an idle connection is answered once more, and told to go
            assert b"\r\nConnection: close\r\n" in late
            assert data.process.popen.poll() is None
            one.go_on.set()
            assert read_answer(stream).endswith(b"firstlater")
            assert data.process.wait() == 0
        assert data.outcome(Outcome.OK) == 4
        assert data.process.events("drain.cut") == []


def test_what_outlasts_the_grace_period_is_cut(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"models": MODELS, "timeouts": {"drain_s": 0.3}}
    with worker() as one, DataProcess(tmp_path, **settings) as data:
        data.snapshot(one.address)
        with data.connect() as stream:
            stream.sendall(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert one.streaming.wait(30)
            began = time.monotonic()
            assert data.stop() == 0
            assert 0.3 <= time.monotonic() - began < 3
            got = read_answer(stream)
            assert got.endswith(b"first")
            assert b"Content-Length: 10" in got
        assert data.outcome(Outcome.DRAIN_CUT) == 1
        assert data.process.await_event("drain.cut")["requests"] == 1


def test_its_successor_serves_from_the_same_socket_and_counts_on(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        assert data.once() == 200
        data.until(lambda: data.outcome(Outcome.OK) == 1, "counted")
        first = data.receive(Hello)
        data.process.popen.kill()
        data.process.wait()
        with data.connect() as queued:
            queued.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            data.start()
            hello = data.receive(Hello)
            while hello.epoch == first.epoch:
                hello = data.receive(Hello)
            data.snapshot(one.address)
            assert read_answer(queued).endswith(b"ok")
        data.until(lambda: data.outcome(Outcome.OK) == 2, "counted on")
        assert data.scalar(Scalar.RESTARTS_TOTAL) == 1
        assert data.stop() == 0


def test_a_process_out_of_descriptors_blames_no_worker(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        with data.connect() as stream, data.connect() as other:
            assert data.ask(other).endswith(b"ok")
            stream.sendall(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")  # takes the one pooled connection
            assert one.streaming.wait(30)
            used = [int(entry.name) for entry in Path(f"/proc/{data.process.pid}/fd").iterdir()]
            free = next(fd for fd in range(len(used) + 1) if fd not in used)
            resource.prlimit(data.process.pid, resource.RLIMIT_NOFILE, (free, 4096))
            refused = data.ask(other)
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nwarmroute-outcome: overloaded\r\n" in refused
            resource.prlimit(data.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
            assert data.ask(other).endswith(b"ok")  # at once: nothing was held against it
            one.go_on.set()
            assert read_answer(stream).endswith(b"firstlater")
        data.until(lambda: data.outcome(Outcome.OVERLOADED) == 1, "counted")
        assert data.process.events("endpoint.ejected") == []
        assert data.stop() == 0


def test_closing_takes_what_waits_in_the_queue_first(tmp_path: Path) -> None:
    """In this process, so that the connection surely arrives after the loop last looked and before it closes."""

    async def scenario(data: DataProcess) -> None:
        loop = asyncio.get_running_loop()
        plan = data.plan()
        (held,) = plan.listeners
        plan = msgspec.structs.replace(
            plan,
            listeners=(msgspec.structs.replace(held, fd=os.dup(held.fd)),),
            channel_fd=os.dup(plan.channel_fd),
        )
        process = data_module.DataProcess(plan, PlanFile(write_plan(plan)), loop)
        await process._accept()
        with data.connect() as queued:
            queued.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await process._stop_accepting()
            queued.setblocking(False)
            assert (await loop.sock_recv(queued, 65536)).startswith(b"HTTP/1.1 503 ")
        process._channel.close()
        process._page.close()

    with DataProcess(tmp_path, **QUICK) as data, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        data.process.popen.kill()
        data.process.wait()
        runner.run(asyncio.wait_for(scenario(data), 10))


def test_signals_that_are_the_supervisor_s_or_the_control_process_s_end_nothing(tmp_path: Path) -> None:
    with worker() as one, DataProcess(tmp_path, **QUICK) as data:
        data.snapshot(one.address)
        assert data.once() == 200
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            data.process.send(signum)
        assert data.once() == 200
        assert data.stop() == 0


class Successor(DataProcess):
    """A data process of a sidecar to which another one has handed its sockets, and serves on."""

    def plan(self) -> DataPlan:
        plan = super().plan()
        listeners = tuple(msgspec.structs.replace(held, backlog=44) for held in plan.listeners)
        return msgspec.structs.replace(plan, listeners=listeners, succeeds=True)


def test_a_successor_listens_with_the_backlog_of_the_sidecar_before_it(tmp_path: Path) -> None:
    with Successor(tmp_path, **QUICK) as data:
        data.receive(Hello)
        data.snapshot()
        assert data.receive(Listening).backlog == 44
        assert data.stop() == 0
