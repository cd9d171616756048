"""Under load the shared state stands still, dies and comes back empty: no request fails, and the routes are whole."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import redis

from router.wire import Keys
from tests.support.load import Load, infer
from tests.support.product import running
from tests.support.redis_server import RedisServer
from tests.support.sidecars import until
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.product import Sidecar

pytestmark = [pytest.mark.acceptance, pytest.mark.roomy, pytest.mark.timeout(120)]

MODEL = "toy"
NAMESPACE = "test"
WORKERS = {"worker-a", "worker-b"}
STOPPED_S = 5.0
AWAY_S = 2.0
COMPLETE_WITHIN_S = 3.0


def mode(sidecar: Sidecar) -> str:
    """Return the store's mode as the metrics tell it."""
    (found,) = (labels["mode"] for labels, value in sidecar.samples("warmroute_store_mode") if value == 1)
    return found


def registered(server: RedisServer) -> set[str]:
    """Return the ids of the endpoints whose records stand in the store now."""
    with redis.Redis(unix_socket_path=str(server.socket), socket_timeout=1, decode_responses=True) as client:
        return {id_ for id_ in WORKERS if client.exists(Keys(NAMESPACE).endpoint(id_))}


def whole(sidecar: Sidecar) -> bool:
    """Whether both replicas are warm, may be picked, and are believed because the store says so."""
    rows = sidecar.candidates(MODEL)
    return (
        set(rows) == WORKERS
        and all((row["state"], row["reason"]) == ("warm", None) and row["weight"] > 0 for row in rows.values())
        and mode(sidecar) == "live"
    )


def test_no_request_fails_whatever_happens_to_the_store(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        server.start()
        stack.callback(server.stop)
        flags = ("--state", server.url, "--namespace", NAMESPACE, "--engine", "deterministic", "--model", MODEL)
        workers = [
            stack.enter_context(WorkerProcess("--id", id_, *flags, "--service-ms", "10", "--concurrency", "16"))
            for id_ in sorted(WORKERS)
        ]
        for worker in workers:
            worker.warm(MODEL)
        settings = {
            "state": {"url": server.url, "namespace": NAMESPACE},
            "models": [{"name": MODEL}],  # not idempotent: no failure may hide behind a retry
        }
        sidecar = stack.enter_context(running(tmp_path, settings=settings))
        until(lambda: whole(sidecar), "the routes are whole")
        load = stack.enter_context(Load(sidecar.listen, [infer(MODEL)], clients=16, rate_per_s=120))
        until(lambda: {answer.worker for answer in load.answers} == WORKERS, "both are asked")

        # it stands still: connections stay open, nothing answers
        server.pause()
        paused_at = time.monotonic()
        until(lambda: mode(sidecar) == "frozen", "the last good snapshot holds", within_s=STOPPED_S)
        assert sidecar.open_to(MODEL) == WORKERS
        assert sidecar.ready()
        time.sleep(max(0.0, paused_at + STOPPED_S - time.monotonic()))
        server.resume()
        until(lambda: whole(sidecar), "the routes are whole again", within_s=COMPLETE_WITHIN_S)
        sidecar.process.await_event("store.mode", mode="live", before="frozen")

        # it dies, and comes back on the same socket without any content
        connects = sidecar.metric("warmroute_store_connects_total")
        server.kill()
        until(lambda: mode(sidecar) == "frozen", "the last good snapshot holds", within_s=1)
        time.sleep(AWAY_S)
        assert sidecar.open_to(MODEL) == WORKERS
        assert sidecar.ready()
        server.start()
        back_at = time.monotonic()
        until(lambda: registered(server) == WORKERS and whole(sidecar), "the routes are whole again", COMPLETE_WITHIN_S)
        assert time.monotonic() - back_at < COMPLETE_WITHIN_S
        load.stop()

        assert len(load.answers) > 800
        assert load.failed() == [], load.summary()
        for id_, worker in zip(sorted(WORKERS), workers, strict=True):
            served = [answer for answer in load.answers if answer.worker == id_]
            assert worker.ask("/stats")[1]["models"][MODEL]["executed"] == len(served)  # and none was tried twice

        assert sidecar.metric("warmroute_store_mode_changes_total") >= 4
        assert sidecar.metric("warmroute_store_connects_total") > connects
        assert sidecar.metric("warmroute_store_emptied_total") >= 1
        modes = [(event["before"], event["mode"]) for event in sidecar.process.events("store.mode")]
        assert modes == [("live", "frozen"), ("frozen", "live")] * 2
        assert len(sidecar.process.events("store.down")) >= 1
        assert sidecar.process.events("store.connected", emptied=True)
        assert not sidecar.process.events("endpoint.expired")
        assert sidecar.stop() == 0
