"""A real control process, seen from a data process's end of the channel, from the admin API, and from its signals."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from router.model import (
    EjectCause,
    EndpointEjected,
    EndpointHeld,
    EndpointReturned,
    EndpointSeen,
    EndpointsHeard,
    PeerObserved,
    SnapshotBegan,
    SnapshotEnded,
    State,
    StoreChanged,
    StoreMode,
)
from router.overload import Level
from sidecar.channel import FaultsChanged
from sidecar.control import ALONE_S
from sidecar.telemetry.page import Scalar
from tests.support.control_process import ControlProcess
from tests.support.fleet import observation
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.state_writer import StateWriter, worker_record

STATIC: dict[str, Any] = {"models": [{"name": "m", "endpoints": ["http://127.0.0.1:9001"], "default": True}]}
FREE: dict[str, Any] = {"models": [{"name": "m"}]}


def has(kind: type) -> Callable[[list[object]], bool]:
    return lambda got: any(isinstance(message, kind) for message in got)


def whole(got: list[object]) -> bool:
    return any(isinstance(message, FaultsChanged) for message in got) and any(
        isinstance(message, SnapshotEnded) for message in got
    )


def seen(got: list[object]) -> list[str]:
    return [message.record.id for message in got if isinstance(message, EndpointSeen)]


def store_settings(server: RedisServer) -> dict[str, str]:
    return {"url": server.url, "namespace": "t"}


def speak(control: ControlProcess, index: int = 0) -> None:
    assert control.data[index].send(PeerObserved(index, (), time.monotonic()))


def test_a_process_that_says_hello_gets_a_whole_snapshot(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        control.hello()
        got = control.receive(0, whole, "a snapshot")
        began = next(i for i, message in enumerate(got) if isinstance(message, SnapshotBegan))
        ended = next(i for i, message in enumerate(got) if isinstance(message, SnapshotEnded))
        assert began < ended
        assert seen(got[began:ended]) == ["127.0.0.1:9001"]
        assert next(m for m in got if isinstance(m, StoreChanged)).mode is StoreMode.LIVE


def test_what_one_process_saw_goes_to_the_others_and_into_the_next_snapshot(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        for index in (0, 1):
            control.hello(index)
            control.receive(index, whole, "a snapshot")
        now = time.monotonic()
        ejected = EndpointEjected("127.0.0.1:9001", EjectCause.QUARANTINE, now + 30, 1, now)
        observed = PeerObserved(0, (observation("127.0.0.1:9001", 3, 12.5, ((50, 2),), 2, 1),), now)
        assert control.data[0].send(ejected)
        assert control.data[0].send(observed)
        got = control.receive(1, has(PeerObserved), "the sibling's observation")
        assert [m for m in got if isinstance(m, EndpointEjected | PeerObserved)] == [ejected, observed]
        (route,) = control.ask("/routes").json["routes"]
        assert route["candidates"][0]["reason"] == "quarantined"
        assert route["candidates"][0]["peers_in_flight"] == 3

        control.hello(1, "epoch-2")
        again = control.receive(1, whole, "a snapshot")
        again += control.receive(1, lambda got: True, "the rest")
        assert ejected in again
        returned = EndpointReturned("127.0.0.1:9001", EjectCause.QUARANTINE, time.monotonic())
        assert control.data[1].send(returned)
        assert returned in control.receive(0, has(EndpointReturned), "the return")
        control.hello(1, "epoch-3")
        assert not any(isinstance(m, EndpointEjected) for m in control.receive(1, whole, "a snapshot"))


def test_it_is_ready_again_when_only_a_request_can_tell_whether_the_worker_is_back(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        control.hello()
        control.receive(0, whole, "a snapshot")
        now = time.monotonic()
        assert control.data[0].send(EndpointEjected("127.0.0.1:9001", EjectCause.QUARANTINE, now + 4, 1, now))
        reasons = control.until_status("/readyz", 503).json["reasons"]
        assert reasons == ["no routable worker for any model (m: quarantined)"]
        deadline = time.monotonic() + 30
        while not control.ask("/readyz").json["ready"]:
            assert time.monotonic() < deadline
            speak(control)
            time.sleep(0.05)
        (candidate,) = control.ask("/routes").json["routes"][0]["candidates"]
        assert (candidate["reason"], candidate["probe_due"], candidate["share"]) == ("quarantined", True, 0.0)


def test_registrations_in_the_store_reach_data_processes_and_heartbeats_come_in_batches(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    a, b = worker_record("a"), worker_record("b", port=9002)

    async def register(control: ControlProcess) -> list[object]:
        writer = StateWriter(server.url, "t")
        async with writer.beating(a, b, every_s=0.02):
            return await asyncio.to_thread(
                control.receive,
                0,
                lambda got: sum(isinstance(m, EndpointsHeard) for m in got) >= 5,
                "heartbeats",
            )

    try:
        with ControlProcess(tmp_path, state=store_settings(server), **FREE) as control:
            control.hello()
            began = time.monotonic()
            got = asyncio.run(register(control))
            elapsed = time.monotonic() - began
            assert sorted(set(seen(got))) == ["a", "b"]
            heard = [m for m in got if isinstance(m, EndpointsHeard)]
            assert len(heard) <= elapsed * 10 + 1
            assert any(len(m.ids) == 2 for m in heard)
            assert control.ask("/endpoints").json["endpoints"][0]["source"] == "redis"
    finally:
        server.stop()


def test_killed_and_started_again_it_is_back_in_time_and_takes_nothing_away(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        with ControlProcess(tmp_path, state=store_settings(server), **FREE) as control:
            asyncio.run(StateWriter(server.url, "t", ttl_s=60).put(worker_record("a")))
            control.hello()
            control.receive(0, lambda got: whole(got) and "a" in seen(got), "the first snapshot")
            control.kill()
            control.start()
            assert control.ask("/healthz").status == 200
            # 2 s is the promise; processor time says whether it can be kept, whatever else this machine is doing
            assert control.cpu_s() < 1.0
            got = control.receive(0, lambda got: "a" in seen(got), "the endpoint again")
            for message in got:
                assert not isinstance(message, SnapshotEnded), "nothing is taken away before all is known"
                if "a" in seen([message]):
                    break
    finally:
        server.stop()


def test_started_with_the_store_down_it_says_frozen_and_sends_no_snapshot_unasked(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with ControlProcess(tmp_path, state=store_settings(server), **FREE) as control:
        got = control.receive(0, has(StoreChanged), "the mode")
        assert not any(isinstance(m, SnapshotBegan | SnapshotEnded) for m in got)
        assert next(m for m in got if isinstance(m, StoreChanged)).mode is StoreMode.FROZEN
        assert control.ask("/healthz").json["store_mode"] == "frozen"
        assert control.ask("/readyz").status == 503
        server.start()
        try:
            asyncio.run(StateWriter(server.url, "t", ttl_s=60).put(worker_record("a")))
            control.receive(0, lambda got: "a" in seen(got), "the endpoint")
            speak(control)
            assert control.until_status("/readyz", 200).json["ready"]
        finally:
            server.stop()
        control.receive(
            0, lambda got: any(isinstance(m, StoreChanged) and m.mode is StoreMode.FROZEN for m in got), "frozen"
        )
        speak(control)
        assert control.ask("/readyz").status == 200, "losing the store alone is no reason to be unready"


def test_ready_needs_a_worker_and_a_data_process_that_speaks(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        answer = control.until_status("/readyz", 503)
        assert answer.json["reasons"] == ["no data process speaks"]
        speak(control)
        control.until_status("/readyz", 200)


def test_ready_needs_a_data_process_that_takes_new_requests(tmp_path: Path) -> None:
    def level(index: int, level: Level) -> None:
        page = control.pages[index]
        page.words[page.scalar(Scalar.OVERLOAD_MEMORY_NOW)] = level

    with ControlProcess(tmp_path, **STATIC) as control:
        for index in (0, 1):
            control.hello(index)
            speak(control, index)
        control.until_status("/readyz", 200)
        level(0, Level.HARD)
        level(1, Level.SOFT)
        assert control.ask("/readyz").status == 200, "the other one takes them"
        level(1, Level.HARD)
        answer = control.ask("/readyz")
        assert (answer.status, answer.json["reasons"]) == (
            503,
            ["overload: no data process of 127.0.0.1:0 takes new requests (memory)"],
        )
        level(0, Level.SOFT)
        assert control.ask("/readyz").status == 200


def test_workers_at_their_limit_are_no_reason_to_be_unready(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, processes=1, limits={"requests_per_endpoint": 2}, **STATIC) as control:
        control.hello()
        control.receive(0, whole, "a snapshot")
        full = observation("127.0.0.1:9001", 2, None, (), 0, 0)
        assert control.data[0].send(PeerObserved(0, (full,), time.monotonic()))
        deadline = time.monotonic() + 30
        while control.ask("/routes").json["routes"][0]["candidates"][0]["reason"] != "at_limit":
            assert time.monotonic() < deadline
        assert control.ask("/readyz").status == 200


def test_a_sigterm_drains_and_keeps_serving_a_second_one_is_none(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        speak(control)
        control.until_status("/readyz", 200)
        control.signal(signal.SIGINT)
        control.signal(signal.SIGTERM)
        assert "draining" in control.until_status("/readyz", 503).json["reasons"]
        control.hello()
        control.receive(0, whole, "a snapshot while draining")
        drained = control.pages[0]
        drained.words[drained.scalar(Scalar.DRAINING_NOW)] = 1
        control.signal(signal.SIGTERM)
        ends = time.monotonic() + ALONE_S + 1.0
        while time.monotonic() < ends:
            speak(control, 1)
            assert control.ask("/healthz").status == 200
            time.sleep(0.2)
        assert not any(event["event"] == "control.alone" for event in control.events())
        control.signal(signal.SIGUSR1)
        assert control.wait() == 0


def test_a_sigterm_that_no_other_process_got_ends_it(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        speak(control)
        control.until_status("/readyz", 200)
        control.signal(signal.SIGTERM)
        began = time.monotonic()
        control.until_status("/readyz", 503)
        while not any(event["event"] == "control.stopped" for event in control.events()):
            assert time.monotonic() - began < ALONE_S + 5
            speak(control)
            time.sleep(0.1)
        assert time.monotonic() - began > ALONE_S - 0.5
        assert control.wait() == 0


def test_sigusr1_ends_it_at_once(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        control.until_status("/healthz", 200)
        control.signal(signal.SIGUSR1)
        assert control.wait() == 0
        assert control.events()[-1]["event"] == "control.stopped"


def test_a_process_that_stops_reading_gets_a_whole_snapshot_when_it_reads_again(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        control.hello(1)
        control.receive(1, whole, "a snapshot")
        behind = 'warmroute_channel_behind{process="0"} 1'
        sent = 0
        while behind not in control.ask("/metrics").text:
            for _ in range(500):
                while not control.data[1].send(PeerObserved(1, (), time.monotonic())):
                    time.sleep(0.001)  # the control process is reading
            sent += 500
            assert sent < 100_000, "data process 0 never fell behind"
        got = control.receive(0, whole, "a whole snapshot")
        assert seen(got)[-1] == "127.0.0.1:9001"


@contextmanager
def worker(status: list[int]) -> Iterator[int]:
    """Answer every request with the status that ``status`` holds, on a port of the system's choice."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status[0])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_probed_endpoint_is_warm_after_its_first_good_probe_and_out_while_it_says_no(tmp_path: Path) -> None:
    status = [503]
    with worker(status) as port:
        probe = {"path": "/v2/health/ready", "interval_s": 0.05}
        models = [{"name": "m", "endpoints": [f"http://127.0.0.1:{port}"], "probe": probe}]

        def state(wanted: State) -> Callable[[list[object]], bool]:
            return lambda got: any(isinstance(m, EndpointSeen) and m.record.replicas[0].state is wanted for m in got)

        with ControlProcess(tmp_path, models=models) as control:
            got = control.receive(0, state(State.LOADING), "not ready")
            states = [m.record.replicas[0].state for m in got if isinstance(m, EndpointSeen)]
            assert states[0] is State.COLD
            assert State.WARM not in states
            status[0] = 200
            control.receive(0, state(State.WARM), "warm")
            status[0] = 400
            control.receive(0, state(State.LOADING), "not ready again")
            assert 'warmroute_probe_failures_total{endpoint="127.0.0.1:' in control.ask("/metrics").text


def test_drain_and_resume_reach_the_data_processes(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        control.hello()
        control.receive(0, whole, "a snapshot")
        assert control.ask("/endpoints/127.0.0.1:9001/drain", method="POST", unix=True).json["held"] is True
        got = control.receive(0, has(EndpointHeld), "the hold")
        assert next(m for m in got if isinstance(m, EndpointHeld)).held
        (route,) = control.ask("/routes").json["routes"]
        assert route["candidates"][0]["reason"] == "held"
        control.hello(0, "epoch-2")
        assert any(isinstance(m, EndpointHeld) for m in control.receive(0, has(EndpointHeld), "the hold again"))
        assert control.ask("/endpoints/127.0.0.1:9001/resume", method="POST", unix=True).json["held"] is False


def test_holds_and_faults_outlive_the_control_process(tmp_path: Path) -> None:
    with ControlProcess(tmp_path, **STATIC) as control:
        control.ask("/endpoints/127.0.0.1:9001/drain", method="POST", unix=True)
        control.ask("/faults", method="POST", body=b'{"kind":"abort","id":"f"}', unix=True)
        control.receive(0, lambda got: any(isinstance(m, FaultsChanged) and m.rules for m in got), "both")
        control.kill()
        control.start()
        assert [fault["id"] for fault in control.ask("/faults").json["faults"]] == ["f"]
        assert control.ask("/endpoints").json["endpoints"][0]["held"]
        control.hello()
        got = control.receive(0, whole, "a snapshot")
        assert all(m.rules for m in got if isinstance(m, FaultsChanged)), "the fault never seems to have ended"
        assert any(isinstance(m, EndpointHeld) and m.held for m in got)


def test_started_again_while_the_store_is_down_it_goes_by_the_last_good_view(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with ControlProcess(tmp_path, state=store_settings(server), **FREE) as control:
        try:
            asyncio.run(StateWriter(server.url, "t", ttl_s=60).put(worker_record("a")))
            control.receive(0, lambda got: "a" in seen(got), "the endpoint")
            until(lambda: control.remembered().records, "the view is kept, once a second")
        finally:
            server.stop()
        control.kill()
        control.start()
        control.hello(epoch="epoch-2")  # a data process that starts just then gets it too
        got = control.receive(0, whole, "a snapshot")
        assert "a" in seen(got)
        assert any(isinstance(m, StoreChanged) and m.mode is StoreMode.FROZEN for m in got)
        speak(control)
        assert control.until_status("/readyz", 200).json["ready"], "losing the store is no reason to be unready"
        assert any(event["event"] == "fleet.recalled" for event in control.events())
