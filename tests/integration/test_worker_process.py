"""The worker as a process: a real model, a real store, signals."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from router.model import EndpointRecord, State
from router.wire import Keys, decode_delta, decode_fields
from tests.support.certificates import Authority, write
from tests.support.redis_server import RedisServer
from tests.support.tls import tls_front
from tests.support.worker_parts import shipped_model
from tests.support.worker_process import ROOT, WorkerProcess, echo_body

KEYS = Keys("t")
ECHO = ("--engine", "deterministic", "--model", "m", "--id", "w1", "--namespace", "t")


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    connection = redis.Redis.from_url(server.url, decode_responses=True)
    try:
        yield connection
    finally:
        connection.close()


def record(client: redis.Redis, id: str = "w1") -> EndpointRecord | None:  # noqa: A002
    fields: Any = client.hgetall(KEYS.endpoint(id))
    return decode_fields(id, fields) if fields else None


def soon(holds: Callable[[], bool], timeout_s: float = 30.0) -> float:
    """Wait until ``holds``; returns how many seconds that took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s} s")
        time.sleep(0.01)
    return time.monotonic() - began


def state_of(client: redis.Redis) -> State | None:
    found = record(client)
    return found.replicas[0].state if found is not None and found.replicas else None


def test_a_real_model_from_disk_to_warm_to_answer(tmp_path: Path, server: RedisServer, client: redis.Redis) -> None:
    models = tmp_path / "models"
    shipped_model("mul_1", models)
    flags = ("--models", str(models), "--state", server.url, "--namespace", "t", "--id", "w1")
    with WorkerProcess(*flags) as worker:
        worker.listening()
        worker.warm("mul_1")
        states = [(e["from"], e["to"]) for e in worker.events if e["event"] == "model.state"]
        assert states == [("cold", "loading"), ("loading", "warming"), ("warming", "warm")]
        progress = [e for e in worker.events if e["event"] == "model.loading"]
        assert progress[-1]["bytes_read"] == progress[-1]["bytes_total"] == 130
        body = {"inputs": [{"name": "X", "shape": [3, 2], "datatype": "FP32", "data": [[1, 1], [1, 1], [1, 1]]}]}
        status, answer, headers = worker.ask("/v2/models/mul_1/infer", body)
        assert status == 200
        assert answer["outputs"][0] == {"name": "Y", "shape": [3, 2], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
        assert headers["warmroute-worker"] == "w1"
        soon(lambda: state_of(client) is State.WARM)
        found = record(client)
        assert found is not None
        (replica,) = found.replicas
        assert (found.address, found.protocol, found.draining) == (worker.address, "http", False)
        assert (replica.model, replica.version, replica.warmth) == ("mul_1", "1", (("batch-1", 1.0),))
        assert len(replica.content_hash) == 32
        assert 0 < (found.free_memory_bytes or 0) <= (found.total_memory_bytes or 0)
        soon(lambda: (now := record(client)) is not None and now.cpu_load is not None)  # after half a second
        assert 0 < client.pttl(KEYS.endpoint("w1")) <= 5000
        worker.terminate()
        assert worker.wait() == 0
        assert record(client) is None
        assert client.zrange(KEYS.index, 0, -1) == []


def test_two_versions_side_by_side(tmp_path: Path, server: RedisServer, client: redis.Redis) -> None:
    for version, datatype in (("1", "FP32"), ("2", "INT32")):
        directory = tmp_path / "m" / version
        directory.mkdir(parents=True)
        (directory / "model.yaml").write_text(f"engine: {{inputs: [{{name: a, datatype: {datatype}, shape: [1]}}]}}")
        (directory / "weights").write_text(version)
    flags = ("--models", str(tmp_path), "--versions", "latest:2", "--engine", "deterministic")
    with WorkerProcess(*flags, "--state", server.url, "--namespace", "t", "--id", "w1") as worker:
        worker.listening()
        worker.event("model.warm", model="m", version="1")
        soon(lambda: (now := record(client)) is not None and all(one.state is State.WARM for one in now.replicas))
        found = record(client)
        assert found is not None
        assert [(one.model, one.version) for one in found.replicas] == [("m", "2"), ("m", "1")]
        assert len({one.content_hash for one in found.replicas}) == 2
        assert worker.ask("/v2/models/m")[1]["versions"] == ["1", "2"]
        for path, datatype in (("", "INT32"), ("/versions/1", "FP32"), ("/versions/2", "INT32")):
            body = {"inputs": [{"name": "a", "shape": [1], "datatype": datatype, "data": [7]}]}
            status, answer, _ = worker.ask(f"/v2/models/m{path}/infer", body)
            assert (status, answer["model_version"]) == (200, "1" if path == "/versions/1" else "2")
        stats = worker.ask("/stats")[1]
        assert {name: row["executed"] for name, row in stats["versions"].items()} == {"m@2": 2, "m@1": 1}
        age = {"warm_for_s": 0.0}  # that of each is read by itself
        assert stats["models"]["m"] | age == stats["versions"]["m@2"] | age


def test_nothing_is_executed_before_warm_and_state_says_how_far_it_is(server: RedisServer, client: redis.Redis) -> None:
    with WorkerProcess(*ECHO, "--state", server.url, "--load-s", "2", "--service-ms", "2000") as worker:
        worker.listening()
        soon(lambda: state_of(client) is State.LOADING)
        status, answer, headers = worker.ask("/v2/models/m/infer", echo_body())
        assert (status, answer) == (503, {"error": "model 'm' is not ready: it is loading"})
        assert headers["Retry-After"] == "1"
        assert worker.ask("/v2/health/ready")[0] == 503
        assert worker.ask("/v2/health/live")[0] == 200
        soon(lambda: state_of(client) is State.WARMING)
        found = record(client)
        assert found is not None
        assert found.replicas[0].warmth == (("batch-1", 0.0),)
        assert worker.ask("/v2/models/m/infer", echo_body())[0] == 503
        soon(lambda: state_of(client) is State.WARM)
        assert worker.ask("/v2/health/ready")[0] == 200
        stats = worker.ask("/stats")[1]["models"]["m"]
        assert (stats["before_warm"], stats["executed"]) == (2, 0)
        assert worker.ask("/v2/models/m/infer", echo_body(2.5))[1]["outputs"][0]["data"] == [2.5]
        assert worker.ask("/stats")[1]["models"]["m"]["executed"] == 1


def test_a_warm_worker_sends_one_message_a_heartbeat(server: RedisServer, client: redis.Redis) -> None:
    subscription = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    subscription.subscribe(KEYS.channel)
    assert subscription.get_message(timeout=1) is None
    with WorkerProcess(*ECHO, "--state", server.url) as worker:
        worker.listening()
        worker.warm("m")
        soon(lambda: state_of(client) is State.WARM)
        while subscription.get_message(timeout=0.1) is not None:
            pass
        deltas = []
        until = time.monotonic() + 3.2
        while (left_s := until - time.monotonic()) > 0:
            message = subscription.get_message(timeout=left_s)
            if message is not None:
                deltas.append(decode_delta(message["data"]))
    subscription.close()
    assert 2 <= len(deltas) <= 4
    assert [delta.revision for delta in deltas] == list(range(deltas[0].revision, deltas[0].revision + len(deltas)))
    assert {name for delta in deltas for name in delta.fields} <= {"replicas", "free", "cpu"}, "only what changed"


def test_a_failed_load_is_reported_with_its_reason(tmp_path: Path, server: RedisServer, client: redis.Redis) -> None:
    models = tmp_path / "models"
    shipped_model("logreg_iris", models)
    shipped_model("mul_1", models)
    with WorkerProcess("--models", str(models), "--state", server.url, "--namespace", "t", "--id", "w1") as worker:
        worker.listening()
        failed = worker.event("model.state", model="logreg_iris", to="failed")
        reason = "output 'probabilities': type seq(map(int64,tensor(float))) has no datatype in the protocol"
        assert failed["reason"] == reason
        worker.warm("mul_1")
        assert worker.ask("/v2/health/ready")[:2] == (200, {"ready": True}), "it goes on serving the rest"
        assert worker.ask("/v2/models/logreg_iris/ready")[:2] == (
            503,
            {"error": f"model 'logreg_iris' is not ready: loading failed: {reason}"},
        )
        assert worker.ask("/v2/models/mul_1/ready")[0] == 200

        def reported() -> dict[str, tuple[State, str]]:
            found = record(client)
            return {r.model: (r.state, r.reason) for r in found.replicas} if found is not None else {}

        wanted = {"logreg_iris": (State.FAILED, reason), "mul_1": (State.WARM, "")}
        soon(lambda: reported() == wanted)
        worker.terminate()
        assert worker.wait() == 0


def test_sigterm_tells_the_store_first_finishes_and_leaves(server: RedisServer, client: redis.Redis) -> None:
    with WorkerProcess(*ECHO, "--state", server.url, "--settle-s", "3") as worker:
        worker.listening()
        worker.warm("m")
        answers: list[int] = []
        slow = threading.Thread(
            target=lambda: answers.append(worker.ask("/v2/models/m/infer", echo_body(service_ms=8000))[0])
        )
        slow.start()
        soon(lambda: worker.ask("/stats")[1]["in_flight"] == 1)
        worker.terminate()
        soon(lambda: (found := record(client)) is not None and found.draining)
        status, _, headers = worker.ask("/v2/models/m/infer", echo_body())
        assert (status, headers["Connection"]) == (200, "close"), "what arrives while callers learn of it is answered"
        assert worker.ask("/v2/health/ready")[0] == 503
        assert state_of(client) is State.DRAINING
        host, port = worker.address.removeprefix("http://").split(":")

        def refused() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((host, int(port))) != 0

        soon(refused)
        assert answers == [], "it stopped accepting before it had finished"
        slow.join(30)
        assert answers == [200]
        assert worker.wait() == 0
        assert record(client) is None


def test_a_drain_ends_in_time_and_what_is_cut_gets_an_error(server: RedisServer) -> None:
    with WorkerProcess(*ECHO, "--state", server.url, "--settle-s", "0", "--drain-s", "0.5") as worker:
        worker.listening()
        worker.warm("m")
        answers: list[tuple[int, Any]] = []
        slow = threading.Thread(
            target=lambda: answers.append(worker.ask("/v2/models/m/infer", echo_body(service_ms=60_000))[:2])
        )
        slow.start()
        soon(lambda: worker.ask("/stats")[1]["in_flight"] == 1)
        began = time.monotonic()
        worker.terminate()
        assert worker.wait() == 0
        assert time.monotonic() - began < 3
        slow.join(30)
        assert answers == [(503, {"error": "model 'm': the worker stopped before this was done"})]
        assert worker.event("worker.drain_cut")["in_flight"] == 1


def test_sigterm_as_soon_as_it_has_started_drains() -> None:
    # Between the event and its first turn it makes a gRPC server, which takes longer than this signal.
    with WorkerProcess("--engine", "deterministic", "--model", "m", "--peer-listen", "127.0.0.1:0") as worker:
        worker.event("worker.started")
        worker.terminate()
        assert worker.wait() == 0
        assert worker.event("worker.draining")
        assert worker.event("worker.stopped")


def test_a_second_sigterm_cuts_the_drain_short(server: RedisServer) -> None:
    with WorkerProcess(*ECHO, "--state", server.url, "--settle-s", "30") as worker:
        worker.listening()
        worker.warm("m")
        worker.terminate()
        worker.event("worker.draining")
        worker.terminate()
        assert worker.wait(25) == 0


def test_sigterm_while_loading_gives_the_load_up(server: RedisServer, client: redis.Redis) -> None:
    with WorkerProcess(*ECHO, "--state", server.url, "--settle-s", "0", "--load-s", "60") as worker:
        worker.listening()
        soon(lambda: state_of(client) is State.LOADING)
        worker.terminate()
        assert worker.wait(50) == 0
        assert record(client) is None


def test_a_caller_that_hangs_up_frees_its_place() -> None:
    with WorkerProcess(*ECHO) as worker:
        worker.listening()
        worker.warm("m")
        connection = http.client.HTTPConnection(worker.address.removeprefix("http://"), timeout=10)
        connection.request(
            "POST",
            "/v2/models/m/infer",
            body=b'{"inputs": [{"name": "INPUT0", "shape": [1, 1], '
            b'"datatype": "FP32", "data": [1]}], "parameters": {"service_ms": 60000}}',
        )
        soon(lambda: worker.ask("/stats")[1]["in_flight"] == 1)
        connection.close()
        soon(lambda: worker.ask("/stats")[1]["in_flight"] == 0)
        assert worker.ask("/stats")[1]["models"]["m"]["cancelled"] == 1


def test_a_store_that_was_killed_and_comes_back_empty_is_filled_within_3_s(
    server: RedisServer, client: redis.Redis
) -> None:
    with WorkerProcess(*ECHO, "--state", server.url) as worker:
        worker.listening()
        worker.warm("m")
        soon(lambda: state_of(client) is State.WARM)
        server.kill()
        worker.event("state.lost")
        assert worker.ask("/v2/models/m/infer", echo_body())[0] == 200
        assert worker.ask("/v2/health/ready")[0] == 200
        server.start()
        assert soon(lambda: state_of(client) is State.WARM, 3.0) < 3.0
        worker.event("state.back")


def test_a_store_that_hangs_is_noticed_and_holds_nothing_up(server: RedisServer, client: redis.Redis) -> None:
    with WorkerProcess(*ECHO, "--state", server.url, "--settle-s", "0") as worker:
        worker.listening()
        worker.warm("m")
        soon(lambda: state_of(client) is State.WARM)
        server.pause()
        try:
            worker.event("state.lost")
            began = time.monotonic()
            assert worker.ask("/v2/models/m/infer", echo_body())[0] == 200
            assert time.monotonic() - began < 1
        finally:
            server.resume()
        worker.event("state.back")
        soon(lambda: state_of(client) is State.WARM, 3.0)
        server.pause()
        try:
            began = time.monotonic()
            worker.terminate()
            assert worker.wait(10) == 0
            assert time.monotonic() - began < 5
        finally:
            server.resume()


def test_a_record_that_expired_is_written_whole_again(server: RedisServer, client: redis.Redis) -> None:
    with WorkerProcess(*ECHO, "--state", server.url) as worker:
        worker.listening()
        worker.warm("m")
        soon(lambda: state_of(client) is State.WARM)
        client.delete(KEYS.endpoint("w1"))
        soon(lambda: state_of(client) is State.WARM, 3.0)
        worker.event("state.record_lost")


def test_started_again_under_its_id_it_is_cold_at_once(server: RedisServer, client: redis.Redis) -> None:
    flags = (*ECHO, "--state", server.url)
    with WorkerProcess(*flags) as first:
        first.listening()
        soon(lambda: state_of(client) is State.WARM)
        before = record(client)
        first.process.kill()
        first.wait()
    assert before is not None
    assert state_of(client) is State.WARM, "nobody has told the store yet"
    with WorkerProcess(*flags, "--load-s", "60") as second:
        second.listening()
        soon(lambda: (found := record(client)) is not None and found.epoch != before.epoch)
        found = record(client)
        assert found is not None
        assert found.replicas[0].state in (State.COLD, State.LOADING)
        assert found.replicas[0].warmth == (("batch-1", 0.0),)
        assert second.ask("/v2/models/m/infer", echo_body())[0] == 503
        assert second.ask("/stats")[1]["models"]["m"]["executed"] == 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_it_accepts_nothing_before_the_store_knows_it(server: RedisServer, client: redis.Redis) -> None:
    port = free_port()
    client.hset(KEYS.endpoint("w1"), "epoch", "of-a-process-that-died")

    def accepts() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    with WorkerProcess(*ECHO, "--state", server.url, "--listen", f"127.0.0.1:{port}", "--load-s", "60"):
        while not accepts():  # without a pause: what is looked for is a moment
            assert client.ping()
        assert client.hget(KEYS.endpoint("w1"), "epoch") != "of-a-process-that-died"


def test_it_accepts_in_time_where_the_store_cannot_be_told(server: RedisServer) -> None:
    server.pause()
    with WorkerProcess(*ECHO, "--state", server.url) as worker:
        worker.event("worker.started")
        began = time.monotonic()
        worker.listening()
        assert 0.5 < time.monotonic() - began < 3
        assert worker.ask("/v2/health/live")[0] == 200
        server.resume()


def test_a_password_from_a_file(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--requirepass", "s3cret")
    server.start()
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    try:
        with WorkerProcess(*ECHO, "--state", server.url, "--state-password-file", str(secret)) as worker:
            worker.event("state.registered")
        secret.write_text("wrong\n")
        with WorkerProcess(*ECHO, "--state", server.url, "--state-password-file", str(secret)) as worker:
            lost = worker.event("state.lost")
            assert "invalid username-password pair" in lost["error"]
            assert "wrong" not in lost["error"]
    finally:
        server.stop()


def test_an_acl_user_in_the_url(server: RedisServer, client: redis.Redis) -> None:
    client.execute_command(  # type: ignore[no-untyped-call]
        *(
            "ACL",
            "SETUSER",
            "w",
            "on",
            ">pw",
            "~wr:{t}:*",
            "&wr:{t}:delta",
            "-@all",
            "+evalsha",
            "+script|load",
            "+hget",
        ),
        *("+hset", "+incr", "+pexpire", "+time", "+zadd", "+publish", "+del", "+zrem", "+hello", "+client"),
    )
    url = server.url.replace("unix://", "unix://w:pw@")
    with WorkerProcess(*ECHO, "--state", url, "--settle-s", "0") as worker:
        started = worker.event("worker.started")
        assert started["state"] == server.url.replace("unix://", "unix://***@")
        soon(lambda: state_of(client) is State.WARM)
        worker.terminate()
        assert worker.wait() == 0
        assert record(client) is None


def test_tls_with_a_client_certificate(tmp_path: Path, server: RedisServer, client: redis.Redis) -> None:
    authority = Authority()
    cert_file, key_file = authority.issue("127.0.0.1").write(tmp_path, "both")
    with tls_front(server.socket, authority.server((cert_file, key_file), asks=True)) as port:
        files = ("--state-ca-file", write(tmp_path / "ca.pem", authority.pem))
        own = ("--state-cert-file", cert_file, "--state-key-file", key_file)
        with WorkerProcess(*ECHO, "--state", f"rediss://127.0.0.1:{port}", *files, *own) as worker:
            worker.event("state.registered")
            soon(lambda: state_of(client) is State.WARM)
            worker.terminate()
            assert worker.wait() == 0
        with WorkerProcess(*ECHO, "--state", f"rediss://127.0.0.1:{port}", *files) as worker:
            worker.event("state.lost")
        with WorkerProcess(*ECHO, "--state", f"rediss://127.0.0.1:{port}", *own) as worker:
            assert "certificate verify failed" in worker.event("state.lost")["error"]


def test_it_drains_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-P', '-m', 'worker', '--engine', 'deterministic', '--model', 'm',"
        " '--settle-s', '0', '--parent-pid', str(os.getpid())], stderr=open(sys.argv[1], 'w'))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        int(parent.stdout.readline())
        soon(lambda: "model.warm" in log.read_text())
        parent.kill()
    soon(lambda: "worker.stopped" in log.read_text(), 10)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (
            ("--models", "/nonexistent"),
            "/nonexistent: not a directory; give --models the directory that holds NAME/VERSION/",
        ),
        ((), "no model repository: give --models DIR with NAME/VERSION/model.onnx in it"),
        (("--engine", "deterministic"), "no model: give --models DIR, or name one with --model NAME"),
    ],
)
def test_what_cannot_start_says_why_and_ends_with_2(flags: tuple[str, ...], error: str) -> None:
    with WorkerProcess(*flags) as worker:
        assert worker.event("worker.failed")["error"] == error
        assert worker.wait() == 2


def test_a_taken_port_names_the_flag() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with WorkerProcess(*ECHO, "--listen", f"127.0.0.1:{port}") as worker:
            assert worker.event("worker.failed")["error"] == f"--listen 127.0.0.1:{port}: Address already in use"
            assert worker.wait() == 2
