"""The entry point: names the commands, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from cyclopts import App, CycloptsError, Group, Parameter

from sidecar.cli.outcome import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, CliError, complain
from sidecar.cli.streams import open_closed
from sidecar.config.problems import SettingsError, nearest

_RUN = Group("Run", sort_key=1)
_SEE = Group("See and steer a running sidecar", sort_key=2)
_CONFIGURE = Group("Configure", sort_key=3)
_MEASURE = Group("Measure", sort_key=4)

_EPILOGUE = """\
Exit codes: 0 done, 1 failed or refused by the sidecar, 2 wrong usage or configuration, 3 no answer from the admin API,
130 interrupted by Ctrl-C (docs/cli.md).
"""

_COMMANDS = (
    ("sidecar", "sidecar.cli.sidecar:sidecar", _RUN, "Run a sidecar from a file, or from --listen and --to alone."),
    ("up", "sidecar.cli.up:up", _RUN, "Run everything on this machine: store, workers and a sidecar."),
    ("worker", "sidecar.cli.worker:app", _RUN, "Run an inference worker."),
    ("routes", "sidecar.cli.routes:app", _SEE, "Show where requests go, with weights and why."),
    ("endpoints", "sidecar.cli.endpoints:app", _SEE, "List, drain and resume endpoints."),
    ("versions", "sidecar.cli.versions:app", _SEE, "Show versions and their shares; promote, roll back, split."),
    ("fault", "sidecar.cli.faults:app", _SEE, "List, add and remove injected faults."),
    ("drill", "sidecar.cli.drill:app", _SEE, "Rehearse outages: inject faults, hold objectives, get a verdict."),
    ("cache", "sidecar.cli.cache:app", _SEE, "Show and clear the answers that are kept for bad times."),
    ("health", "sidecar.cli.health:health", _SEE, "Say whether a sidecar is alive and ready."),
    ("config", "sidecar.cli.config:app", _CONFIGURE, "Check, show and explain configuration."),
    ("version", "sidecar.cli.version:version", _CONFIGURE, "Print the version."),
    ("models", "sidecar.cli.models:app", _CONFIGURE, "Split models over workers; write down what they hash to."),
    ("record", "sidecar.cli.record:record", _MEASURE, "Pass requests through, and write them down for replay."),
    ("replay", "sidecar.cli.replay:replay", _MEASURE, "Send recorded requests again, with their original spacing."),
    ("compare", "sidecar.cli.compare:compare", _MEASURE, "Send one trace to two targets in turn; say what differs."),
    ("attribute", "sidecar.cli.attribute:attribute", _MEASURE, "Join what callers saw with what workers did."),
    ("bench", "sidecar.cli.bench:app", _MEASURE, "Measure how workers start; write synthetic models."),
)


def _version() -> str:
    from sidecar.version import installed_version  # importlib.metadata takes a while

    return installed_version()


def build(command: str = "") -> App:
    """Return the command line; a command's module is imported when the command is used.

    ``command`` is the one that will be used: it says for itself what it does, at length.
    """
    app = App(
        name="warmroute",
        help="Sidecar proxy that sends each inference request to a worker whose copy of the model is provably warm.",
        help_epilogue=_EPILOGUE,
        help_format="markdown"
        if command in {name for name, *_ in _COMMANDS}
        else "plaintext",  # it takes 30 ms to import
        version=_version,
        default_parameter=Parameter(negative=()),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = app["--version"].group = "Options"
    for name, target, group, text in _COMMANDS:
        if name == command:
            app.command(target, name=name, group=group)
        else:
            app.command(target, name=name, group=group, help=text)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (default: those of the process) name; return the exit code."""
    open_closed()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    names = [name for name, *_ in _COMMANDS]
    if tokens and not tokens[0].startswith("-") and tokens[0] not in names:  # before cyclopts imports every command
        meant = nearest(tokens[0], names)
        hint = f'did you mean "{meant}"?' if meant else f"there are: {', '.join(names)}"
        return complain(f'no command "{tokens[0]}"; {hint}', EXIT_REFUSED)
    try:
        code = build(tokens[0] if tokens else "")(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return complain(f"{error} (warmroute --help)", EXIT_REFUSED)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    except CliError as error:
        return complain(str(error), error.code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has seen enough; Python would complain again while it exits
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
