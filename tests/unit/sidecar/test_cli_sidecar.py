"""Flags of ``warmroute sidecar``: what settings they come to, and which do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.main import main
from sidecar.cli.outcome import CliError
from sidecar.cli.sidecar import flag_overrides
from sidecar.config.load import load_settings
from sidecar.settings import Listener, LogFormat, Model, Probe, Settings


def settings_of(config: Path | None = None, **flags: Any) -> Settings:
    return load_settings(config, {}, flag_overrides(with_file=config is not None, **flags))


def test_no_file_is_needed() -> None:
    settings = settings_of(listen=("127.0.0.1:8080",), to=("http://127.0.0.1:9001", "http://127.0.0.1:9002"))
    assert settings.listeners == (Listener(address="127.0.0.1:8080"),)
    assert settings.models == (
        Model(name="default", default=True, endpoints=("http://127.0.0.1:9001", "http://127.0.0.1:9002")),
    )
    assert settings.state.url == "none"


def test_grpc_beside_http_or_alone() -> None:
    both = settings_of(listen=("h:1",), grpc_listen=("h:2", "unix:/g"), to=("http://w:1", "grpc://w:2"), processes=3)
    assert [(one.address, one.protocol.value, one.processes) for one in both.listeners] == [
        ("h:1", "http", 3),
        ("h:2", "grpc", 3),
        ("unix:/g", "grpc", 3),
    ]
    alone = settings_of(grpc_listen=("h:1",), to=("grpc://w:1",))
    assert [one.protocol.value for one in alone.listeners] == ["grpc"]


def test_unix_sockets_both_ways() -> None:
    settings = settings_of(listen=("unix:/run/a.sock",), to=("unix:/run/w.sock",))
    assert settings.listeners == (Listener(address="unix:/run/a.sock", unix_mode="0660"),)
    assert settings.models[0].endpoints == ("unix:/run/w.sock",)


def test_every_flag_without_a_file() -> None:
    settings = settings_of(
        listen=("127.0.0.1:8080", "[::1]:8080"),
        to=("http://w:1",),
        processes=3,
        admin="127.0.0.1:0",
        admin_socket="run/a.sock",
        idempotent=True,
        probe="/ready",
        log_format="text",
    )
    assert [(one.address, one.processes) for one in settings.listeners] == [("127.0.0.1:8080", 3), ("[::1]:8080", 3)]
    assert settings.models[0].probe == Probe(path="/ready")
    assert settings.models[0].idempotent
    assert (settings.admin.address, settings.admin.socket) == ("127.0.0.1:0", "run/a.sock")
    assert settings.logging.format is LogFormat.TEXT


def test_flags_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "version: 1\nlisteners: [{address: 'h:1', processes: 9}]\nmodels: [{name: m, endpoints: ['http://w:1']}]\n"
    )
    settings = settings_of(path, processes=1, admin="none", admin_socket="a.sock")
    assert settings.listeners == (Listener(address="h:1", processes=1),)
    assert settings.admin.address is None
    assert settings.models[0].name == "m"
    assert settings_of(path, listen=("h:2",)).listeners == (Listener(address="h:2"),)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            {"with_file": True, "to": ("http://w:1",), "probe": "/x"},
            "--to, --probe: only without --config; declare the model in the file, under models",
        ),
        (
            {"with_file": False, "listen": ("h:1",), "idempotent": True},
            "--idempotent: needs --to, the workers it is about",
        ),
        (
            {"with_file": False, "to": ("http://w:1",)},
            "--to: needs --listen HOST:PORT or --grpc-listen HOST:PORT, where to accept",
        ),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], text: str) -> None:
    with pytest.raises(CliError) as caught:
        flag_overrides(**flags)
    assert (str(caught.value), caught.value.code) == (text, 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "warmroute: give --config FILE, or --listen HOST:PORT and --to http://HOST:PORT\n"),
        (
            ["--listen", "8080", "--to", "localhost:1", "--processes", "0"],
            "--processes: listeners[0].processes: 0: must be at least 1\n",
        ),
        (
            ["--listen", "8080", "--to", "localhost:1"],
            (
                '--listen: listeners[0].address: "8080": must be HOST:PORT, for example 127.0.0.1:8080\n'
                '--to: models[0].endpoints[0]: "localhost:1": must be http://HOST:PORT; did you mean http://localhost:1?\n'
            ),
        ),
        (
            ["--listen", "h:1", "--to", "http://w:1", "--probe", "ready"],
            (
                '--probe: models[0].probe.path: "ready": '
                "must be a path that starts with / and holds neither spaces nor control characters\n"
            ),
        ),
        (
            ["--listen", "h:1", "--to", "http://w:1", "--admin", "0.0.0.0:1"],
            (
                '--admin: admin.address: "0.0.0.0:1": '
                "must be a loopback address (127.0.0.1 or [::1]), or admin.token_file must be set\n"
            ),
        ),
        (
            ["--listen", "h:1"],
            (
                "command line: models: an empty list: "
                "must name a model with endpoints, or state.url must name a store that knows workers\n"
            ),
        ),
        (["--listen", "h:1", "--log-format", "xml"], None),
        (["--processes", "two"], None),
        (["positional"], None),
    ],
)
def test_refused_before_anything_starts(
    arguments: list[str], text: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {})
    assert main(["sidecar", *arguments]) == 2
    error = capsys.readouterr().err
    if text is None:  # worded by the command line library
        assert error.startswith("warmroute: ")
        assert error.count("\n") == 1
    else:
        assert error == text
