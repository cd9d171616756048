"""Runs that a baseline is fitted to: one JSON object a line, kept in a file that every bench appends to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from router.baseline_load import StartFeatures

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_RUNS: Final = 100_000
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0001, le=86_400)]


class RunsError(Exception):
    """The file holds something else; the text names file, line and value."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One start: how it was started, what was known of it before, and how many seconds it took to be warm."""

    row: str
    parameters_billions: _Amount
    saved_percent: _Percent
    free_memory_gb: _Amount
    accelerator: bool
    cached_ratio: _Share
    seconds: _Seconds

    @property
    def features(self) -> StartFeatures:
        """What was known before."""
        return StartFeatures(
            self.parameters_billions, self.saved_percent, self.free_memory_gb, self.accelerator, self.cached_ratio
        )


def append_runs(path: Path, runs: Iterable[Run]) -> None:
    """Add runs to a file, which is made where it is missing."""
    with path.open("ab") as file:
        for run in runs:
            file.write(msgspec.json.encode(run) + b"\n")


def read_runs(path: Path) -> list[Run]:
    """Return the runs that a file holds.

    Raises:
        RunsError: it cannot be read, or holds something else.
    """
    runs = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number > MAX_RUNS:
                    raise RunsError(f"{path}: over {MAX_RUNS} runs; begin another file")
                if not line.strip():
                    continue
                try:
                    runs.append(msgspec.json.decode(line, type=Run))
                except msgspec.DecodeError as error:
                    raise RunsError(f"{path}:{number}: {error}; take that line out") from error
    except OSError as error:
        raise RunsError(f"{path}: {error.strerror}") from error
    return runs
