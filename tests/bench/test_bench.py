"""Each profile for a moment: that it measures, not what. Figures of a run this short say nothing about speed."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tools.bench.asks import GET
from tools.bench.contenders import DIRECT, NO_FAULT, OURS
from tools.bench.measuring import Bench, Wanted
from tools.bench.processes import build_paced
from tools.bench.profiles import MEMORY, PROFILES

if TYPE_CHECKING:
    from pathlib import Path

    from tools.bench.results import Run

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
    pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None, reason="no nginx"),
]
SECONDS = 0.15
MEASURED = ("nginx", OURS, NO_FAULT)


@pytest.fixture(scope="module")
def run() -> Run:
    wanted = Wanted(
        contenders=MEASURED,
        profiles=(*PROFILES, MEMORY),
        rounds=1,
        seconds=SECONDS,
        named=True,
        explain="none",
        connections=100,
        settle_s=0.1,
    )
    return Bench(wanted, lambda text: None).measure()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_measures_everyone_in_it(run: Run, profile: str) -> None:
    measured = run.samples[profile]
    assert set(measured) == {name for name in PROFILES[profile].contenders if name in (*MEASURED, DIRECT)}
    for name, (sample,) in measured.items():
        assert sample.units > 50
        assert sample.seconds >= SECONDS
        assert 0 < sample.p50_us <= sample.p99_us
        if name == DIRECT:
            assert sample.cpu_us == 0
        else:
            assert 1 < sample.cpu_us < 5000
            assert 0 < sample.cpu_ratio < 4
            assert sample.pss_bytes > 1_000_000
            assert sum(sample.by_process.values()) == pytest.approx(sample.cpu_us, rel=0.01)


def test_each_process_of_ours_has_its_role(run: Run) -> None:
    assert set(run.samples["post"][OURS][0].by_process) == {"data", "control", "supervisor"}


def test_memory_is_that_of_the_process_that_serves(run: Run) -> None:
    assert set(run.memory) == {"nginx", OURS}
    ours = run.memory[OURS]
    assert 5_000_000 < ours.idle_bytes < ours.tree_bytes
    assert -1_000_000 < ours.added_bytes < 20_000_000
    assert ours.kinds["uvloop"] > 100_000


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_paced(tmp_path_factory.mktemp("paced"))


def load(paced: Path, kind: str, port: int, template: Path, *rate: str) -> subprocess.CompletedProcess[str]:
    argv = [str(paced), kind, str(port), "4", *rate, "0.3", str(template)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


def answer_with(answer: bytes, after_s: float = 0.0) -> socket.socket:
    """Return a listening socket behind which each request is answered so, ``after_s`` later."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve_one, args=(sock,), daemon=True).start()

    def serve_one(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while sock.recv(65536):
                time.sleep(after_s)
                sock.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return server


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "an answer is not 200: HTTP/1.1 503"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "an answer has no Content-Length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab", "bytes came behind an answer"),
    ],
)
def test_the_load_takes_whole_good_answers_only(paced: Path, tmp_path: Path, answer: bytes, said: str) -> None:
    template = tmp_path / "request"
    template.write_bytes(GET.template(1, "x"))
    with answer_with(answer) as server:
        done = load(paced, "closed", server.getsockname()[1], template)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_request_that_waits_for_a_slow_answer_pays_for_it(paced: Path, tmp_path: Path) -> None:
    """Four connections, 20 ms an answer: 200 a second can be had. At 400 a second the queue is part of the latency."""
    template = tmp_path / "request"
    template.write_bytes(GET.template(1, "x"))
    with answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", after_s=0.02) as server:
        done = load(paced, "requests", server.getsockname()[1], template, "400")
    said = json.loads(done.stdout)
    assert said["units"] == 120
    assert said["waited"] > 20
    assert said["p50_us"] > 60_000
    assert said["most_us"] > 150_000
