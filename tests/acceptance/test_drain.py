"""SIGTERM under load: what runs is finished within the grace period, nothing new is accepted, exit code 0."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.load import Load, echo, stream
from tests.support.product import running
from tests.support.sidecars import until
from tests.support.streaming_origin import streaming_origin

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(60)]


CLIENTS = 16
PAUSE_S = 0.6
"""Between a client's requests: most connections are idle when the drain begins, and asked once more within a second."""


def settings(origin: str, drain_s: float) -> dict[str, Any]:
    return {
        "models": [{"name": "default", "default": True, "endpoints": [origin]}],
        "timeouts": {"drain_s": drain_s},
    }


def connects(listen: str) -> bool:
    host, _, port = listen.rpartition(":")
    with closing(socket.socket()) as sock:
        sock.settimeout(2)
        return sock.connect_ex((host, int(port))) == 0


def test_streams_end_whole_and_nothing_is_accepted_after_sigterm(tmp_path: Path) -> None:
    with (
        streaming_origin(tmp_path / "origin.log") as origin,
        running(tmp_path, settings=settings(origin, drain_s=50)) as sidecar,
        Load(sidecar.listen, [stream(8)], clients=12, rate_per_s=120, rounds=1) as streams,
        Load(sidecar.listen, [echo()], clients=CLIENTS, rate_per_s=CLIENTS / PAUSE_S) as load,
    ):
        until(lambda: len(streams.ports) == 12 and len(load.answers) > 2 * CLIENTS, "streams and short requests run")
        sidecar.process.send(signal.SIGTERM)
        told_at = time.monotonic()
        until(lambda: sidecar.read("/readyz")[0] == 503, "not ready at once")
        until(lambda: not connects(sidecar.listen), "connections are refused")
        while time.monotonic() < told_at + 2:
            assert not connects(sidecar.listen)
            assert sidecar.process.popen.poll() is None
            time.sleep(0.05)
        load.stop()
        streams.join()
        assert streams.failed() == [], streams.summary()
        assert all(answer.ended > told_at + 2 for answer in streams.answers)
        assert sidecar.process.wait() == 0
        assert time.monotonic() - told_at < 30  # it leaves with the last stream, well before the grace period ends

    # on connections that were kept alive every request was answered; what was refused is connecting anew
    assert [answer for answer in load.failed() if not answer.fresh] == [], load.summary()
    assert [answer for answer in load.failed() if answer.began < told_at] == [], load.summary()
    assert {answer.error for answer in load.failed()} <= {"ConnectionRefusedError", "ConnectionResetError"}
    assert sum(answer.closes for answer in load.answers if answer.ok) >= CLIENTS  # each was told to go elsewhere


def test_a_stream_longer_than_the_grace_period_is_cut_at_its_end(tmp_path: Path) -> None:
    with (
        streaming_origin(tmp_path / "origin.log") as origin,
        running(tmp_path, settings=settings(origin, drain_s=3)) as sidecar,
        Load(sidecar.listen, [stream(12)], clients=8, rate_per_s=80, rounds=1) as streams,
    ):
        until(lambda: len(streams.ports) == 8, "the streams run")
        time.sleep(0.3)
        sidecar.process.send(signal.SIGTERM)
        told_at = time.monotonic()
        streams.join()
        assert len(streams.failed()) == 8
        for answer in streams.answers:
            assert 3 <= answer.ended - told_at < 4, answer
            assert answer.begun
            assert answer.error in {"closed", "ConnectionResetError"}, answer  # never finished falsely
        assert sidecar.process.wait() == 0
        cut = [event["requests"] for event in sidecar.process.events("drain.cut")]
        assert sum(cut) == 8
