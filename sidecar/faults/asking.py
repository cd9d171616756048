"""A fault as somebody asks for it by hand or by program: what is wrong with it is told field by field."""

from __future__ import annotations

from typing import NamedTuple

from sidecar.config.document import node_of
from sidecar.config.problems import Where, shown
from sidecar.config.structure import conform
from sidecar.faults.checking import problems
from sidecar.settings.faults import Fault

_EMPTY = "a fault is an object with its kind"


class Wrong(NamedTuple):
    """One thing to correct; ``value`` is fit to be shown."""

    field: str
    value: str
    remedy: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


def asked(content: object) -> tuple[Fault | None, list[Wrong]]:
    """Return the fault that ``content`` (as of JSON) describes, or all that is wrong with it."""
    fault, found = conform(node_of(content, Where("")), Fault, _EMPTY)
    if fault is None:
        return None, [Wrong(one.path, one.value, one.remedy) for one in found]
    given = content if isinstance(content, dict) else {}
    wrong = [
        Wrong(field, shown(given[field]) if field in given else "missing", remedy) for field, remedy in problems(fault)
    ]
    return (None, wrong) if wrong else (fault, [])
