"""What ``warmroute sidecar`` and ``warmroute up`` refuse before they start anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def warmroute(*arguments: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    (scratch / "tmp").mkdir()
    return subprocess.run(
        [sys.executable, "-P", "-m", "sidecar.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"TMPDIR": str(scratch / "tmp")},
        cwd=scratch,
    )


def test_sidecar_says_which_address_is_taken_and_what_changes_it(taken: str, tmp_path: Path) -> None:
    done = warmroute("sidecar", "--listen", taken, "--to", "http://127.0.0.1:9", scratch=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"warmroute: {taken} is already taken by another process; choose another with --listen HOST:PORT or "
        "listeners[0].address\n"
    )


def test_sidecar_says_so_of_the_admin_address_too(taken: str, tmp_path: Path) -> None:
    done = warmroute(
        "sidecar", "--listen", "127.0.0.1:0", "--admin", taken, "--to", "http://127.0.0.1:9", scratch=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"warmroute: {taken} is already taken by another process; choose another with --admin HOST:PORT or "
        "admin.address"
    )


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_up_checks_its_ports_before_it_starts_anything(flag: str, taken: str, tmp_path: Path) -> None:
    (tmp_path / "models" / "toy" / "1").mkdir(parents=True)
    other = {"--listen": "--admin", "--admin": "--listen"}[flag]
    done = warmroute("up", flag, taken, other, "127.0.0.1:0", scratch=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"warmroute: {taken} is already taken by another process; choose another with {flag} HOST:PORT\n"
    )
    assert list((tmp_path / "tmp").iterdir()) == []


def test_up_leaves_what_stands_in_the_place_of_its_ready_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "toy" / "1").mkdir(parents=True)
    project = tmp_path / "project"
    project.mkdir()
    (project / "thesis.tex").write_text("years of work")
    done = warmroute(
        *("up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file", "project"), scratch=tmp_path
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"warmroute: --ready-file {project}: is a directory; name a file that warmroute may write and remove\n"
    )
    assert (project / "thesis.tex").read_text() == "years of work"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_up_keeps_its_admin_api_on_loopback(tmp_path: Path) -> None:
    (tmp_path / "models" / "toy" / "1").mkdir(parents=True)
    done = warmroute("up", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0", scratch=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "warmroute: --admin 0.0.0.0:0: must be a loopback address, such as 127.0.0.1:9901\n"


def test_up_without_models_says_where_to_get_one(tmp_path: Path) -> None:
    done = warmroute("up", "--models", "absent", scratch=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "warmroute: no model under absent/ (expected NAME/VERSION/model.onnx): fetch the demo model with 'make demo' "
        "or 'python tools/fetch_demo_model.py --models absent', or name another directory with --models\n"
    )
    assert list((tmp_path / "tmp").iterdir()) == []


def test_up_with_a_model_that_does_not_load_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    version = tmp_path / "models" / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"not a model")
    ready = tmp_path / "ready.json"
    ready.write_text("of before")
    done = warmroute(
        *("up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file", str(ready)), scratch=tmp_path
    )
    assert done.returncode == 1
    assert "could not load broken" in done.stderr.splitlines()[-1]
    assert ready.read_text() == "of before"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["control"], ["control", "--plan-fd", "x"], ["nonsense", "--plan-fd", "3"]])
def test_the_roles_are_not_for_people(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sidecar", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -P -m sidecar {control,data,supervise,janitor,faults} --plan-fd N\n")
