"""A caller that has been here before sends its request with the first packet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = Path(__file__).parents[1] / "support" / "fast_open.py"

pytestmark = [pytest.mark.acceptance, pytest.mark.roomy, pytest.mark.netns, pytest.mark.timeout(60)]


@pytest.fixture
def namespace() -> list[str]:
    """Return a command that runs another one in a network namespace of its own."""
    tried = []
    for flags in (["--net"], ["--net", "--map-root-user"]):
        command = ["unshare", *flags, "--"]
        script = "import pathlib; p = pathlib.Path('/proc/sys/net/ipv4/tcp_fastopen'); p.write_text(p.read_text())"
        try:
            done = subprocess.run([*command, sys.executable, "-c", script], capture_output=True, text=True, timeout=10)
        except FileNotFoundError:
            pytest.skip("unshare (util-linux) is not installed")
        if done.returncode == 0:
            return command
        tried.append(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    pytest.skip(f"no network namespace with its own sysctls is permitted here: {'; '.join(tried)}")


def test_the_kernels_counter_rises_when_a_fast_open_client_connects(tmp_path: Path, namespace: list[str]) -> None:
    done = subprocess.run(
        [*namespace, sys.executable, str(SCENARIO), str(tmp_path)], capture_output=True, text=True, timeout=45
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["queue"] == 256
    before, first, second = report["passive"]
    assert first == before  # the first connection only brings the cookie
    assert second == before + 1
    assert all(answer.startswith("HTTP/1.1 200 ") and answer.endswith("hello") for answer in report["answers"])
    assert report["code"] == 0
