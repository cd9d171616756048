"""``warmroute models``: hands over to the worker's tool for models, a program of its own."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from sidecar.cli.worker import hand_over

app = App(
    name="models",
    help="Split models over workers, read them ahead, write down what they hash to. All arguments go to it: "
    "`warmroute models --help` is its own help.",
    help_flags=(),
    version_flags=(),
    end_of_options_delimiter="",
)


@app.default
def models(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Replace this process by ``python -P -m worker.sharding`` with the same arguments."""
    hand_over("worker.sharding", arguments)
