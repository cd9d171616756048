"""The faults of the configuration: each begins once, when the configuration that names it first is in force.

What was begun is remembered with the rest of what outlives the control process, so that neither a new one nor a reload
that leaves a fault as it is begins it anew: a fault ends by itself, and stays ended.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from sidecar.faults.checking import rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.faults.rules import FaultRule
    from sidecar.settings import Fault

Begun = tuple[tuple[str, str], ...]
"""The names of faults of the configuration that were begun, and a digest of each."""


def named(faults: Iterable[Fault]) -> dict[str, Fault]:
    """Return the faults of a configuration by their names; those without are called by their place."""
    return {fault.id or f"config-{index}": fault for index, fault in enumerate(faults)}


def _digest(fault: Fault) -> str:
    return sha256(msgspec.json.encode(fault)).hexdigest()[:16]


def changes(faults: Iterable[Fault], begun: Begun, now: float) -> tuple[list[FaultRule], list[str], Begun]:
    """Return what is to begin, whose end has come because the configuration names it no more, and what has begun."""
    wanted = named(faults)
    digests = {name: _digest(fault) for name, fault in wanted.items()}
    before = dict(begun)
    begin = [rule_of(fault, name, now) for name, fault in wanted.items() if before.get(name) != digests[name]]
    end = [name for name in before if name not in wanted]
    return begin, end, tuple(digests.items())
