"""Resolve the lock files under requirements/ again, with uv in an environment that is thrown away.

The locks name releases and hashes and no registry, so that they hold wherever pip is configured to look. Standard
library only: it runs before there is an environment. Pins that still satisfy pyproject.toml stay, unless ``--upgrade``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
DEMO_MODEL = "magika==1.0.*"
COMPARED = ("vllm-router", "sglang-router", "py-spy")  # for the benchmark alone, in an environment of their own
CLIENTS = ("tritonclient[http,grpc]>=2.60,<3", "kserve>=0.17,<1")  # tests drive a worker with them, apart from us
OLDEST_PYTHON = "3.11"


def main() -> int:
    """Write the lock files; return the exit status."""
    parser = argparse.ArgumentParser(description="Resolve the lock files again.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases that pyproject.toml allows")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory(prefix="warmroute-lock-") as directory:
        venv.create(directory, with_pip=True)
        python = Path(directory) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "--quiet", "install", "uv"], check=True)

        def compile_lock(name: str, arguments: list[str], requirements: str = "") -> None:
            print(f"requirements/{name}")
            subprocess.run(
                [
                    *(python, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"),
                    *("--no-header", "--no-annotate", "--python-version", OLDEST_PYTHON),
                    *(*upgrade, *arguments, "--output-file", str(LOCKS / name)),
                ],
                input=requirements,
                text=True,
                check=True,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
            )

        compile_lock("run.lock", ["--extra", "cpu", "pyproject.toml"])
        compile_lock("dev.lock", ["--extra", "cpu", "--extra", "dev", "pyproject.toml"])
        compile_lock("build.lock", ["-"], "\n".join(build))
        compile_lock("demo-model.lock", ["--no-deps", "-"], DEMO_MODEL)
        compile_lock("bench.lock", ["-"], "\n".join(COMPARED))
        compile_lock("clients.lock", ["-"], "\n".join(CLIENTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
