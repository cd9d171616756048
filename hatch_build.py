"""Build hook of the wheel: with ``WARMROUTE_COMPILE=1`` the hot modules are compiled by mypyc (docs/compiled.md).

Without the variable nothing is compiled and the wheel is for any platform. With it the wheel holds one shared library
and one small extension module per compiled module, each beside its source; Python takes the extension first.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any
from zlib import crc32

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "WARMROUTE_COMPILE"
BUILT = Path("build", "compiled", "mypyc")
"""Where C and objects stay, under the root: the next build compiles only what changed."""

MYPY_OPTIONS = (
    "--config-file=",  # the project's own names packages to check, and third parties that a build need not have
    f"--python-version={sys.version_info.major}.{sys.version_info.minor}",
    "--explicit-package-bases",
    "--namespace-packages",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--strict",
    "--no-warn-unused-ignores",
    "--no-warn-return-any",
)


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the modules that ``modules`` in ``[tool.hatch.build.targets.wheel.hooks.custom]`` matches."""

    def dependencies(self) -> list[str]:
        """Return what a build needs on top of the backend: the compiler, where it is asked for."""
        wanted: list[str] = self.config["requires"]
        return wanted if _asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what came out to the wheel; an editable install stays interpreted.

        Raises:
            SystemExit: the compiler found an error, or the interpreter's headers are missing.
        """
        if not _asked_for() or version == "editable":
            return
        header = Path(sysconfig.get_path("include"), "Python.h")
        if not header.exists():
            raise SystemExit(
                f"{SWITCH}=1 needs the headers of Python, {header} is missing: apt-get install python3-dev"
            )
        os.chdir(self.root)  # mypyc takes the modules' names from their paths
        patterns: list[str] = self.config["modules"]
        modules = [str(path) for pattern in patterns for path in sorted(Path().glob(pattern))]
        # two interpreters of one version may have been built differently
        interpreter = f"{sys.implementation.cache_tag}-{crc32(sys.base_prefix.encode()):08x}"
        built = compile_modules(modules, Path(self.root, BUILT, interpreter))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(inside) for path, inside in built})


def _asked_for() -> bool:
    return os.environ.get(SWITCH, "") not in ("", "0")


def compile_modules(modules: list[str], directory: Path) -> list[tuple[Path, Path]]:
    """Compile ``modules`` (paths under the working directory) into ``directory``.

    Returns what was built: the path of each extension, and its place in the wheel.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    options = [*MYPY_OPTIONS, f"--cache-dir={directory / 'types'}"]
    extensions = mypycify(
        [*options, *modules], opt_level="3", debug_level="0", target_dir=str(directory / "c"), group_name="warmroute"
    )
    command = build_ext(Distribution({"name": "warmroute", "ext_modules": extensions}))
    command.build_lib = str(directory / "lib")
    command.build_temp = str(directory / "objects")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    outputs = [Path(path) for path in command.get_outputs()]
    return [(path.absolute(), path.relative_to(command.build_lib)) for path in outputs]
