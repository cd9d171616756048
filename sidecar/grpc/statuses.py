"""gRPC's status codes: what a worker's says of the worker, and which one tells of an outcome of warmroute's own."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from router.outcomes import OUTCOMES, AttemptResult, Outcome


class Status(IntEnum):
    """Status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_FAILURES: Final = frozenset({Status.UNAVAILABLE, Status.DATA_LOSS})
"""What a worker says of itself: counted against it, as 5xx are."""
_OF_THE_CALL: Final = frozenset({Status.UNKNOWN, Status.INTERNAL})
"""What gRPC servers also say of a call they cannot read: any caller can have it said, so it ejects nobody."""

_OF_HTTP: Final = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    408: Status.DEADLINE_EXCEEDED,
    413: Status.RESOURCE_EXHAUSTED,
    429: Status.UNAVAILABLE,
    500: Status.INTERNAL,
    501: Status.UNIMPLEMENTED,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}

_OF_OUTCOME: Final = {
    Outcome.BAD_REQUEST: Status.INVALID_ARGUMENT,
    Outcome.HEAD_TOO_LARGE: Status.RESOURCE_EXHAUSTED,
    Outcome.BODY_TOO_LARGE: Status.RESOURCE_EXHAUSTED,
    Outcome.UPSTREAM_PROTOCOL: Status.INTERNAL,
    Outcome.UPSTREAM_TIMEOUT: Status.DEADLINE_EXCEEDED,
    Outcome.UPSTREAM_CUT: Status.UNAVAILABLE,
    Outcome.DEADLINE_EXCEEDED: Status.DEADLINE_EXCEEDED,
    Outcome.STREAM_IDLE: Status.DEADLINE_EXCEEDED,
    Outcome.DRAIN_CUT: Status.UNAVAILABLE,
}
"""Where the outcome's HTTP status would say something else, or there is none."""


_SAID: Final = {
    Outcome.BAD_REQUEST: "malformed or ambiguous call",
    Outcome.HEAD_TOO_LARGE: "metadata over the limit",
    Outcome.BODY_TOO_LARGE: "message over the limit",
    Outcome.UPSTREAM_PROTOCOL: "the worker's answer was not valid gRPC",
}
"""Where what callers over HTTP are told is in HTTP's words."""


def message_of(outcome: Outcome) -> str:
    """Return how the ``grpc-message`` of an outcome of warmroute's own begins."""
    return _SAID.get(outcome) or OUTCOMES[outcome].message


def status_of_http(status: int) -> Status:
    """Return the code that stands for an HTTP status (as gRPC's mapping has it for clients)."""
    return _OF_HTTP.get(status, Status.UNKNOWN)


def status_of(outcome: Outcome) -> Status:
    """Return the code with which warmroute tells of an outcome of its own."""
    known = _OF_OUTCOME.get(outcome)
    return status_of_http(OUTCOMES[outcome].status) if known is None else known


def judge(status: int, *, pushed_back: bool) -> tuple[AttemptResult, Outcome]:
    """Return what a worker's status means for the worker, and for the request.

    Back-pressure is RESOURCE_EXHAUSTED, or UNAVAILABLE with ``grpc-retry-pushback-ms``. What the caller did wrong, or
    wanted too soon, never counts against a worker, nor does what a caller can have it say at will.
    """
    if status == Status.OK:
        return AttemptResult.SUCCESS, Outcome.OK
    if status == Status.RESOURCE_EXHAUSTED or (status == Status.UNAVAILABLE and pushed_back):
        return AttemptResult.BUSY, Outcome.UPSTREAM_BUSY
    if status in _OF_THE_CALL or not 0 <= status <= Status.UNAUTHENTICATED:
        return AttemptResult.CALL_FAILED, Outcome.UPSTREAM_5XX
    if status in _FAILURES:
        return AttemptResult.SERVER_ERROR, Outcome.UPSTREAM_5XX
    return AttemptResult.CLIENT_ERROR, Outcome.UPSTREAM_4XX


def judge_http(status: int) -> tuple[AttemptResult, Outcome]:
    """Return the same of an answer that is no gRPC, by its HTTP status."""
    if status == 429:
        return AttemptResult.BUSY, Outcome.UPSTREAM_BUSY
    if 400 <= status < 500:
        return AttemptResult.CLIENT_ERROR, Outcome.UPSTREAM_4XX
    return (AttemptResult.SERVER_ERROR if status >= 500 else AttemptResult.CALL_FAILED), Outcome.UPSTREAM_5XX


_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNSAFE: Final = re.compile(r"[^ -$&-~]")


def parse_timeout(text: bytes) -> float | None:
    """Return the seconds of a ``grpc-timeout``; None where it is none."""
    found = _TIMEOUT.fullmatch(text)
    return None if found is None else int(found[1]) * _UNIT_S[found[2]]


def format_timeout(seconds: float) -> bytes:
    """Return the ``grpc-timeout`` of so many seconds, rounded down to at least one unit."""
    if seconds < 1:
        return b"%du" % max(1, int(seconds * 1e6))
    return b"%dm" % int(seconds * 1e3) if seconds < 99999 else b"%dS" % min(99999999, int(seconds))


def encode_message(text: str) -> bytes:
    """Return a ``grpc-message``: percent-encoded UTF-8."""
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text).encode()
