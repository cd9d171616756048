"""How a command ends: exit codes, and errors that are one line with a remedy."""

from __future__ import annotations

import sys

EXIT_OK = 0
EXIT_FAILED = 1
"""The command failed, or the sidecar refused it."""
EXIT_REFUSED = 2
"""Wrong usage or configuration: nothing was started."""
EXIT_UNREACHABLE = 3
"""The admin API gave no answer."""
EXIT_INTERRUPTED = 130
"""Ctrl-C ended it before its own end. A command that has none, and runs until it is told to end, ends with 0 then."""


class CliError(Exception):
    """A command cannot do what it was asked; the text is one line with a remedy, ``code`` the exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


def complain(message: str, code: int) -> int:
    """Write ``message`` to standard error and return ``code``."""
    sys.stderr.write(f"warmroute: {message}\n")
    return code
