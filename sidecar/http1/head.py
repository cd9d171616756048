"""Heads of HTTP/1.1 messages: one strict reading, and what is passed on of them.

llhttp (through httptools) decides whether a head is well formed; what it leaves open and what a proxy must decide
(framing, hop-by-hop fields, the one reading that both sides share) is decided here. The original bytes are passed on,
and only the few lines that must change are cut out or put in: field order, case and non-ASCII values survive.

Sources: RFC 9112 (2.2, 3, 5, 6), RFC 9110 (5.5, 7.6). Every function is pure.
"""

from __future__ import annotations

import re

import httptools

from router.outcomes import Outcome

CHUNKED = -1
"""Value of ``length`` for a chunked body."""
UNTIL_CLOSE = -2
"""Value of ``length`` for a response body that ends with its connection."""

MAX_LENGTH_DIGITS = 18

# Fields that decide something here. Matched against the lower-cased head; each begins a line.
_REQUEST_FIELDS = re.compile(
    rb"\r\n(connection|content-length|expect|host|http2-settings|keep-alive|proxy-[a-z-]+|te|traceparent|trailer"
    rb"|transfer-encoding|upgrade|x-request-id):"
)
_RESPONSE_FIELDS = re.compile(
    rb"\r\n(connection|content-length|keep-alive|proxy-[a-z-]+|retry-after|te|trailer|transfer-encoding|upgrade|x-request-id):"
)
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
_NEVER_STRIPPED = frozenset({b"content-length", b"host", b"transfer-encoding"})
"""Naming these in ``Connection`` must not change framing or routing."""

_BARE_LF = re.compile(rb"(?<!\r)\n")
_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_PHRASE = re.compile(rb"(?: [\t -~\x80-\xff]*)?")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_START = re.compile(rb"[A-Za-z]+[A-Za-z-]*( |$)")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.vV]+\])(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_BAD_TARGET = re.compile(rb"[^!-~\x80-\xff]|#")


class HeadError(Exception):
    """A head that has no one good reading. ``outcome`` says how it is answered, ``detail`` what is wrong with it."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class RequestHead:
    """What a proxy needs of a request head.

    ``forward`` is what goes upstream, without the final empty line, so that lines can be added. ``length`` is the
    body's length in bytes, 0 for none, or CHUNKED.
    """

    __slots__ = (
        "expects_continue",
        "forward",
        "has_request_id",
        "has_traceparent",
        "keep_alive",
        "length",
        "method",
        "minor",
        "raw",
        "target",
    )

    raw: bytes
    method: bytes
    target: bytes
    minor: int
    length: int
    keep_alive: bool
    expects_continue: bool
    has_request_id: bool
    has_traceparent: bool
    forward: bytes

    def request_id(self) -> bytes:
        """Return the caller's x-request-id, or nothing."""
        if not self.has_request_id:
            return b""
        lowered = self.raw.lower()
        return _value(self.raw, lowered, lowered.find(b"\r\nx-request-id:"))


class ResponseHead:
    """What a proxy needs of a response head. ``forward`` has no final empty line; ``length`` may be UNTIL_CLOSE."""

    __slots__ = ("forward", "has_request_id", "has_retry_after", "keep_alive", "length", "status")

    status: int
    length: int
    keep_alive: bool
    has_request_id: bool
    has_retry_after: bool
    forward: bytes


class _Ignore:
    """llhttp validates; nobody listens."""


_IGNORE = _Ignore()


def parse_request(raw: bytes, *, max_target_bytes: int = 16384, max_fields: int = 100) -> RequestHead:
    """Read a request head; ``raw`` ends with the empty line.

    Raises:
        HeadError: malformed, ambiguous, over a limit, or something this proxy refuses.
    """
    method_end = raw.find(b" ")
    target_end = raw.find(b" ", method_end + 1)
    line_end = raw.find(b"\r\n")
    if target_end - method_end - 1 > max_target_bytes:
        raise HeadError(Outcome.TARGET_TOO_LONG, f"request target over {max_target_bytes} bytes")
    version = raw[target_end + 1 : line_end]
    if version == b"HTTP/1.1":
        minor = 1
    elif version == b"HTTP/1.0":
        minor = 0
    elif _VERSION.fullmatch(version):
        raise HeadError(Outcome.HTTP_VERSION, f"version {version.decode()}")
    else:
        raise HeadError(Outcome.BAD_REQUEST, "malformed request line")
    try:
        httptools.HttpRequestParser(_IGNORE).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # upgrades are not taken: the fields are stripped and the request goes on as a plain one
    except httptools.HttpParserInvalidMethodError as error:
        if _TOKEN.fullmatch(raw[: max(method_end, 0)]):
            raise HeadError(Outcome.NOT_IMPLEMENTED, "unknown method") from error
        raise HeadError(Outcome.BAD_REQUEST, "the method is not a token") from error
    except httptools.HttpParserError as error:
        raise HeadError(Outcome.BAD_REQUEST, str(error)[:200] or "malformed head") from error
    if len(raw) > max_fields * 4 and raw.count(b"\r\n") - 2 > max_fields:
        raise HeadError(Outcome.HEAD_TOO_LARGE, f"more than {max_fields} header fields")

    head = RequestHead()
    head.raw = raw
    head.method = raw[:method_end]
    head.target = target = raw[method_end + 1 : target_end]
    head.minor = minor
    head.length = 0
    head.keep_alive = minor == 1
    head.expects_continue = head.has_request_id = head.has_traceparent = False
    if head.method == b"CONNECT":
        raise HeadError(Outcome.NOT_IMPLEMENTED, "CONNECT is not served here")

    lowered = raw.lower()
    hosts = 0
    strip = False
    chunked = sized = False
    for name in _REQUEST_FIELDS.findall(lowered):
        if name == b"content-length":
            if sized:
                raise HeadError(Outcome.BAD_REQUEST, "Content-Length more than once")
            sized = True
            value = _value(raw, lowered, lowered.find(b"\r\ncontent-length:"))
            if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
                raise HeadError(Outcome.BAD_REQUEST, f"Content-Length {value[:40]!r} is not a length")
            head.length = int(value)
        elif name == b"host":
            hosts += 1
        elif name == b"x-request-id":
            head.has_request_id = True
        elif name == b"traceparent":
            head.has_traceparent = True
        elif name == b"transfer-encoding":
            if chunked:
                raise HeadError(Outcome.BAD_REQUEST, "Transfer-Encoding more than once")
            chunked = True
            _check_coding(_value(raw, lowered, lowered.find(b"\r\ntransfer-encoding:")))
        elif name == b"expect":
            value = _value(raw, lowered, lowered.find(b"\r\nexpect:"))
            if value.lower() != b"100-continue" or lowered.count(b"\r\nexpect:") > 1:
                raise HeadError(Outcome.EXPECTATION_FAILED, f"unknown expectation {value[:40]!r}")
            head.expects_continue = True
        else:
            strip = True
    if chunked:
        if sized:
            raise HeadError(Outcome.BAD_REQUEST, "both Content-Length and Transfer-Encoding")
        if minor == 0:
            raise HeadError(Outcome.BAD_REQUEST, "Transfer-Encoding in HTTP/1.0")
        head.length = CHUNKED
    if hosts != 1 and (hosts > 1 or minor == 1):
        raise HeadError(Outcome.BAD_REQUEST, "Host missing" if hosts == 0 else "Host more than once")
    if hosts and not _HOST.fullmatch(_value(raw, lowered, lowered.find(b"\r\nhost:"))):
        raise HeadError(Outcome.BAD_REQUEST, "Host is not a host")

    if strip:
        forward, options = _strip(raw, lowered)
        if b"close" in options:
            head.keep_alive = False
        elif minor == 0 and b"keep-alive" in options:
            head.keep_alive = True
    else:
        forward = raw[:-2]
    if minor == 0 or not target.startswith(b"/"):
        forward = _normalise(head, forward, hosts)
    elif _BAD_TARGET.search(target):
        raise HeadError(Outcome.BAD_REQUEST, "a byte that no target may hold")
    head.forward = forward
    return head


def parse_response(raw: bytes, method: bytes, *, max_fields: int = 1000) -> ResponseHead:
    """Read a response head to a request with ``method``; ``raw`` ends with the empty line.

    Raises:
        HeadError: malformed or ambiguous (outcome UPSTREAM_PROTOCOL).
    """
    try:
        httptools.HttpResponseParser(_IGNORE).feed_data(raw)
    except httptools.HttpParserUpgrade as error:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, "switched protocols unasked") from error
    except httptools.HttpParserError as error:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, str(error)[:200] or "malformed head") from error
    digits = raw[9:12]
    phrase = raw[12 : raw.find(b"\r\n")]
    if raw[:7] != b"HTTP/1." or not digits.isdigit() or (phrase != b" OK" and not _PHRASE.fullmatch(phrase)):
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, "malformed status line")
    status = int(digits)
    if len(raw) > max_fields * 4 and raw.count(b"\r\n") - 2 > max_fields:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, f"more than {max_fields} header fields")
    if status == 101:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, "switched protocols unasked")
    head = ResponseHead()
    head.status = status
    minor = raw[7:8]
    head.keep_alive = minor == b"1"
    head.has_request_id = head.has_retry_after = False
    lowered = raw.lower()
    length = UNTIL_CLOSE
    strip = chunked = False
    for name in _RESPONSE_FIELDS.findall(lowered):
        if name == b"content-length":
            if length != UNTIL_CLOSE:
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, "Content-Length more than once")
            value = _value(raw, lowered, lowered.find(b"\r\ncontent-length:"))
            if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, f"Content-Length {value[:40]!r} is not a length")
            length = int(value)
        elif name == b"transfer-encoding":
            if chunked or minor == b"0":
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, "Transfer-Encoding more than once, or in HTTP/1.0")
            chunked = True
            value = _value(raw, lowered, lowered.find(b"\r\ntransfer-encoding:"))
            if value.lower() != b"chunked":
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, f"transfer coding {value[:40]!r}")
        elif name == b"retry-after":
            head.has_retry_after = True
        elif name == b"x-request-id":
            head.has_request_id = True
        else:
            strip = True
    if chunked:
        if length != UNTIL_CLOSE:
            raise HeadError(Outcome.UPSTREAM_PROTOCOL, "both Content-Length and Transfer-Encoding")
        length = CHUNKED
    if strip:
        forward, options = _strip(raw, lowered)
        if b"close" in options:
            head.keep_alive = False
        elif minor == b"0" and b"keep-alive" in options:
            head.keep_alive = True
    else:
        forward = raw[:-2]
    if minor == b"0":
        forward = b"HTTP/1.1" + forward[8:]
    if status < 200 or status in (204, 304) or method == b"HEAD":
        # RFC 9112 6.3: no body whatever the fields say; a length may describe what GET would send, but not in 1xx/204
        length = 0
        if status < 200 or status == 204:
            forward = without_fields(forward, (b"content-length", b"transfer-encoding"))
    head.length = length
    head.forward = forward
    return head


def hopeless(partial: bytes) -> str | None:
    """Say why an unfinished request head can never become a good one, or None while it may."""
    if not _REQUEST_START.match(partial) and partial not in (b"", b"\r"):
        return "not an HTTP request"
    if _BARE_LF.search(partial):
        return "bare LF"
    return None


def without_fields(forward: bytes, names: tuple[bytes, ...]) -> bytes:
    """Return a head (no final empty line) without the named fields (lower case)."""
    lines = forward.split(b"\r\n")
    return b"\r\n".join([lines[0]] + [line for line in lines[1:] if line.partition(b":")[0].lower() not in names])


def _value(raw: bytes, lowered: bytes, at: int) -> bytes:
    """Return the value of the field whose line break before it stands at ``at``."""
    start = raw.find(b":", at) + 1
    return raw[start : lowered.find(b"\r\n", start)].strip(b" \t")


def _check_coding(value: bytes) -> None:
    coding = value.lower()
    if coding == b"chunked":
        return
    known = all(_TOKEN.fullmatch(part.strip(b" \t")) for part in coding.split(b","))
    if known and coding.rsplit(b",", 1)[-1].strip(b" \t") == b"chunked":
        raise HeadError(Outcome.NOT_IMPLEMENTED, f"transfer coding {value[:40]!r} is not supported")
    raise HeadError(Outcome.BAD_REQUEST, f"transfer coding {value[:40]!r}: the length cannot be known")


def _strip(raw: bytes, lowered: bytes) -> tuple[bytes, frozenset[bytes]]:
    """Return the head (no final empty line) without hop-by-hop fields, and the options that ``Connection`` named."""
    lines = raw[:-4].split(b"\r\n")
    low = lowered[:-4].split(b"\r\n")
    options: set[bytes] = set()
    for line in low[1:]:
        if line.startswith(b"connection:"):
            options.update(part.strip(b" \t") for part in line[11:].split(b","))
    drop = (options | _HOP_BY_HOP) - _NEVER_STRIPPED
    kept = [lines[0]]
    kept += [line for line, lower in zip(lines[1:], low[1:], strict=True) if lower.partition(b":")[0] not in drop]
    kept.append(b"")
    return b"\r\n".join(kept), frozenset(options)


def _normalise(head: RequestHead, forward: bytes, hosts: int) -> bytes:
    """Return the head as HTTP/1.1 in origin form (RFC 9112 3.2.2: an absolute target's authority replaces Host)."""
    target = head.target
    authority = b""
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute:
            authority, rest = absolute.groups()
            if not authority or not _HOST.fullmatch(authority):
                raise HeadError(Outcome.BAD_REQUEST, "the target's authority is not a host")
            target = rest if rest.startswith(b"/") else b"/" + rest
        elif target != b"*" or head.method != b"OPTIONS":
            raise HeadError(Outcome.BAD_REQUEST, "the target is neither a path nor an absolute URL")
        forward_target = target
        head.target = target
    else:
        forward_target = target
    if _BAD_TARGET.search(forward_target):
        raise HeadError(Outcome.BAD_REQUEST, "a byte that no target may hold")
    rest_of_head = forward[forward.find(b"\r\n") :]
    if authority:
        rest_of_head = b"\r\nHost: " + authority + without_fields(rest_of_head, (b"host",))
    elif not hosts:
        rest_of_head = b"\r\nHost: localhost" + rest_of_head
    return head.method + b" " + forward_target + b" HTTP/1.1" + rest_of_head
