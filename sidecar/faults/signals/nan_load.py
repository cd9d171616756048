"""NaN load reports: what an endpoint says of its load is no number, and is read as such a word is read."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING

from router.wire import SCHEMA_VERSION, WireError, decode_fields, encode_fields
from sidecar.faults.signals.kind import SignalKind
from sidecar.upstreams.orca import ReportError, parse

if TYPE_CHECKING:
    from router.model import EndpointRecord, LoadReport
    from sidecar.faults.rules import FaultRule


class NanLoadFault(SignalKind):
    """Puts NaN in place of loads, before they are read: records and reports are refused, pages lack the value."""

    def record(self, record: EndpointRecord, rule: FaultRule) -> EndpointRecord | None:
        """Return what the reader of the shared state makes of the record, None where it refuses it."""
        if record.static:  # probed: of a metrics page only the value is passed over
            return replace(record, cpu_load=None, queue_depth=None, queue_time_ms=None, free_memory_ratio=None)
        fields = encode_fields(replace(record, cpu_load=nan))
        fields |= {"v": str(SCHEMA_VERSION), "epoch": record.epoch, "rev": str(record.revision)}
        try:
            return decode_fields(record.id, fields)
        except WireError:
            return None

    def report(self, report: LoadReport, rule: FaultRule) -> LoadReport | None:
        """Return what the reader of load reports makes of it, None where it refuses it."""
        try:
            return parse(b"TEXT application_utilization=nan").load()
        except ReportError:
            return None
