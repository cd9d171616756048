"""Whether a fault that somebody asks for makes sense, and the rule that it becomes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from sidecar.faults.kinds import KINDS
from sidecar.faults.rules import FaultRule
from sidecar.faults.signals.terms import REQUESTS_ONLY, TERMS
from sidecar.settings.faults import PARAMETERS, Fault, fields_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?::[ \t]*[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
"""A field's name (RFC 9110 5.6.2), or with a colon and a value (5.5)."""


def problems(fault: Fault) -> Iterator[tuple[str, str]]:
    """Yield what makes no sense about a fault: the field, and what to do about it."""
    if fault.kind in TERMS:
        yield from _problems_of_signal(fault)
        return
    kind = KINDS.get(fault.kind)
    if kind is None:
        yield "kind", f"no fault of kind {fault.kind!r}: must be one of {', '.join(sorted([*KINDS, *TERMS]))}"
        return
    if fault.direction is not None and fault.direction not in kind.directions:
        allowed = " or ".join(kind.directions)
        yield "direction", f"must be {allowed} for {fault.kind}, or be left out"
    given = parameters_of(fault)
    for name in given:
        if name not in kind.takes:
            yield name, _not_by(fault.kind, name)
    for name in kind.needs:
        if name not in given:
            yield name, f"must be given: {fault.kind} needs it"
    if "distribution" in given and "jitter_ms" not in given:
        yield "jitter_ms", "must be given with distribution: it says how far delays are from delay_ms"
    if fault.header and not _HEADER.fullmatch(fault.header):
        yield "header", "must be the name of a field, or NAME: VALUE"


def _problems_of_signal(fault: Fault) -> Iterator[tuple[str, str]]:
    """Yield what makes no sense about a fault of signals: it is of what endpoints say, and not of attempts."""
    if fault.direction is not None:
        yield "direction", f"must be left out: {fault.kind} is of what endpoints say, not of attempts"
    if fault.ratio != 1:
        yield "ratio", f"must be left out: {fault.kind} is of all that its endpoints say"
    for name in REQUESTS_ONLY:
        if getattr(fault, name):
            yield name, f"must be left out: {fault.kind} is of what endpoints say, not of requests"
    for name in parameters_of(fault):
        if name not in TERMS[fault.kind]:
            yield name, _not_by(fault.kind, name)


def _not_by(kind: str, name: str) -> str:
    takers = [one for one, other in KINDS.items() if name in other.takes]
    takers += [one for one, parameters in TERMS.items() if name in parameters]
    return f"must be left out: {kind} does not go by it, {', '.join(sorted(takers))} would"


def rule_of(fault: Fault, id: str, now: float) -> FaultRule:  # noqa: A002
    """Return the rule that a fault without problems becomes at ``now``, the moment on the processes' common clock."""
    fields = fields_of(fault)
    fields["direction"] = fault.direction.value if fault.direction is not None else ""
    fields["distribution"] = None if fault.distribution is None else fault.distribution.value
    return FaultRule(id=id, until=now + fault.for_s, **fields)  # type: ignore[arg-type]


def document_of(rule: FaultRule, now: float) -> dict[str, object]:
    """Return a rule as people and programs are shown it: how long it has left, and no parameter that it has not."""
    document: dict[str, object] = msgspec.to_builtins(rule)
    del document["until"]  # on this host's clock; of no use to a reader
    kind = KINDS.get(rule.kind)
    if kind is not None:
        document["direction"] = kind.direction_of(rule).value
    for name in PARAMETERS:
        if document[name] is None:
            del document[name]
    document["left_s"] = round(max(0.0, rule.until - now), 3)
    return document
