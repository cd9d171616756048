"""Heads of HTTP/1.1 messages: one strict reading, and what is passed on of them.

llhttp (through httptools) decides whether a head is well formed; what it leaves open and what a proxy must decide
(framing, hop-by-hop fields, the one reading that both sides share) is decided here. The original bytes are passed on,
and only the few lines that must change are cut out or put in: field order, case and non-ASCII values survive.

Sources: RFC 9112 (2.2, 3, 5, 6), RFC 9110 (5.5, 7.6). Every function is pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import httptools

from router.outcomes import Outcome
from sidecar.http1.forwarding import FORWARDING_FIELDS, STRANGER, Peer
from sidecar.http1.head import (
    CHUNKED,
    KEEP_ALIVE,
    MAX_LENGTH_DIGITS,
    UNTIL_CLOSE,
    HeadError,
    RequestHead,
    ResponseHead,
)
from sidecar.http1.upgrade import protocols, refused, upgrade_of

MAX_TIMEOUT_DIGITS: Final = 9
_NO_UPGRADE: Final[list[bytes]] = []

# Fields that decide something here, with their values; matched against the lower-cased head, each begins a line.
_REQUEST_FIELDS: Final = re.compile(
    rb"\r\n(connection|content-length|expect|host|http2-settings|keep-alive|proxy-[a-z-]+|te|traceparent|trailer"
    rb"|transfer-encoding|upgrade|x-request-id|x-request-timeout-ms|" + FORWARDING_FIELDS + rb"):[ \t]*([^\r]*)"
)
_RESPONSE_FIELDS: Final = re.compile(
    rb"\r\n(connection|content-length|keep-alive|proxy-[a-z-]+|retry-after|te|trailer|transfer-encoding|upgrade"
    rb"|x-request-id):[ \t]*([^\r]*)"
)
_HOP_BY_HOP: Final = frozenset(
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
_NEVER_STRIPPED: Final = frozenset({b"content-length", b"host", b"transfer-encoding"})
"""Naming these in ``Connection`` must not change framing or routing."""
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[!\"$-~\x80-\xff]*) HTTP/1\.([01])\r\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*)?\r\n")
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_START: Final = re.compile(rb"[A-Za-z]+[A-Za-z-]*( |$)")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.vV]+\])(?::[0-9]*)?")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_BAD_TARGET: Final = re.compile(rb"[^!-~\x80-\xff]|#")


class _Ignore:
    """llhttp validates; nobody listens."""


_IGNORE: Final = _Ignore()
_RequestParser: Final = httptools.HttpRequestParser
_ResponseParser: Final = httptools.HttpResponseParser


def parse_request(
    raw: bytes, max_target_bytes: int = 16384, max_fields: int = 100, peer: Peer = STRANGER
) -> RequestHead:
    """Read a request head that ``peer`` sent; ``raw`` ends with the empty line.

    Raises:
        HeadError: malformed, ambiguous, over a limit, or something this proxy refuses.
    """
    line = _REQUEST_LINE.match(raw)
    if line is None:
        method, target, minor = _unusual_request_line(raw)
    else:
        method, target, version = line.groups()
        minor = 1 if version == b"1" else 0
    if len(target) > max_target_bytes:
        raise HeadError(Outcome.TARGET_TOO_LONG, f"request target over {max_target_bytes} bytes")
    try:
        _RequestParser(_IGNORE).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # decided below
    except httptools.HttpParserInvalidMethodError as error:
        raise HeadError(Outcome.NOT_IMPLEMENTED, "unknown method") from error
    except httptools.HttpParserError as error:
        raise HeadError(Outcome.BAD_REQUEST, str(error)[:200] or "malformed head") from error
    if len(raw) > max_fields * 4 and raw.count(b"\r\n") - 2 > max_fields:
        raise HeadError(Outcome.HEAD_TOO_LARGE, f"more than {max_fields} header fields")

    head = RequestHead(raw)
    head.method = method
    head.target = target
    head.minor = minor
    head.keep_alive = minor == 1
    head.has_request_id = head.has_traceparent = False
    head.timeout_ms = -1
    head.peer = peer
    head.end = peer.end
    head.attempt = 1
    head.upgrade = _NO_UPGRADE
    if method == b"CONNECT":
        raise HeadError(Outcome.NOT_IMPLEMENTED, "CONNECT is not served here")

    lowered = raw.lower()
    length = -1
    hosts = connections = 0
    option = b""
    strip = chunked = expects = nameless = forwarded = False
    for name, value in _REQUEST_FIELDS.findall(lowered):
        if name == b"content-length":
            if length >= 0:
                raise HeadError(Outcome.BAD_REQUEST, "Content-Length more than once")
            length = int(value) if value.isdigit() and len(value) <= MAX_LENGTH_DIGITS else _length(value)
        elif name == b"host":
            hosts += 1
            if not _is_host(value):
                raise HeadError(Outcome.BAD_REQUEST, "Host is not a host")
        elif name == b"connection":
            connections += 1
            option = value
        elif name == b"x-request-id":
            if value:
                head.has_request_id = True
            else:
                nameless = True
        elif name == b"traceparent":
            head.has_traceparent = True
        elif name == b"transfer-encoding":
            if chunked:
                raise HeadError(Outcome.BAD_REQUEST, "Transfer-Encoding more than once")
            chunked = True
            _check_coding(value.rstrip(b" \t"))
        elif name == b"expect":
            if value.rstrip(b" \t") != b"100-continue" or expects:
                raise HeadError(Outcome.EXPECTATION_FAILED, f"unknown expectation {value[:40]!r}")
            expects = True
        elif name == b"x-request-timeout-ms":
            value = value.rstrip(b" \t")
            if head.timeout_ms >= 0 or not value.isdigit() or len(value) > MAX_TIMEOUT_DIGITS:
                raise HeadError(Outcome.BAD_REQUEST, "x-request-timeout-ms is not one whole number of milliseconds")
            head.timeout_ms = int(value)
        elif name[:1] in (b"f", b"w", b"x"):
            forwarded = True
        else:
            strip = True
    if chunked:
        if length >= 0:
            raise HeadError(Outcome.BAD_REQUEST, "both Content-Length and Transfer-Encoding")
        if minor == 0:
            raise HeadError(Outcome.BAD_REQUEST, "Transfer-Encoding in HTTP/1.0")
        head.length = CHUNKED
    else:
        head.length = max(0, length)
    if hosts != 1 and (hosts > 1 or minor == 1):
        raise HeadError(Outcome.BAD_REQUEST, "Host missing" if hosts == 0 else "Host more than once")

    if strip or connections:
        forward, close, keep = _strip(raw, lowered, option if not strip and connections == 1 else None)
        if close:
            head.keep_alive = False
        elif minor == 0 and keep:
            head.keep_alive = True
        if strip or connections > 1 or option not in (b"keep-alive", b"close"):  # others may be cut out with it
            left = forward.lower()
            head.has_request_id = head.has_request_id and b"\r\nx-request-id:" in left
            head.has_traceparent = head.has_traceparent and b"\r\ntraceparent:" in left
        if strip and minor == 1 and b"\r\nupgrade:" in lowered:
            forward += _upgrade(head, raw)
    else:
        forward = raw[:-2]
    if nameless:  # an empty id is none: one is made in its place
        forward = without_fields(forward, (b"x-request-id",))
        head.has_request_id = False
    if head.timeout_ms >= 0:  # what is left of it is said anew at each try
        forward = without_fields(forward, (b"x-request-timeout-ms",))
    if forwarded:
        forward, head.end, head.attempt = peer.rewrite(forward)
    if minor == 0 or line is None:
        forward = _normalise(head, forward, hosts)
    head.forward = forward
    head.asked = _asked(raw, lowered, peer.model_field) if peer.model_field and peer.model_field in lowered else b""
    head.key = head.target + b"\0" + head.asked if head.asked else head.target
    return head


def parse_response(raw: bytes, method: bytes, max_fields: int = 1000) -> ResponseHead:
    """Read a response head to a request with ``method``; ``raw`` ends with the empty line.

    Raises:
        HeadError: malformed or ambiguous (outcome UPSTREAM_PROTOCOL).
    """
    try:
        _ResponseParser(_IGNORE).feed_data(raw)
    except httptools.HttpParserUpgrade as error:
        if not raw.startswith(b"HTTP/1.1 101"):
            raise HeadError(Outcome.UPSTREAM_PROTOCOL, "an upgrade without a 101 of HTTP/1.1") from error
    except httptools.HttpParserError as error:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, str(error)[:200] or "malformed head") from error
    if raw.startswith(_OK):
        status, minor = 200, b"1"
    else:
        line = _STATUS_LINE.match(raw)
        if line is None:
            raise HeadError(Outcome.UPSTREAM_PROTOCOL, "malformed status line")
        minor, digits = line.groups()
        status = int(digits)
    if len(raw) > max_fields * 4 and raw.count(b"\r\n") - 2 > max_fields:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, f"more than {max_fields} header fields")
    head = ResponseHead(raw)
    head.status = status
    head.keep_alive = minor == b"1"
    head.has_request_id = False
    head.retry_after = b""
    head.upgrade = _NO_UPGRADE
    lowered = raw.lower()
    length = UNTIL_CLOSE
    strip = chunked = nameless = False
    connections = 0
    option = b""
    for name, value in _RESPONSE_FIELDS.findall(lowered):
        if name == b"content-length":
            if length != UNTIL_CLOSE:
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, "Content-Length more than once")
            length = (
                int(value)
                if value.isdigit() and len(value) <= MAX_LENGTH_DIGITS
                else _length(value, Outcome.UPSTREAM_PROTOCOL)
            )
        elif name == b"connection":
            connections += 1
            option = value
        elif name == b"x-request-id":
            if value:
                head.has_request_id = True
            else:
                nameless = True
        elif name == b"transfer-encoding":
            if chunked or minor == b"0":
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, "Transfer-Encoding more than once, or in HTTP/1.0")
            chunked = True
            if value.rstrip(b" \t") != b"chunked":
                raise HeadError(Outcome.UPSTREAM_PROTOCOL, f"transfer coding {value[:40]!r}")
        elif name == b"retry-after":
            head.retry_after = value
        else:
            strip = True
    if chunked:
        if length != UNTIL_CLOSE:
            raise HeadError(Outcome.UPSTREAM_PROTOCOL, "both Content-Length and Transfer-Encoding")
        length = CHUNKED
    if option == b"keep-alive" and connections == 1 and not strip and minor == b"1":
        forward = raw[:-2].replace(KEEP_ALIVE, b"", 1)  # cut out in its usual spelling
        if len(forward) == len(raw) - 2:
            forward = _strip(raw, lowered, None)[0]
    elif strip or connections:
        forward, close, keep = _strip(raw, lowered, None)
        if close:
            head.keep_alive = False
        elif minor == b"0" and keep:
            head.keep_alive = True
        head.has_request_id = head.has_request_id and b"\r\nx-request-id:" in forward.lower()
    else:
        forward = raw[:-2]
    if nameless:  # an empty id is none: the caller gets its own back
        forward = without_fields(forward, (b"x-request-id",))
        head.has_request_id = False
    if minor == b"0":
        forward = b"HTTP/1.1" + forward[8:]
    if status < 200 or status == 204 or status == 304 or method == b"HEAD":
        # RFC 9112 6.3: no body whatever the fields say; a length may describe what GET would send, but not in 1xx/204
        length = 0
        if status < 200 or status == 204:
            forward = without_fields(forward, (b"content-length", b"transfer-encoding"))
        if status == 101:
            forward += _switch(head, raw, minor)
    head.length = length
    head.forward = forward
    return head


def hopeless(partial: bytes) -> str | None:
    """Say why an unfinished request head can never become a good one, or None while it may."""
    if not _REQUEST_START.match(partial) and partial not in (b"", b"\r"):
        return "not an HTTP request"
    ends = partial.count(b"\r\n")  # counting is quick: this is asked for each piece
    if partial.count(b"\n") != ends:
        return "bare LF"
    if partial.count(b"\r") != ends + partial.endswith(b"\r"):
        return "bare CR"
    return None


def without_fields(forward: bytes, names: tuple[bytes, ...]) -> bytes:
    """Return a head (no final empty line) without the named fields (lower case)."""
    lines = forward.split(b"\r\n")
    return b"\r\n".join([lines[0]] + [line for line in lines[1:] if line.partition(b":")[0].lower() not in names])


def _length(value: bytes, outcome: Outcome = Outcome.BAD_REQUEST) -> int:
    """Return a Content-Length that is not digits alone: with blanks behind it, or no length at all (RFC 9110 8.6)."""
    value = value.rstrip(b" \t")
    if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
        raise HeadError(outcome, f"Content-Length {value[:40]!r} is not a length")
    return int(value)


def _asked(raw: bytes, lowered: bytes, model_field: bytes) -> bytes:
    """Return the model that a field names; ``model_field`` begins its line."""
    begin = lowered.find(model_field)
    if lowered.find(model_field, begin + 1) >= 0:
        raise HeadError(Outcome.BAD_REQUEST, f"{model_field[2:-1].decode()} more than once")
    begin += len(model_field)
    return raw[begin : raw.find(b"\r\n", begin)].strip(b" \t")


@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    """Return whether a (lower-cased) Host value is one: uri-host [":" port] (RFC 9110 7.2)."""
    return _HOST.fullmatch(value.rstrip(b" \t")) is not None


def _check_coding(value: bytes) -> None:
    coding = value.lower()
    if coding == b"chunked":
        return
    known = all(_TOKEN.fullmatch(part.strip(b" \t")) for part in coding.split(b","))
    if known and coding.rsplit(b",", 1)[-1].strip(b" \t") == b"chunked":
        raise HeadError(Outcome.NOT_IMPLEMENTED, f"transfer coding {value[:40]!r} is not supported")
    raise HeadError(Outcome.BAD_REQUEST, f"transfer coding {value[:40]!r}: the length cannot be known")


def _strip(raw: bytes, lowered: bytes, option: bytes | None) -> tuple[bytes, bool, bool]:
    """Return the head (no final empty line) without hop-by-hop fields, and whether close, keep-alive were asked.

    ``option``: one ``Connection`` field with this value is all there is to strip, unless it names others.
    """
    if option == b"keep-alive":  # in its usual spelling it is cut out in one step
        forward = raw[:-2].replace(KEEP_ALIVE, b"", 1)
        if len(forward) != len(raw) - 2:
            return forward, False, True
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
    return b"\r\n".join(kept), b"close" in options, b"keep-alive" in options


def _upgrade(head: RequestHead, raw: bytes) -> bytes:
    """Return the fields with which a request's wish for another protocol is passed on, and note it; or nothing.

    It is passed on for a GET without a body: what comes behind the head is then the next request, or the tunnel's. For
    others the wish is dropped, as RFC 9110 7.8 allows, but that no WebSocket is begun so (RFC 6455 4.1).
    """
    value = upgrade_of(raw)
    try:
        asked = protocols(value)
    except ValueError as error:
        raise HeadError(Outcome.BAD_REQUEST, str(error)) from error
    bad = refused(asked)
    if bad:
        raise HeadError(Outcome.NOT_IMPLEMENTED, f"upgrade to {bad[:40].decode()}: only HTTP/1.1 is spoken here")
    if head.method != b"GET" or head.length != 0:
        if b"websocket" in asked:
            raise HeadError(Outcome.BAD_REQUEST, "a WebSocket begins with a GET that has no body")
        return b""
    if not asked:
        return b""
    head.upgrade = asked
    return b"Connection: Upgrade\r\nUpgrade: " + value + b"\r\n"


def _switch(head: ResponseHead, raw: bytes, minor: bytes) -> bytes:
    """Return the fields with which a 101 is passed on, and note what it switches to (RFC 9110 15.2.2)."""
    value = upgrade_of(raw)
    try:
        head.upgrade = protocols(value)
    except ValueError as error:
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, str(error)) from error
    if not head.upgrade or minor == b"0":
        raise HeadError(Outcome.UPSTREAM_PROTOCOL, "101 without an upgrade")
    return b"Connection: Upgrade\r\nUpgrade: " + value + b"\r\n"


def _unusual_request_line(raw: bytes) -> tuple[bytes, bytes, int]:
    """Read a request line that is not ``METHOD /PATH HTTP/1.x``: an absolute or asterisk one, or say what is wrong."""
    line = raw[: raw.find(b"\r\n")]
    parts = line.split(b" ")
    if len(parts) != 3:
        raise HeadError(Outcome.BAD_REQUEST, "malformed request line")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if _VERSION.fullmatch(version):
            raise HeadError(Outcome.HTTP_VERSION, f"version {version.decode()}")
        raise HeadError(Outcome.BAD_REQUEST, "malformed request line")
    if not _TOKEN.fullmatch(method):
        raise HeadError(Outcome.BAD_REQUEST, "the method is not a token")
    return method, target, int(version[-1:])


def _normalise(head: RequestHead, forward: bytes, hosts: int) -> bytes:
    """Return the head as HTTP/1.1 in origin form (RFC 9112 3.2.2: an absolute target's authority replaces Host)."""
    target = head.target
    authority = b""
    if _BAD_TARGET.search(target):
        raise HeadError(Outcome.BAD_REQUEST, "a byte that no target may hold")
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute:
            authority, rest = absolute.groups()
            if not authority or not _is_host(authority):
                raise HeadError(Outcome.BAD_REQUEST, "the target's authority is not a host")
            head.target = target = rest if rest.startswith(b"/") else b"/" + rest
        elif target != b"*" or head.method != b"OPTIONS":
            raise HeadError(Outcome.BAD_REQUEST, "the target is neither a path nor an absolute URL")
    fields = forward[forward.find(b"\r\n") :]
    if authority:
        fields = b"\r\nHost: " + authority + without_fields(fields, (b"host",))
    elif not hosts:
        fields = b"\r\nHost: localhost" + fields
    return head.method + b" " + target + b" HTTP/1.1" + fields
