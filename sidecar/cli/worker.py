"""``warmroute worker``: hands over to the worker, which is a program of its own; nothing of it is imported here."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

from cyclopts import App, Parameter

from sidecar.cli.outcome import EXIT_REFUSED, CliError

app = App(
    name="worker",
    help="Run an inference worker. All arguments go to it: `warmroute worker --help` is its own help.",
    help_flags=(),
    version_flags=(),
    end_of_options_delimiter="",
)


@app.default
def worker(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Replace this process by ``python -P -m worker`` with the same arguments, or by what has a zygote fork it."""
    forked = any(argument.partition("=")[0] == "--zygote" for argument in arguments)
    hand_over("worker.zygote_client" if forked else "worker", arguments)


def hand_over(program: str, arguments: tuple[str, ...]) -> None:
    """Replace this process by ``program``, the worker or one of its tools; does not return."""
    if find_spec("numpy") is None:
        raise CliError(
            'the worker is not installed: pip install "warmroute[cpu]", or "warmroute[gpu]" with an NVIDIA GPU',
            EXIT_REFUSED,
        )
    sys.stdout.flush()
    os.execv(sys.executable, worker_command(arguments, program))  # noqa: S606 (no shell is the point)


def worker_command(arguments: tuple[str, ...], program: str = "worker") -> list[str]:
    """Return the command line of a worker; -P keeps the current directory out of the import path."""
    return [sys.executable, "-P", "-m", program, *arguments]
