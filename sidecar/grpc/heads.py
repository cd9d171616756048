"""Header blocks of gRPC calls: what is read from them, and which fields go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from sidecar.grpc.statuses import parse_timeout
from sidecar.http1.forwarding import is_forwarding
from sidecar.http2.connection import Head

if TYPE_CHECKING:
    from sidecar.http1.forwarding import Peer
    from sidecar.http2.hpack import Field

_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]|\A[ \t]|[ \t]\Z")
_CONNECTION: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_BASE64: Final = re.compile(
    rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw](?:==)?|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=?)?"
)
"""Padded or not, as gRPC has it; the bits that are left over are zero, for other servers than Go's refuse others."""
_AUTHORITY: Final = re.compile(rb"[!-~]*")
MOST_JOINED: Final = 8
"""Values in one field."""
_GRPC: Final = b"application/grpc"
_BEHIND_GRPC: Final = (b"", b"+", b";")
_SCHEMES: Final = frozenset({b"http", b"https"})
_TE: Final[Field] = (b"te", b"trailers")
_REQUEST_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_VARYING: Final = frozenset({b"x-request-id", b"traceparent", b"grpc-timeout"})
_MOST_ASKED: Final = 16
_ASKED_BYTES: Final = 1024
"""Heads that a connection knows, but for what varies, and the largest of them."""
_MAY_FORWARD: Final = frozenset(b"fwx")
VIA: Final[Field] = (b"via", b"2 warmroute")


class Asked:
    """What a call's head says but for the few fields that differ from call to call.

    ``forward`` goes to the worker, with what warmroute adds; ``attempt`` is the number of the first attempt made here.
    ``malformed`` says why it is no head, empty: it is one. ``refused`` is the HTTP status where it is no gRPC call,
    else 0. ``pseudo`` is how many pseudo-headers stand at its start. ``wrong`` says why it cannot be served, empty: it
    can. ``authority``: it names one, else the worker's address is sent.
    """

    __slots__ = (
        "attempt",
        "authority",
        "encoding",
        "forward",
        "malformed",
        "model",
        "oversized",
        "path",
        "pseudo",
        "refused",
        "wrong",
    )

    def __init__(self, fields: list[Field], peer: Peer, *, oversized: bool = False) -> None:
        self.oversized = oversized
        self.attempt = 1
        self.path = b""
        self.forward: list[Field] = []
        self.refused = 0
        self.encoding = b""
        self.model = b""
        self.wrong = ""
        self.pseudo = 0
        self.authority = False
        self.malformed = "" if oversized else self._read(fields, peer)

    def _read(self, fields: list[Field], peer: Peer) -> str:
        """Take the fields; return why the head is malformed, or nothing."""
        way: list[Field] = []
        forward = self.forward
        kind = host = b""
        hosts = 0
        pseudo: dict[bytes, bytes] = {}
        model_header = peer.model_field[2:-1]
        late = named = False
        at = 0  # where the fields begin behind pseudo-headers
        for field in fields:
            name, value = field[0], field[1]
            why = _check(field)
            if why:
                return why
            if name.startswith(b":"):
                if name not in _REQUEST_PSEUDO or name in pseudo or late:
                    return f"pseudo-header {name[:32].decode('latin-1')} unknown, twice or late"
                pseudo[name] = value
                if value or name != b":authority":
                    forward.append(field)
                continue
            if not late:
                late = True
                at = len(forward)
            if name == b"content-type":
                kind = value
            elif name == b"te":
                if value != b"trailers":
                    return "te other than trailers"
                continue
            elif name == b"host":
                host = value
                hosts += 1
                continue
            elif name == b"grpc-encoding":
                self.encoding = value
            elif name == model_header:
                if named:
                    self.wrong = f"{name.decode()} more than once"
                self.model, named = value, True
            elif name in _CONNECTION:
                return f"{name.decode()} has no place in HTTP/2"
            elif name == b"content-length":
                continue
            elif name.endswith(b"-bin"):
                if b"," in value:  # several in one, which most servers do not take apart
                    parts = [part.strip(b" ") for part in value.split(b",", MOST_JOINED - 1)]
                    forward += [(name, part) for part in parts]
                    good = all(part and _BASE64.fullmatch(part) for part in parts)
                else:
                    forward.append(field)
                    good = _BASE64.fullmatch(value) is not None
                if not good:
                    self.wrong = f"{name[:64].decode()} is not base64, or of more than {MOST_JOINED} values"
                continue
            elif name[0] in _MAY_FORWARD and is_forwarding(name):
                way.append(field)
                continue
            forward.append(field)
        authority = pseudo.get(b":authority") or host
        if hosts > 1 or (hosts and host != authority):
            return "host and :authority do not agree"
        if not _AUTHORITY.fullmatch(authority):
            return "an authority with blanks or other than ASCII"
        if authority == host and authority and not pseudo.get(b":authority"):
            forward.insert(0, (b":authority", host))
            at += 1
        self.authority = authority != b""
        forward.insert(at, _TE)  # hop by hop, and what servers tell a gRPC call by
        told, self.attempt = peer.fields(way)
        forward += told
        forward.append(VIA)
        self.pseudo = len(pseudo)
        path = pseudo.get(b":path", b"")
        if not pseudo.get(b":method") or not pseudo.get(b":scheme") or not path:
            return "a pseudo-header is missing"
        if pseudo[b":scheme"] not in _SCHEMES:
            return "a scheme other than http and https"
        self.path = path
        if pseudo[b":method"] != b"POST":
            self.refused = 405
        elif not (kind.startswith(_GRPC) and kind[len(_GRPC) : len(_GRPC) + 1] in _BEHIND_GRPC):
            self.refused = 415
        elif not path.startswith(b"/"):
            return "the path does not begin with /"
        return ""


class CallHead(Head):
    """The head of one call: what is ``asked``, and what only this call has; empty where it has none.

    ``wrong`` is what the caller is told, where the call is one for HTTP/2 but not for gRPC.
    """

    __slots__ = ("asked", "request_id", "timeout", "timeout_s", "traceparent", "wrong")

    def __init__(self, asked: Asked, malformed: str = "") -> None:
        self.malformed = malformed or asked.malformed
        self.asked = asked
        self.wrong = asked.wrong
        self.request_id = b""
        self.traceparent = b""
        self.timeout = b""
        self.timeout_s: float | None = None


class CallHeads:
    """Reads the heads of one connection's calls, which mostly ask the same."""

    __slots__ = ("_asked", "_peer")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._asked: dict[tuple[Field, ...], Asked] = {}

    def read(self, fields: list[Field], *, oversized: bool) -> CallHead:
        """Return what a head says."""
        if oversized:
            return CallHead(Asked([], self._peer, oversized=True))
        request_id = traceparent = b""
        timeout: bytes | None = None
        steady: list[Field] = []
        first = -1
        twice = False
        for field in fields:
            name = field[0]
            if name in _VARYING:
                if first < 0:
                    first = len(steady)
                if name == b"grpc-timeout":
                    if timeout is not None:
                        twice = True
                    timeout = field[1]
                elif name == b"x-request-id":
                    request_id = field[1]
                else:
                    traceparent = field[1]
            else:
                steady.append(field)
        key = tuple(steady)
        asked = self._asked.get(key)
        if asked is None:
            asked = Asked(steady, self._peer)
            if len(self._asked) >= _MOST_ASKED:
                self._asked.clear()
            if sum(len(field[0]) + len(field[1]) for field in steady) <= _ASKED_BYTES:
                self._asked[key] = asked
        head = CallHead(asked)
        if first >= 0:
            if first < asked.pseudo:
                head.malformed = "a late pseudo-header"
            if _BAD_VALUE.search(request_id) or _BAD_VALUE.search(traceparent):
                head.malformed = "a control character or a blank at an end of a value"
            head.request_id = request_id
            head.traceparent = traceparent
            if timeout is not None:
                head.timeout = timeout
                head.timeout_s = None if twice else parse_timeout(timeout)
                if head.timeout_s is None:
                    shown = timeout[:32].decode("ascii", "backslashreplace")
                    head.wrong = (
                        f"grpc-timeout {shown!r}{' and another' if twice else ''}: 1 to 8 digits and one of HMSmun"
                    )
        return head


class AnswerHead(Head):
    """A worker's header block: initial metadata, trailers, or both in one.

    ``status`` is the HTTP status, 0 in trailers. ``grpc_status`` is -1 where there is none. ``pushback_s`` is what
    ``grpc-retry-pushback-ms`` asks for, None where nothing does.
    """

    __slots__ = ("forward", "grpc_status", "has_request_id", "oversized", "pushback_s", "status")

    def __init__(self, fields: list[Field], *, oversized: bool) -> None:
        self.forward: list[Field] = []
        self.status = 0
        self.grpc_status = -1
        self.has_request_id = False
        self.pushback_s: float | None = None
        self.oversized = oversized
        self.malformed = "a head over the limits" if oversized else self._read(fields)

    @property
    def message(self) -> bytes:
        """The ``grpc-message``, decoded; empty where there is none."""
        for name, value in self.forward:
            if name == b"grpc-message":
                return unquote_to_bytes(value) if b"%" in value else value
        return b""

    def _read(self, fields: list[Field]) -> str:
        forward = self.forward
        for field in fields:
            name = field[0]
            why = _check(field)
            if why:
                return why
            if name.startswith(b":"):
                value = field[1]
                if (
                    name != b":status"
                    or self.status
                    or forward
                    or len(value) != 3
                    or not value.isdigit()
                    or value < b"100"
                ):
                    return "pseudo-header other than one status"
                self.status = int(value)
                if self.status == 101:
                    return "101, which HTTP/2 has not"
            elif name == b"grpc-status":
                if self.grpc_status >= 0:
                    return "grpc-status twice"
                self.grpc_status = int(field[1]) if field[1].isdigit() and len(field[1]) < 10 else 2
            elif name == b"x-request-id":
                self.has_request_id = True
            elif name == b"grpc-retry-pushback-ms":
                ms = field[1]
                self.pushback_s = int(ms) / 1000 if ms.isdigit() and len(ms) < 12 else 0.0
            elif name in _CONNECTION or name == b"content-length":  # which need not agree with its DATA
                continue
            forward.append(field)
        return ""


def _check(field: Field) -> str:
    """Return why a field is not valid in HTTP/2 (RFC 9113 8.2.1), or nothing."""
    if not _NAME.fullmatch(field[0]):
        return "a field name that is none in HTTP/2"
    if _BAD_VALUE.search(field[1]):
        return f"a control character or a blank at an end of {field[0][:64].decode('latin-1')}"
    return ""
