"""That the build says of itself what it is, here and in the processes that it starts."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from sidecar.version import described, is_compiled

ROOT = Path(__file__).resolve().parents[3]
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
MODULES = sorted(str(path.relative_to(ROOT)) for pattern in HOOK["custom"]["modules"] for path in ROOT.glob(pattern))


def test_the_build_is_told(pytestconfig: pytest.Config) -> None:
    assert is_compiled() == pytestconfig.getoption("--compiled")
    assert f"({'compiled' if is_compiled() else 'interpreted'}) on Python 3." in described()


@pytest.mark.parametrize("path", MODULES)
def test_all_listed_modules_are_compiled_or_none(path: str, pytestconfig: pytest.Config) -> None:
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES)) == pytestconfig.getoption("--compiled")


def test_a_process_of_its_own_runs_the_same_build() -> None:
    # as the supervisor starts its children
    command = [sys.executable, "-P", "-m", "sidecar.cli.main", "version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == described() + "\n"
