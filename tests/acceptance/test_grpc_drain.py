"""A sidecar ends, or is upgraded, under a load of gRPC calls: callers notice nothing, running calls end whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.support.product import Sidecar, running
from tests.support.sidecars import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(60)]

CALLERS = 8
SLOW_S = 1.5


class Worker(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Gives back what it got: at once, or on ``/w.W/Slow`` after a while."""

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            if details.method == "/w.W/Slow":
                time.sleep(SLOW_S)
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def worker() -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(32), handlers=(Worker(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait(5)


class Callers:
    """Ask without a pause, on a channel each, of all of ``targets`` in turn; every failure is kept."""

    def __init__(self, targets: list[str]) -> None:
        self._target = "ipv4:" + ",".join(targets)
        self._stop = threading.Event()
        self.answers = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CALLERS)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(25)

    def _ask(self, number: int) -> None:
        options = [("grpc.lb_policy_name", "round_robin"), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._target, options=options) as channel:
            call = channel.unary_unary("/w.W/Fast")
            turn = 0
            while not self._stop.is_set():
                turn += 1
                sent = b"%d/%d" % (number, turn)
                try:
                    if call(sent, timeout=20) != sent:
                        self.failures.append(f"another's answer to {sent!r}")
                    self.answers += 1
                except grpc.RpcError as error:
                    told = dict(error.trailing_metadata() or ())
                    self.failures.append(f"{time.time():.3f} {sent!r} {error.code()} {error.details()} {told}")

    def assert_none_failed(self, sidecar: Sidecar) -> None:
        """Show the failures, and what the sidecar said meanwhile: a call that was lost is seldom lost again."""
        if self.failures:
            pytest.fail("\n".join([*self.failures[:20], *sidecar.process.text().splitlines()[-40:]]), pytrace=False)


def settings(port: int) -> dict[str, Any]:
    return {
        "listeners": [{"address": "127.0.0.1:0", "protocol": "grpc", "processes": 2}],
        "models": [{"name": "default", "default": True, "endpoints": [f"grpc://127.0.0.1:{port}"]}],
        "timeouts": {"connect_s": 10},  # the worker is a few threads among the callers' here, and the only one
    }


def in_flight(sidecar: Sidecar) -> float:
    return sidecar.metric("warmroute_requests_in_flight")


def test_a_drain_under_load_loses_no_call(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        worker() as port,
        running(tmp_path / "one", settings=settings(port)) as one,
        running(tmp_path / "two", settings=settings(port)) as two,
        Callers([one.listen, two.listen]) as callers,
        grpc.insecure_channel(one.listen) as channel,
    ):
        until(lambda: callers.answers > 50 * CALLERS, "calls are answered")
        slow = channel.unary_unary("/w.W/Slow").future(b"slow", timeout=10)
        time.sleep(0.3)
        one.process.send(signal.SIGTERM)
        assert one.process.wait() == 0
        assert slow.result(1) == b"slow"
        before = callers.answers
        until(lambda: callers.answers > before + 20 * CALLERS, "the other one goes on")
        callers.assert_none_failed(one)
        assert two.metric("warmroute_requests_total", outcome="ok") > 0
    assert not one.process.events("drain.cut")


def test_an_upgrade_under_load_loses_no_call(tmp_path: Path) -> None:
    with (
        worker() as port,
        running(tmp_path, settings=settings(port)) as sidecar,
        Callers([sidecar.listen]) as callers,
        grpc.insecure_channel(sidecar.listen) as channel,
    ):
        try:
            until(lambda: callers.answers > 50 * CALLERS, "calls are answered")
            slow = channel.unary_unary("/w.W/Slow").future(b"slow", timeout=10)
            time.sleep(0.3)
            sidecar.process.send(signal.SIGUSR2)
            sidecar.process.await_event("upgrade.done")
            assert sidecar.process.wait() == 0
            assert slow.result(5) == b"slow"
            before = callers.answers
            until(lambda: callers.answers > before + 20 * CALLERS, "the successor answers on the same address")
            callers.assert_none_failed(sidecar)
            assert not sidecar.process.events("drain.cut")
        finally:
            for event in sidecar.process.events("upgrade.started"):
                with suppress(ProcessLookupError):
                    os.kill(event["pid"], signal.SIGKILL)
