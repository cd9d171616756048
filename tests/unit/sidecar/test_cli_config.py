"""``warmroute config``, and what the kernel would cap."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sidecar.cli.config import summary
from sidecar.cli.kernel import KernelLimits, caps, kernel_limits
from sidecar.cli.main import main
from sidecar.config.load import parse_settings
from sidecar.config.reference import reference
from sidecar.settings import Settings

TEXT = """\
version: 1
listeners:
  - {address: "127.0.0.1:8080", processes: 1, name: inside}
  - {address: "127.0.0.1:8081"}
admin: {socket: run/a.sock}
state: {url: "redis://u:hunter2@store:1", namespace: prod}
models:
  - {name: a, idempotent: true}
  - {name: b, endpoints: ["http://w:1"], default: true}
endpoints: [{url: "http://w:2", models: [b@2]}]
"""
PLENTY = KernelLimits(somaxconn=65535, tcp_fastopen=3, open_files=None)


def settings() -> Settings:
    return parse_settings(TEXT.encode(), "w.yaml").settings


def test_summary() -> None:
    assert list(summary(settings(), KernelLimits(somaxconn=128, tcp_fastopen=3, open_files=None))) == [
        "listener  127.0.0.1:8080 (inside): 1 data process",
        "listener  127.0.0.1:8081: 2 data processes",
        "admin     unix:run/a.sock, http://127.0.0.1:9901 (reads only)",
        "state     redis://***@store:1, namespace prod",
        "model     a: from the store; idempotent",
        "model     b: 2 static endpoints, others from the store; the default",
        "kernel    backlog 4096 is capped at 128: sysctl net.core.somaxconn=4096",
        "kernel    fastopen_queue 256 is capped at 128: sysctl net.core.somaxconn=256",
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (PLENTY, []),
        (KernelLimits(None, None, None), []),
        (
            KernelLimits(65535, 1, None),
            ["TCP fast open is off for servers: sysctl net.ipv4.tcp_fastopen=3"],
        ),
        (
            KernelLimits(65535, 3, 1024),
            ["limits.connections 4096 needs 8256 open files, 1024 allowed: raise ulimit -Hn"],
        ),
    ],
)
def test_caps(limits: KernelLimits, expected: list[str]) -> None:
    assert list(caps(settings(), limits)) == expected


def test_limits_of_this_machine_are_read() -> None:
    limits = kernel_limits()
    assert limits.somaxconn == int(Path("/proc/sys/net/core/somaxconn").read_text())


def test_check_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(TEXT)
    assert main(["config", "check", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}: good"
    assert "  model     a: from the store; idempotent" in out


def test_check_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(TEXT.replace("processes: 1", "processes: 0").replace("namespace", "namspace"))
    assert main(["config", "check", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"{path}:3:44: listeners[0].processes: 0: must be at least 1",
        f'{path}:6:43: state.namspace: "prod": unknown field; did you mean "namespace"?',
    ]


def test_check_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(TEXT.replace("name: a,", "name: a, probe: {},"))
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"warning: {path}:8:22: models[0].probe: an empty mapping: has no effect: the model has no static endpoints"
    )


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(TEXT)
    assert main(["config", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    shown = yaml.safe_load(out)
    assert shown["state"]["url"] == "redis://***@store:1"
    assert shown["listeners"][0]["processes"] == 1


def test_print_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "reference"]) == 0
    assert capsys.readouterr().out == reference()
