"""The command line as a whole: names, help, laziness, exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sidecar.cli.main import build, main
from sidecar.cli.worker import worker_command

ROOT = Path(__file__).parents[3]
COMMANDS = [
    "attribute",
    "bench",
    "cache",
    "compare",
    "config",
    "drill",
    "endpoints",
    "fault",
    "health",
    "models",
    "record",
    "replay",
    "routes",
    "sidecar",
    "up",
    "version",
    "versions",
    "worker",
]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(f" {name} " in out for name in COMMANDS)
        assert "Exit codes" in out


def test_every_command_can_be_imported() -> None:
    app = build()
    assert sorted(name for name in app if not name.startswith("-")) == COMMANDS
    for name in COMMANDS:
        assert app[name].help


@pytest.mark.parametrize(
    "arguments",
    [
        ["config"],
        ["config", "check"],
        ["config", "show"],
        ["config", "reference"],
        ["endpoints"],
        ["endpoints", "drain"],
        ["cache", "clear"],
        ["fault"],
        ["fault", "add"],
        ["health"],
        ["routes"],
        ["routes", "explain"],
        ["sidecar"],
        ["up"],
        ["version"],
        ["versions"],
        ["versions", "split"],
    ],
    ids=" ".join,
)
def test_help_of_each_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: warmroute {' '.join(arguments)}")
    assert "Admin()" not in out


def test_a_command_tells_more_of_itself_than_the_list_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sidecar", "--help"]) == 0
    assert "SIGTERM" in capsys.readouterr().out


def test_help_imports_none_of_the_commands() -> None:
    heavy = ("aiohttp", "redis", "uvloop", "httptools", "msgspec", "yaml", "asyncio", "router.cluster")
    see = f"print([name for name in {heavy!r} if name in sys.modules])"
    code = f"import sys; from sidecar.cli.main import main; main(['--help']); {see}"
    assert run(code).stdout.splitlines()[-1] == "[]"


def test_nothing_of_the_command_line_imports_the_worker() -> None:
    imports = "import sys; from sidecar.cli.main import build"
    code = f"{imports}; app = build(); [app[name] for name in app]; print(*sys.modules)"
    modules = run(code).stdout.split()
    assert "sidecar.cli.worker" in modules
    assert not [name for name in modules if name.split(".")[0] == "worker"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rout"], 'warmroute: no command "rout"; did you mean "routes"?'),
        (
            ["zzz"],
            (
                'warmroute: no command "zzz"; '
                "there are: sidecar, up, worker, routes, endpoints, versions, fault, drill, cache, health, config, "
                "version, models, record, replay, compare, attribute, bench"
            ),
        ),
        (
            ["config", "chek"],
            (
                'warmroute: Unknown command "chek". Did you mean "check"? Available commands: check, show, reload, '
                "status, reference. (warmroute --help)"
            ),
        ),
        (
            ["config", "check"],
            'warmroute: Command "config check" parameter FILE requires an argument. (warmroute --help)',
        ),
        (["--nope"], None),
    ],
)
def test_wrong_usage(arguments: list[str], text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("warmroute: ")
    assert text is None or error == text + "\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    words = capsys.readouterr().out.split()
    assert words[0] == "warmroute"
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == words[1]


def test_a_missing_worker_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sidecar.cli.worker.find_spec", lambda name: None)
    assert main(["worker"]) == 2
    assert capsys.readouterr().err == (
        'warmroute: the worker is not installed: pip install "warmroute[cpu]", or "warmroute[gpu]" with an NVIDIA GPU\n'
    )


def test_worker_gets_all_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("os.execv", lambda path, arguments: started.append((path, arguments)))
    assert main(["worker", "--help", "--models", "m", "--", "x"]) == 0
    assert started == [(sys.executable, [sys.executable, "-P", "-m", "worker", "--help", "--models", "m", "--", "x"])]
    assert worker_command(()) == [sys.executable, "-P", "-m", "worker"]
    for flag in (["--zygote", "/z"], ["--zygote=/z"]):
        assert main(["worker", "--model", "m", *flag]) == 0
        assert started[-1][1][1:] == ["-P", "-m", "worker.zygote_client", "--model", "m", *flag]


def test_bench_gets_all_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda path, arguments: started.append(arguments))
    assert main(["bench", "model", "--help"]) == 0
    assert started == [[sys.executable, "-P", "-m", "worker.bench", "model", "--help"]]


def test_a_reader_that_has_seen_enough() -> None:
    code = "from sidecar.cli.main import main; import sys; sys.exit(main(['config', 'reference']))"
    script = f"'{sys.executable}' -c \"{code}\" | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "# Configuration reference\n"
    assert done.stderr == ""
    assert done.returncode in (0, 1)  # 0 where the pipe took everything before head was gone


def test_entry_point_of_the_distribution() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'warmroute = "sidecar.cli.main:main"' in text
    assert callable(import_module("sidecar.cli.main").main)


@pytest.mark.parametrize("arguments", ["version", "models --help", "worker --help"])
def test_a_command_whose_standard_streams_are_closed_does_its_work(arguments: str) -> None:
    command = f"{sys.executable} -P -m sidecar.cli.main {arguments}"
    done = subprocess.run(
        ["sh", "-c", f"{command} <&- >&-"], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_is_none_is_refused_where_nobody_hears_of_it() -> None:
    command = f"{sys.executable} -P -m sidecar.cli.main no-such <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, timeout=60, check=False).returncode == 2
