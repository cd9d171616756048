"""Whether the rules by which answers are recognised make sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.config.problems import Path, nearest
from sidecar.settings import GRPC_STATUSES
from sidecar.settings.recognise import MAX_RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.settings import Settings


def recognising(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with ``recognise``, and where."""
    rules = settings.recognise.rules
    if len(rules) > MAX_RULES:
        yield ("recognise", "rules"), f"must be at most {MAX_RULES} rules"
    for index, rule in enumerate(rules):
        path: Path = ("recognise", "rules", index)
        if rule.status is None and rule.grpc_status is None:
            yield path, "needs a status or a grpc_status: name one"
        if rule.grpc_status is not None and rule.grpc_status not in GRPC_STATUSES:
            near = nearest(rule.grpc_status, GRPC_STATUSES)
            hint = f"; did you mean {near}?" if near else ""
            yield (*path, "grpc_status"), f"must be one of {', '.join(GRPC_STATUSES)}{hint}"
