"""How requests and attempts end: the closed enums, and the one table that says what each outcome means.

A *request* is what the caller asked and ends in exactly one :class:`Outcome`. An *attempt* is one try upstream and ends
in exactly one :class:`AttemptResult`. Both are label values of metrics, so both are closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The single value that a request ends in. New members go at the end: their order is the metrics layout."""

    OK = "ok"
    UPSTREAM_4XX = "upstream_4xx"
    UPSTREAM_5XX = "upstream_5xx"
    UPSTREAM_BUSY = "upstream_busy"
    BAD_REQUEST = "bad_request"
    TARGET_TOO_LONG = "target_too_long"
    HEAD_TOO_LARGE = "head_too_large"
    BODY_TOO_LARGE = "body_too_large"
    EXPECTATION_FAILED = "expectation_failed"
    NOT_IMPLEMENTED = "not_implemented"
    HTTP_VERSION = "http_version"
    CLIENT_TIMEOUT = "client_timeout"
    NO_ROUTE = "no_route"
    NO_CANDIDATE = "no_candidate"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_PROTOCOL = "upstream_protocol"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_CUT = "upstream_cut"
    STREAM_IDLE = "stream_idle"
    CLIENT_ABORT = "client_abort"
    DRAIN_CUT = "drain_cut"
    FAULT = "fault"
    INTERNAL = "internal"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    TUNNEL_IDLE = "tunnel_idle"
    DEGRADED_CACHE = "degraded_cache"
    DEGRADED_STATIC = "degraded_static"
    OVER_SHARE = "over_share"


OUTCOME_INDEX: dict[Outcome, int] = {outcome: index for index, outcome in enumerate(Outcome)}


class AttemptResult(StrEnum):
    """How one try upstream ended, as the router needs to know it."""

    SUCCESS = "success"  # a whole answer below 400
    CLIENT_ERROR = "client_error"  # a whole 4xx other than 429: the caller's fault, never the endpoint's
    BUSY = "busy"  # 429, or 503 with Retry-After: back-pressure, neutral
    SERVER_ERROR = "server_error"  # a whole 5xx
    CONNECT_REFUSED = "connect_refused"  # refused, unreachable or reset before the connection stood
    CONNECT_TIMEOUT = "connect_timeout"
    RESET = "reset"  # closed or reset after the request was (partly) written, before a head came back
    PROTOCOL = "protocol"  # the answer had more than one reading, or none
    HEAD_TIMEOUT = "head_timeout"  # no response head in time
    CUT = "cut"  # the answer had begun and did not end as its framing promised
    STREAM_IDLE = "stream_idle"  # the answer had begun and stood still for too long
    CANCELLED = "cancelled"  # the caller went away, or warmroute itself gave up: says nothing of the endpoint
    TRY_TIMEOUT = "try_timeout"  # no whole answer in the time for one try
    OUTRUN = "outrun"  # dropped while it was waited for: the request's time was over, or another try answered first
    REFUSED = "refused"  # HTTP/2: the endpoint says that it did not begin (REFUSED_STREAM, or left out by its GOAWAY)
    CALL_FAILED = (
        "call_failed"  # gRPC: it ended this one call (INTERNAL, UNKNOWN, a reset): callers can bring that about
    )
    TURNED_AWAY = "turned_away"  # HTTP/2: ended with ENHANCE_YOUR_CALM: asked too much; back-pressure, as BUSY
    NOT_READY = "not_ready"  # it says in its answer that the model is not ready there: neutral, others are picked
    OVERDUE = (
        "overdue"  # it had the whole request, and no answer before its time was over, or said so: slow, or neutral
    )


class Blame(StrEnum):
    """What an attempt's result says of its endpoint (breaker and quarantine read this)."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


ATTEMPT_BLAME: dict[AttemptResult, Blame] = {
    AttemptResult.SUCCESS: Blame.SUCCESS,
    AttemptResult.CLIENT_ERROR: Blame.NEUTRAL,  # the caller's fault: it neither breaks nor mends anything
    AttemptResult.BUSY: Blame.NEUTRAL,
    AttemptResult.SERVER_ERROR: Blame.FAILURE,
    AttemptResult.CONNECT_REFUSED: Blame.FAILURE,
    AttemptResult.CONNECT_TIMEOUT: Blame.FAILURE,
    AttemptResult.RESET: Blame.FAILURE,
    AttemptResult.PROTOCOL: Blame.FAILURE,
    AttemptResult.HEAD_TIMEOUT: Blame.FAILURE,
    AttemptResult.CUT: Blame.FAILURE,
    AttemptResult.STREAM_IDLE: Blame.FAILURE,
    AttemptResult.CANCELLED: Blame.NEUTRAL,
    AttemptResult.TRY_TIMEOUT: Blame.FAILURE,
    AttemptResult.OUTRUN: Blame.NEUTRAL,
    AttemptResult.REFUSED: Blame.NEUTRAL,
    AttemptResult.CALL_FAILED: Blame.NEUTRAL,
    AttemptResult.TURNED_AWAY: Blame.NEUTRAL,
    AttemptResult.NOT_READY: Blame.NEUTRAL,
    AttemptResult.OVERDUE: Blame.NEUTRAL,  # a slow call where it was waited for longer than is slow there (Learning)
}

NOT_STARTED: frozenset[AttemptResult] = frozenset(
    {AttemptResult.CONNECT_REFUSED, AttemptResult.CONNECT_TIMEOUT, AttemptResult.REFUSED}
)
"""Results after which the upstream surely did not start the request: always safe to retry."""

MAYBE_STARTED: frozenset[AttemptResult] = frozenset(
    {
        AttemptResult.RESET,
        AttemptResult.PROTOCOL,
        AttemptResult.TRY_TIMEOUT,
        AttemptResult.CALL_FAILED,
        AttemptResult.TURNED_AWAY,
        AttemptResult.NOT_READY,
    }
)
"""Results after which the upstream may have executed the request: retried only where declared idempotent."""

QUARANTINES: frozenset[AttemptResult] = frozenset(
    {AttemptResult.CONNECT_REFUSED, AttemptResult.CONNECT_TIMEOUT, AttemptResult.RESET, AttemptResult.CUT}
)
"""Results that put the endpoint in quarantine at once."""

UNANSWERED: frozenset[AttemptResult] = frozenset(
    {AttemptResult.CONNECT_REFUSED, AttemptResult.CONNECT_TIMEOUT, AttemptResult.RESET}
)
"""Results that say that nobody is there: no connection, or one that broke before a byte of an answer."""

BACK_PRESSURE: frozenset[AttemptResult] = frozenset({AttemptResult.BUSY, AttemptResult.TURNED_AWAY})
"""Results after which others are picked for a while."""

TOO_MUCH: frozenset[AttemptResult] = BACK_PRESSURE | {
    AttemptResult.CONNECT_TIMEOUT,
    AttemptResult.HEAD_TIMEOUT,
    AttemptResult.TRY_TIMEOUT,
}
"""Results that say that less should be in flight there."""

BROKEN_OFF: frozenset[AttemptResult] = frozenset({AttemptResult.RESET, AttemptResult.CUT})
"""Those of them after which it may well accept the next connection: no reason to turn away the last that is left."""


NO_WINNER: frozenset[AttemptResult] = frozenset(
    {AttemptResult.BUSY, AttemptResult.SERVER_ERROR, AttemptResult.NOT_READY, AttemptResult.OVERDUE}
)
"""Whole answers that are passed on only where no other try of the request is under way."""


OUTCOME_OF: dict[AttemptResult, Outcome] = {
    AttemptResult.SUCCESS: Outcome.OK,
    AttemptResult.CLIENT_ERROR: Outcome.UPSTREAM_4XX,
    AttemptResult.BUSY: Outcome.UPSTREAM_BUSY,
    AttemptResult.SERVER_ERROR: Outcome.UPSTREAM_5XX,
    AttemptResult.CONNECT_REFUSED: Outcome.CONNECT_FAILED,
    AttemptResult.CONNECT_TIMEOUT: Outcome.CONNECT_TIMEOUT,
    AttemptResult.REFUSED: Outcome.UPSTREAM_RESET,
    AttemptResult.RESET: Outcome.UPSTREAM_RESET,
    AttemptResult.PROTOCOL: Outcome.UPSTREAM_PROTOCOL,
    AttemptResult.CALL_FAILED: Outcome.UPSTREAM_PROTOCOL,
    AttemptResult.TURNED_AWAY: Outcome.UPSTREAM_RESET,
    AttemptResult.HEAD_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    AttemptResult.CUT: Outcome.UPSTREAM_CUT,
    AttemptResult.STREAM_IDLE: Outcome.STREAM_IDLE,
    AttemptResult.TRY_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    AttemptResult.CANCELLED: Outcome.OVERLOADED,
    AttemptResult.NOT_READY: Outcome.UPSTREAM_BUSY,
    AttemptResult.OVERDUE: Outcome.DEADLINE_EXCEEDED,
}
"""What a request ends in whose last attempt ended so."""


class Reason(StrEnum):
    """Why a replica may not be picked, and why a request found no candidate."""

    UNKNOWN_MODEL = "unknown_model"
    WRONG_VERSION = "wrong_version"
    NO_ENDPOINTS = "no_endpoints"
    NOT_WARM = "not_warm"
    DRAINING = "draining"
    HELD = "held"  # an operator drained it by hand
    STALE = "stale"
    QUARANTINED = "quarantined"
    BREAKER_OPEN = "breaker_open"
    GROUP_INCOMPLETE = "group_incomplete"
    NOT_ENTRY = "not_entry"  # it answers through another endpoint of its group, and is picked with that one
    OUTLIER = "outlier"  # it failed much more than the others of its version
    INCONSISTENT = "inconsistent"  # it loaded something else than most replicas of its version
    ALREADY_TRIED = "already_tried"
    AT_LIMIT = "at_limit"  # as much is in flight there as may be; passed over by each choice that finds it so
    OTHER_VERSION = "other_version"  # requests that name no version go to others of the model
    BUSY = "busy"  # it pushed back, or said that the model is not ready; picked all the same where nobody else is left
    UNPROVEN = "unproven"  # its connections broke since the warm-up requests that proved it


@dataclass(frozen=True, slots=True)
class OutcomeSpec:
    """What a caller is told when a request ends in an outcome that warmroute answers itself.

    ``status`` 0: nothing can be answered (the connection is cut, or the upstream's own answer went through).
    ``code`` is the OpenAI error's ``code``; ``kind`` its ``type``. ``close``: the connection is closed after it.
    """

    status: int
    phrase: str
    message: str
    kind: str = "server_error"
    close: bool = False
    retry_after: bool = False

    @property
    def answered_here(self) -> bool:
        """True where warmroute writes the answer itself."""
        return self.status != 0


_BAD = "invalid_request_error"

OUTCOMES: dict[Outcome, OutcomeSpec] = {
    Outcome.OK: OutcomeSpec(0, "", "the upstream answered"),
    Outcome.UPSTREAM_4XX: OutcomeSpec(0, "", "the upstream refused the request"),
    Outcome.UPSTREAM_5XX: OutcomeSpec(0, "", "the upstream failed"),
    Outcome.UPSTREAM_BUSY: OutcomeSpec(0, "", "the upstream pushed back"),
    Outcome.BAD_REQUEST: OutcomeSpec(400, "Bad Request", "malformed or ambiguous HTTP message", _BAD, close=True),
    Outcome.TARGET_TOO_LONG: OutcomeSpec(414, "URI Too Long", "request target over the limit", _BAD, close=True),
    Outcome.HEAD_TOO_LARGE: OutcomeSpec(
        431, "Request Header Fields Too Large", "header section over the limit", _BAD, close=True
    ),
    Outcome.BODY_TOO_LARGE: OutcomeSpec(413, "Content Too Large", "request body over the limit", _BAD, close=True),
    Outcome.EXPECTATION_FAILED: OutcomeSpec(417, "Expectation Failed", "unknown expectation", _BAD, close=True),
    Outcome.NOT_IMPLEMENTED: OutcomeSpec(
        501, "Not Implemented", "method or transfer coding not supported", _BAD, close=True
    ),
    Outcome.HTTP_VERSION: OutcomeSpec(505, "HTTP Version Not Supported", "only HTTP/1.x here", _BAD, close=True),
    Outcome.CLIENT_TIMEOUT: OutcomeSpec(408, "Request Timeout", "the request did not arrive in time", _BAD, close=True),
    Outcome.NO_ROUTE: OutcomeSpec(404, "Not Found", "no model matches this request", _BAD),
    Outcome.NO_CANDIDATE: OutcomeSpec(503, "Service Unavailable", "no warm replica can take this", retry_after=True),
    Outcome.OVERLOADED: OutcomeSpec(503, "Service Unavailable", "the proxy is at its limit", retry_after=True),
    Outcome.DRAINING: OutcomeSpec(
        503, "Service Unavailable", "the proxy is shutting down", close=True, retry_after=True
    ),
    Outcome.CONNECT_FAILED: OutcomeSpec(502, "Bad Gateway", "the worker refused the connection"),
    Outcome.CONNECT_TIMEOUT: OutcomeSpec(504, "Gateway Timeout", "the worker did not accept the connection in time"),
    Outcome.UPSTREAM_RESET: OutcomeSpec(502, "Bad Gateway", "the worker closed the connection before answering"),
    Outcome.UPSTREAM_PROTOCOL: OutcomeSpec(502, "Bad Gateway", "the worker's answer was not valid HTTP"),
    Outcome.UPSTREAM_TIMEOUT: OutcomeSpec(504, "Gateway Timeout", "the worker did not answer in time"),
    Outcome.UPSTREAM_CUT: OutcomeSpec(0, "", "the worker's answer was cut short"),
    Outcome.STREAM_IDLE: OutcomeSpec(0, "", "the worker's answer stood still for too long"),
    Outcome.CLIENT_ABORT: OutcomeSpec(0, "", "the caller went away"),
    Outcome.DRAIN_CUT: OutcomeSpec(0, "", "the grace period ended first"),
    Outcome.TUNNEL_IDLE: OutcomeSpec(0, "", "nothing passed through the tunnel for too long"),
    Outcome.DEGRADED_CACHE: OutcomeSpec(0, "", "nobody could answer, and an answer from better times was told again"),
    Outcome.DEGRADED_STATIC: OutcomeSpec(0, "", "nobody could answer, and the declared answer was told"),
    Outcome.FAULT: OutcomeSpec(0, "", "an injected fault struck the last attempt, which failed"),
    Outcome.INTERNAL: OutcomeSpec(500, "Internal Server Error", "an error inside the proxy", close=True),
    Outcome.OVER_SHARE: OutcomeSpec(
        429, "Too Many Requests", "this tenant has more waiting than its share", "rate_limit_error", retry_after=True
    ),
    Outcome.DEADLINE_EXCEEDED: OutcomeSpec(504, "Gateway Timeout", "the request's time is over"),
}
