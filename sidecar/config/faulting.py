"""Whether the faults of a configuration make sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.faults.checking import problems
from sidecar.faults.configured import named
from sidecar.settings import HeaderTrust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.config.problems import Path
    from sidecar.settings import Settings


def faulting(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with ``faults``, and where."""
    faults = settings.faults
    path: Path = ("faults", "rules")
    if len(faults.rules) > faults.most:
        yield path, f"must be at most faults.most ({faults.most}) faults"
    if not faults.most and faults.headers is not HeaderTrust.NOBODY:
        yield ("faults", "headers"), "must be nobody where faults.most is 0: no fault may be in force"
    for index, fault in enumerate(faults.rules):
        for field, remedy in problems(fault):
            yield (*path, index, field), remedy
    if len(named(faults.rules)) < len(faults.rules):
        yield path, "must have different ids"
