"""The compiled build beside the interpreted one (docs/compiled.md): ``python -m tools.compiled [test [PYTEST ...]]``.

Builds the compiled wheel into build/compiled/ and installs it into .venv-compiled, which shares all other packages with
the environment that runs this and differs in warmroute alone. Both are left as they are while no source changed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_OWN = Path(sys.prefix).name if Path(sys.prefix).parent == ROOT else ".venv"
ENVIRONMENT = ROOT / f"{_OWN}-compiled"
"""Beside the environment that runs this, so that each interpreter has its own."""

WHEELS = ROOT / "build" / "compiled"
STAMP = ENVIRONMENT / "sources.stamp"

TESTS = (
    *("tests/unit/router", "tests/property/test_breaker_machine.py", "tests/property/test_choosing.py"),
    *("tests/property/test_cluster_machine.py", "tests/property/test_data_path_fuzz.py"),
    *("tests/unit/sidecar/test_chunked.py", "tests/unit/sidecar/test_downstream.py", "tests/unit/sidecar/test_head.py"),
    *("tests/unit/sidecar/test_plane.py", "tests/unit/sidecar/test_version.py"),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/integration/test_data_path_*.py"))),
)
"""What is tried on the compiled build too: all that has a compiled module under it, and none that is slow."""

CANNOT = 3
"""Exit status where this machine cannot compile."""


def main(arguments: list[str]) -> int:
    """Make the compiled environment, then run the tests in it where ``arguments`` begin with ``test``."""
    testing = arguments[:1] == ["test"]
    if missing := _missing():
        verdict = "the compiled build is not tested" if testing else "cannot compile"
        print(f"{verdict}: {missing}", file=sys.stderr)
        return 0 if testing else CANNOT
    if status := _make():
        return status
    return _test(arguments[1:]) if testing else 0


def _missing() -> str:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}): apt-get install gcc"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"{header} is missing: apt-get install python3-dev"


def _make() -> int:
    """Build and install where something changed; return the exit status of what failed, or 0."""
    stamp = fingerprint()
    if STAMP.exists() and STAMP.read_text() == stamp:
        print(f"up to date: {ENVIRONMENT.name}")
        return 0
    print("compiling (half a minute where everything is new)", flush=True)
    began = time.monotonic()
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(WHEELS), str(ROOT)],
        env={**os.environ, "WARMROUTE_COMPILE": "1"},
        check=False,
    )
    if built.returncode:
        return built.returncode
    (wheel,) = WHEELS.glob("*.whl")
    compiled_s = time.monotonic() - began
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    venv.create(ENVIRONMENT, symlinks=True)
    into = [*pip, "--python", str(_python()), "install", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    installed = subprocess.run(into, check=False)
    if installed.returncode:
        return installed.returncode
    # a path in a .pth file comes after the packages beside it, and .pth files found through it are not read: so the
    # locked packages are shared, and the editable warmroute is not
    (site_packages() / "locked.pth").write_text(os.path.relpath(sysconfig.get_path("purelib"), site_packages()) + "\n")
    STAMP.write_text(stamp)
    print(f"compiled {wheel.name} in {compiled_s:.0f} s, installed into {ENVIRONMENT.name}")
    return 0


def _python() -> Path:
    return ENVIRONMENT / "bin" / "python"


def site_packages() -> Path:
    """Return where the compiled environment keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(ENVIRONMENT)}))


def fingerprint() -> str:
    """Return a hash over all that goes into the wheel, over the tools that make it and over their place."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    inside = [path for package in wheel["packages"] for path in (ROOT / package).rglob("*") if path.is_file()]
    inside = [path for path in inside if path.suffix not in {".pyc", ".so"}]
    around = [ROOT / name for name in ("hatch_build.py", "pyproject.toml", "README.md", "requirements/dev.lock")]
    digest = hashlib.sha256(f"{ROOT} {sys.prefix} {platform.platform()} {sys.version}".encode())
    for path in sorted((*inside, *around)):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(ROOT)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _test(arguments: list[str]) -> int:
    """Run the tests on what is installed: the compiled packages come before the checkout, which holds the tests."""
    options = ["--compiled", "-m", "not interpreted_only and not serial", "-o", f"pythonpath={site_packages()} ."]
    command = [str(_python()), "-P", "-m", "pytest", *options, *arguments, *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
