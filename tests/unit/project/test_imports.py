"""Who may import whom, where .importlinter cannot say it: what a process loads, and who reads the environment."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
IMPURE = {"asyncio", "datetime", "logging", "os", "random", "secrets", "select", "socket", "subprocess", "threading"}
IMPURE |= {"time"}

DATA_PATH_NEVER = {"aiohttp", "cryptography", "cyclopts", "grpc", "opentelemetry", "redis", "rich", "yaml"}
SUPERVISOR_NEVER = DATA_PATH_NEVER | {"asyncio", "uvloop"}

COMPOSITION_ROOTS = (
    "sidecar/__main__.py",
    "sidecar/cli",
    "sidecar/config",
    "sidecar/up",
    "worker/__main__.py",
    "worker/zygote.py",
    "worker/zygote_client.py",
)
"""Where the environment may be read: composition roots, the command line, and the loading of configuration."""


def imported(tree: ast.AST) -> set[str]:
    """Return the top-level names of all modules that ``tree`` imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names.add((node.module or "").partition(".")[0])
    return names


def loaded_by(module: str) -> set[str]:
    """Return the top-level names of what a fresh interpreter has loaded after importing ``module``."""
    code = f"import json, sys; import {module}; print(json.dumps(sorted({{n.partition('.')[0] for n in sys.modules}})))"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("path", sorted((ROOT / "router").rglob("*.py")), ids=lambda path: path.stem)
def test_router_imports_itself_and_the_pure_part_of_the_standard_library(path: Path) -> None:
    names = imported(ast.parse(path.read_text(encoding="utf-8")))
    assert names - {"router"} - (sys.stdlib_module_names - IMPURE) == set()


def test_data_process_loads_no_client_of_anything_but_http() -> None:
    assert loaded_by("sidecar.data") & DATA_PATH_NEVER == set()


@pytest.mark.parametrize("module", ["sidecar.supervisor", "sidecar.control", "sidecar.data", "sidecar.grpc.plane"])
def test_no_process_of_a_sidecar_loads_grpc(module: str) -> None:
    assert "grpc" not in loaded_by(module)


def test_no_process_of_a_sidecar_loads_what_makes_traffic() -> None:
    processes = "import sidecar.start, sidecar.control, sidecar.data, sidecar.grpc.plane"
    never = ("sidecar.traffic", "sidecar.drills")
    code = f"import sys; {processes}; print([n for n in sys.modules if n.startswith({never})])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_carrying_grpc_loads_no_client_of_anything() -> None:
    assert loaded_by("sidecar.grpc.plane") & DATA_PATH_NEVER == set()


def test_supervisor_loads_no_event_loop() -> None:
    assert loaded_by("sidecar.start") & SUPERVISOR_NEVER == set()


def test_the_environment_is_read_at_the_roots_only() -> None:
    readers = set()
    for package in ("router", "sidecar", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}:
                    readers.add(path.relative_to(ROOT).as_posix())
    assert [name for name in sorted(readers) if not name.startswith(COMPOSITION_ROOTS)] == []


def test_a_worker_imports_at_once_only_what_every_start_needs() -> None:
    rest = {
        "redis",
        "yaml",
        "grpc",
        "onnxruntime",
        "torch",
        "google",
        "email.message",
        "importlib.metadata",
        "tritonclient",
    }
    assert loaded_by("worker.__main__") & rest == set()
