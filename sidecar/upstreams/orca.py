"""ORCA load reports: what a worker says of its own load, with its answers or beside them. Pure.

Three forms of fields are in use: ``endpoint-load-metrics: TEXT k=v,...``, the same with ``JSON {...}``, and a binary
protobuf in base64, as ``endpoint-load-metrics: BIN ...`` or in ``endpoint-load-metrics-bin`` (``OrcaLoadReport`` of
cncf/xds, ``orca_load_report.proto``). Servers spell them freely, so they are read leniently: the form's name may be
missing, ``k:v`` is taken for ``k=v``, what has no meaning here is passed over. But a report of which one value is
NaN, infinite, negative or no number, which names anything twice, or is larger than it may be, is refused as a whole.
Protobuf alone says what a field or a key given twice means, the last one, and that is what a binary report means then.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any, Final

from router.model import LoadReport
from sidecar.upstreams.metrics_page import INFINITE, NAN, NEGATIVE, NOT_A_NUMBER, number

REPORT_FIELD: Final = b"endpoint-load-metrics"
BINARY_FIELD: Final = b"endpoint-load-metrics-bin"
ASK_FIELD: Final = b"endpoint-load-metrics-format"
"""What a request carries to servers that report only when asked (vLLM, Triton), in lower case."""

DUPLICATE: Final = "duplicate"
MALFORMED: Final = "malformed"
OVER_LIMIT: Final = "over_limit"
REASONS: Final = (NAN, INFINITE, NEGATIVE, NOT_A_NUMBER, DUPLICATE, MALFORMED, OVER_LIMIT)
"""Why reports are refused, in the order of their counters."""

MAX_BYTES: Final = 4096
"""Longest value of a field that is read."""
MAX_ENTRIES: Final = 64
MAX_KEY: Final = 128

_SCALARS: Final = ("cpu_utilization", "mem_utilization", "application_utilization", "rps_fractional", "eps")
_MAPS: Final = ("named_metrics", "utilization", "request_cost")
_WAITING: Final = ("num_requests_waiting", "num_queue_reqs", "queue_depth")
_CACHE: Final = ("kv_cache_usage_perc", "kv_cache_utilization", "gpu_cache_usage_perc", "token_usage")
_MOST: Final = 1 << 53


class ReportError(ValueError):
    """A report that is refused; ``reason`` is one of REASONS."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(slots=True)
class OrcaReport:
    """A report as it came: every number finite and 0 or more. Utilisations may be over 1."""

    scalars: dict[str, float] = field(default_factory=dict)
    maps: dict[str, dict[str, float]] = field(default_factory=dict)
    _entries: int = 0

    def put(self, name: str, key: str, value: float, *, last: bool = False) -> None:
        """Take one value; ``key`` is that within a map, empty for a scalar. ``last``: it stands over one before it."""
        self._entries += 1
        at = key or name
        if self._entries > MAX_ENTRIES or len(at) > MAX_KEY:
            raise ReportError(OVER_LIMIT, f"more than {MAX_ENTRIES} values, or a name of over {MAX_KEY} characters")
        into = self.maps.setdefault(name, {}) if key else self.scalars
        if at in into and not last:
            raise ReportError(DUPLICATE, at)
        into[at] = value

    def load(self) -> LoadReport:
        """Return what the router goes by: utilisation and ratios clamped to [0, 1], a queue to a whole number."""
        scalars, named = self.scalars, self.maps.get("named_metrics", {})
        utilization = scalars.get("application_utilization") or scalars.get("cpu_utilization")
        waiting = next((named[name] for name in _WAITING if name in named), None)
        used = next((named[name] for name in _CACHE if name in named), scalars.get("mem_utilization"))
        return LoadReport(
            utilization=None if utilization is None else min(1.0, utilization),
            queue_depth=None if waiting is None else int(min(waiting, _MOST)),
            free_memory_ratio=None if used is None else 1.0 - min(1.0, used),
        )


def parse_fields(fields: list[tuple[bytes, bytes]]) -> LoadReport:
    """Return the report in the (name, value) of a head's report fields, names in lower case; there is at least one.

    Raises:
        ReportError: it is refused.
    """
    if len(fields) > 1:
        raise ReportError(DUPLICATE, "more than one report")
    name, value = fields[0]
    return parse(value, binary=name == BINARY_FIELD).load()


def parse(value: bytes, *, binary: bool = False) -> OrcaReport:
    """Return the report in a field's value; ``binary``: it is that of ``endpoint-load-metrics-bin``.

    Raises:
        ReportError: it is refused.
    """
    if len(value) > MAX_BYTES:
        raise ReportError(OVER_LIMIT, f"{len(value)} bytes")
    value = value.strip(b" \t")
    if binary:
        return _binary(value)
    form, _, rest = value.partition(b" ")
    kind = form.upper()
    if kind == b"BIN":
        return _binary(rest.strip(b" \t"))
    if kind == b"JSON":
        return _json(rest)
    if kind == b"TEXT":
        return _text(rest)
    return _json(value) if value.startswith(b"{") else _text(value)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ReportError(MALFORMED, "not UTF-8") from None


def _text(raw: bytes) -> OrcaReport:
    report = OrcaReport()
    for part in _decoded(raw).split(","):
        entry = part.strip()
        if not entry:
            continue
        key, separator, text = entry.partition("=")
        if not separator:
            key, separator, text = entry.partition(":")
        key = key.strip()
        if not separator or not key:
            raise ReportError(MALFORMED, entry[:MAX_KEY])
        value, why = number(text.strip())
        if why:
            raise ReportError(why, entry[:MAX_KEY])
        name, dot, within = key.partition(".")
        if dot and name in _MAPS:
            if not within:
                raise ReportError(MALFORMED, entry[:MAX_KEY])
            report.put(name, within, value)
        else:
            report.put(key, "", value)
    return _some(report)


def _json(raw: bytes) -> OrcaReport:
    try:
        said = json.loads(
            _decoded(raw),
            object_pairs_hook=_pairs,
            parse_constant=_constant,
            parse_float=_json_text,
            parse_int=_json_text,
        )
    except ReportError:
        raise
    except (ValueError, RecursionError):
        raise ReportError(MALFORMED, "no JSON") from None
    if not isinstance(said, dict):
        raise ReportError(MALFORMED, "no JSON object")
    report = OrcaReport()
    for given, value in said.items():
        name = str(_SNAKE.get(given, given))
        if not name:
            raise ReportError(MALFORMED, "an empty name")
        if isinstance(value, dict):
            for key, one in value.items():
                if not key:
                    raise ReportError(MALFORMED, f"an empty name in {name[:MAX_KEY]}")
                if name in _MAPS:
                    report.put(name, key, _json_number(one))
        elif name in _SCALARS or isinstance(value, float | bool):
            report.put(name, "", _json_number(value))
    return _some(report)


_SNAKE: Final = {
    "cpuUtilization": "cpu_utilization",
    "memUtilization": "mem_utilization",
    "applicationUtilization": "application_utilization",
    "rpsFractional": "rps_fractional",
    "namedMetrics": "named_metrics",
    "requestCost": "request_cost",
}


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ReportError(DUPLICATE, "a name twice in JSON")
    return out


def _constant(name: str) -> float:
    raise ReportError(NAN if name == "NaN" else INFINITE, name)


def _json_text(text: str) -> float:
    """Return a number wherever it stands in JSON, under a name that means nothing here, too."""
    return _good(float(text))


def _json_number(value: object) -> float:
    if isinstance(value, str):  # as proto3 has it, numbers may be text
        parsed, why = number(value)
        if why:
            raise ReportError(why, value[:MAX_KEY])
        return parsed
    if not isinstance(value, float):
        raise ReportError(NOT_A_NUMBER, str(value)[:MAX_KEY])
    return value


def _good(value: float) -> float:
    if isnan(value):
        raise ReportError(NAN, "a value")
    if value in (inf, -inf):
        raise ReportError(INFINITE, "a value")
    if value < 0:
        raise ReportError(NEGATIVE, "a value")
    return value + 0.0


# --- protobuf -------------------------------------------------------------------------------------------------------

_DOUBLES: Final = {
    1: "cpu_utilization",
    2: "mem_utilization",
    6: "rps_fractional",
    7: "eps",
    9: "application_utilization",
}
_ENTRIES: Final = {4: "request_cost", 5: "utilization", 8: "named_metrics"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")


def _binary(text: bytes) -> OrcaReport:
    try:
        raw = base64.b64decode(
            text + b"=" * (-len(text) % 4), altchars=b"-_" if b"-" in text or b"_" in text else None, validate=True
        )
    except (binascii.Error, ValueError):
        raise ReportError(MALFORMED, "no base64") from None
    return _some(parse_message(raw))


def parse_message(raw: bytes) -> OrcaReport:
    """Return the report in a binary ``OrcaLoadReport``. What it does not say may be 0, which Protobuf leaves out.

    Raises:
        ReportError: it is refused.
    """
    report = OrcaReport()
    for number_, value in _message(raw):
        if number_ in _DOUBLES and isinstance(value, float):
            report.put(_DOUBLES[number_], "", _good(value), last=True)
        elif number_ in _ENTRIES and isinstance(value, bytes):
            key, one = "", 0.0
            for part, within in _message(value):
                if part == 1 and isinstance(within, bytes):
                    key = _decoded(within)
                elif part == 2 and isinstance(within, float):
                    one = _good(within)
            if not key:
                raise ReportError(MALFORMED, f"an empty name in {_ENTRIES[number_]}")
            report.put(_ENTRIES[number_], key, one, last=True)
    return report


def with_zeros(report: OrcaReport, told: set[str]) -> OrcaReport:
    """Return one of several reports of a worker with the zeros that Protobuf leaves out, as far as they can be known.

    ``told`` are the figures that it has told before, and is brought up to date: what is one of them and missing is 0. A
    report of zeros alone is one of no load.
    """
    if not report.scalars and not report.maps:
        told.add("cpu_utilization")
    told.update(report.scalars)
    for name in told:
        report.scalars.setdefault(name, 0.0)
    return report


def _message(raw: bytes) -> list[tuple[int, float | bytes | int]]:
    """Return the fields of a message: doubles, bytes, and whole numbers for what is neither."""
    out: list[tuple[int, float | bytes | int]] = []
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(raw, at)
            out.append((tag >> 3, value))
            continue
        length, at = _varint(raw, at) if kind == _BYTES else ({_FIXED64: 8, _FIXED32: 4}.get(kind, -1), at)
        if length < 0 or at + length > len(raw) or len(out) > 2 * MAX_ENTRIES:
            raise ReportError(MALFORMED, "no protobuf message")
        piece = raw[at : at + length]
        at += length
        out.append((tag >> 3, _DOUBLE.unpack(piece)[0] if kind == _FIXED64 else piece))
    return out


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ReportError(MALFORMED, "no protobuf message")


def _some(report: OrcaReport) -> OrcaReport:
    if not report.scalars and not report.maps:
        raise ReportError(MALFORMED, "it says nothing")
    return report
