"""Load reports that come with answers (ORCA), for the models that ask for them.

A report goes to the cluster as an observation of the endpoint that sent it, and no further: callers do not get it,
unless they asked for one themselves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sidecar.http1.parsing import without_fields
from sidecar.telemetry.page import Scalar
from sidecar.upstreams.orca import ASK_FIELD, BINARY_FIELD, REASONS, REPORT_FIELD, ReportError, parse_fields

if TYPE_CHECKING:
    from router.endpoint import Endpoint
    from sidecar.http1.plane import Plane
    from sidecar.http2.hpack import Field

_FIELDS: Final = re.compile(rb"\r\n(" + REPORT_FIELD + rb"(?:-bin)?):[ \t]*([^\r]*)", re.IGNORECASE)
_NAMES: Final = (REPORT_FIELD, BINARY_FIELD)
_ASK_LINE: Final = ASK_FIELD + b": text\r\n\r\n"
_ASKED: Final = b"\r\n" + ASK_FIELD + b":"
REFUSED: Final = (
    Scalar.LOAD_REPORTS_NAN_TOTAL,
    Scalar.LOAD_REPORTS_INFINITE_TOTAL,
    Scalar.LOAD_REPORTS_NEGATIVE_TOTAL,
    Scalar.LOAD_REPORTS_NOT_A_NUMBER_TOTAL,
    Scalar.LOAD_REPORTS_DUPLICATE_TOTAL,
    Scalar.LOAD_REPORTS_MALFORMED_TOTAL,
    Scalar.LOAD_REPORTS_OVER_LIMIT_TOTAL,
)
"""The counters of ``orca.REASONS``, in the same order."""


def asks(head: bytes) -> bool:
    """Return whether a request's head asks for a report."""
    return _ASKED in head.lower()


def asking(head: bytes) -> bytes:
    """Return a head to send, which ends with its empty line, that asks for a report; as it is where it does already."""
    return head if asks(head) else head[:-2] + _ASK_LINE


def take_report(plane: Plane, endpoint: Endpoint, forward: bytes) -> bytes:
    """Learn from the report in an answer's head, if there is one; return the head (no final empty line) without it.

    The same with the lines of a trailer section, each behind a CRLF.
    """
    found = _FIELDS.findall(forward)
    if not found:
        return forward
    learn_report(plane, endpoint, [(name.lower(), value) for name, value in found])
    return without_fields(forward, _NAMES)


def learn_report(plane: Plane, endpoint: Endpoint, fields: list[tuple[bytes, bytes]]) -> None:
    """Learn from an answer's report fields, of which there is at least one, names in lower case; or count why not."""
    try:
        report = parse_fields(fields)
    except ReportError as error:
        plane.count(REFUSED[REASONS.index(error.reason)])
    else:
        plane.count(Scalar.LOAD_REPORTS_TOTAL)
        plane.cluster.reported(endpoint, report, plane.clock())


def take_metadata(plane: Plane, endpoint: Endpoint, fields: list[Field]) -> list[Field]:
    """Learn from the report in the trailers of a gRPC call, if there is one; return the trailers without it."""
    found = [(field[0], field[1]) for field in fields if field[0] in _NAMES]
    if not found:
        return fields
    learn_report(plane, endpoint, found)
    return [field for field in fields if field[0] not in _NAMES]
