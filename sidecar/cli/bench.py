"""``warmroute bench``: hands over to the worker's bench, which is a program of its own."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from sidecar.cli.worker import hand_over

app = App(
    name="bench",
    help="Measure how workers start. All arguments go to it: `warmroute bench --help` is its own help.",
    help_flags=(),
    version_flags=(),
    end_of_options_delimiter="",
)


@app.default
def bench(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Replace this process by ``python -P -m worker.bench`` with the same arguments."""
    hand_over("worker.bench", arguments)
