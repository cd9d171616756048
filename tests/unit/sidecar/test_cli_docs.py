"""What the pages say about the command line and the configuration holds as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sidecar.cli.main import build
from sidecar.config.load import load, parse_settings

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("cli.md", "configuration.md", "replay.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


COMMANDS = [
    line
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    if line.startswith("warmroute ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_command_lines_are_understood(line: str) -> None:
    tokens = shlex.split(line, comments=True)[1:]
    command, bound, ignored = build().parse_args(tokens, exit_on_error=False, print_error=False)
    assert callable(command)
    assert not ignored
    assert bound is not None


def test_every_command_is_documented() -> None:
    documented = {tuple(shlex.split(line, comments=True)[1:3]) for line in COMMANDS}
    for name in build():
        if not name.startswith("-"):
            assert name in {words[0] for words in documented}, name
    for group in ("cache", "config", "routes", "endpoints", "versions", "fault"):
        for name in build()[group]:
            if not name.startswith("-"):
                assert (group, name) in documented, f"{group} {name}"


@pytest.mark.parametrize(
    "text", blocks("configuration.md", "yaml") + blocks("routing.md", "yaml") + blocks("versions.md", "yaml")[:1]
)
def test_examples_are_good(text: str, tmp_path: Path) -> None:
    secret = tmp_path / "store"
    secret.write_text("password\n")
    secret.chmod(0o600)
    loaded = parse_settings(text.replace("/run/secrets/store", str(secret)).encode(), "example.yaml")
    assert loaded.warnings == ()


def test_example_variables_are_fields() -> None:
    base = "[{name: m, endpoints: ['http://w:1']}]"
    lines = [line for block in blocks("configuration.md", "sh") for line in block.splitlines() if "__" in line]
    environ = dict(shlex.split(line, comments=True)[0].split("=", 1) for line in lines)
    assert len(environ) == len(lines) > 3
    settings = load(None, environ | {"WARMROUTE__LISTENERS": "[{address: 'h:1'}]", "WARMROUTE__MODELS": base}).settings
    assert settings.listeners[0].processes == 4
    assert len(settings.models[0].endpoints) == 2
    assert settings.admin.address is None
