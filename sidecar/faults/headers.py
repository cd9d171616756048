"""Faults that a request asks for itself, in its fields.

``warmroute-fault: KIND; NAME=VALUE; …`` asks for any; ``x-envoy-fault-*`` for those that Envoy's fault filter knows,
with its names and units. What cannot be understood asks for nothing. Whether the caller may ask is not decided here.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from sidecar.faults.checking import problems, rule_of
from sidecar.faults.kinds import KINDS
from sidecar.settings.faults import PARAMETERS, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.faults.rules import FaultRule

NAME: Final = "header"
"""What stands for the name of a fault that a request asked for."""
MOST: Final = 8
"""Faults of one request at most."""
_ALLOWED: Final = frozenset({"ratio", "direction", *PARAMETERS})
_FIELD: Final = re.compile(
    rb"\r\n(warmroute-fault|x-envoy-fault-[a-z-]{1,32}):[ \t]*([^\r]{1,256}?)[ \t]*(?=\r)", re.IGNORECASE
)
_ENVOY: Final = "x-envoy-fault-"


def asked_for(head: bytes) -> list[FaultRule]:
    """Return the faults that the fields in a request's head ask for, the delay of Envoy's fields before its others."""
    fields = [(name.decode().lower(), value.decode("latin-1")) for name, value in _FIELD.findall(head)]
    if not fields:
        return []
    wanted = [*_in_envoys_words({name.removeprefix(_ENVOY): value for name, value in fields})]
    wanted += [_in_our_words(value) for name, value in fields if name == "warmroute-fault"]
    rules: list[FaultRule] = []
    for one in wanted[:MOST]:
        try:
            fault = msgspec.convert(one, Fault, strict=False)
        except msgspec.ValidationError:
            continue
        if fault.kind in KINDS and not any(problems(fault)):  # endpoints' words are everybody's
            rules.append(rule_of(fault, NAME, inf))
    return rules


def _in_our_words(text: str) -> dict[str, object]:
    kind, *pairs = (part.strip() for part in text.split(";"))
    made: dict[str, object] = {"kind": kind}
    for pair in pairs:
        name, _, value = pair.partition("=")
        made[name.strip() if name.strip() in _ALLOWED else "unknown"] = value.strip()
    return made


def _in_envoys_words(fields: dict[str, str]) -> Iterator[dict[str, object]]:
    def share(name: str) -> float:
        """Return a percentage as a share; what is no number is no share at all."""
        try:
            return float(fields.get(f"{name}-percentage", "100")) / 100
        except ValueError:
            return -1.0

    if "delay-request" in fields:
        yield {"kind": "delay", "delay_ms": fields["delay-request"], "ratio": share("delay-request")}
    if "throughput-response" in fields:
        try:
            rate = float(fields["throughput-response"]) * 1024  # KiB/s
        except ValueError:
            rate = 0.0
        yield {"kind": "bandwidth", "bytes_per_s": rate, "ratio": share("throughput-response")}
    abort: dict[str, object] = {"kind": "abort", "ratio": share("abort-request")}
    if "abort-request" in fields:
        abort["status"] = fields["abort-request"]
    if "abort-grpc-request" in fields:
        abort["grpc_status"] = fields["abort-grpc-request"]
    if "status" in abort or "grpc_status" in abort:
        yield abort
