"""Header blocks of gRPC calls: what is read from them, and which fields go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sidecar.grpc.statuses import parse_timeout
from sidecar.http1.forwarding import is_forwarding
from sidecar.http2.connection import Head

if TYPE_CHECKING:
    from sidecar.http1.forwarding import Peer
    from sidecar.http2.hpack import Field

_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]|\A[ \t]|[ \t]\Z")
_CONNECTION: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_REQUEST_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_TAKEN: Final = frozenset(
    {
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-timeout",
        b"grpc-encoding",
        b"x-request-id",
        b"traceparent",
        b"warmroute-model",
        b"via",
        *_CONNECTION,
    }
)
_MAY_FORWARD: Final = frozenset(b"fwx")
VIA: Final[Field] = (b"via", b"2 warmroute")
_CHECKED: Final[set[Field]] = set()
_MOST_CHECKED: Final = 4096
_CHECKED_BYTES: Final = 128


class CallHead(Head):
    """The head of a call.

    ``forward`` goes to the worker; what varies from call to call and from attempt to attempt is not in it
    (``grpc-timeout``, ``warmroute-attempt``). ``attempt`` is the number of the first one here.
    ``refused`` is the HTTP status where it is no gRPC call, 0 where it is one. ``oversized``: it is over the limits.
    """

    __slots__ = (
        "attempt",
        "encoding",
        "forward",
        "model",
        "oversized",
        "path",
        "refused",
        "request_id",
        "timeout",
        "timeout_s",
        "traced",
    )

    def __init__(self, fields: list[Field], peer: Peer, *, oversized: bool) -> None:
        super().__init__(fields)
        self.oversized = oversized
        self.attempt = 1
        self.path = b""
        self.forward: list[Field] = []
        self.refused = 0
        self.request_id = b""
        self.traced = False
        self.timeout = b""
        self.timeout_s: float | None = None
        self.encoding = b""
        self.model = b""
        if not oversized:
            self.malformed = self._read(fields, peer)

    def _read(self, fields: list[Field], peer: Peer) -> str:
        """Take the fields; return why the head is malformed, or nothing."""
        way: list[Field] = []
        checked = _CHECKED
        forward = self.forward
        kind = b""
        pseudo: dict[bytes, bytes] = {}
        late = False
        for field in fields:
            name = field[0]
            if field not in checked:
                why = _check(field)
                if why:
                    return why
            if name.startswith(b":"):
                if name not in _REQUEST_PSEUDO or name in pseudo or late:
                    return f"pseudo-header {name[:32].decode('latin-1')} unknown, twice or late"
                pseudo[name] = field[1]
                forward.append(field)
                continue
            late = True
            if name in _TAKEN:
                value = field[1]
                if name == b"content-type":
                    kind = value
                elif name == b"te":
                    if value != b"trailers":
                        return "te other than trailers"
                elif name == b"x-request-id":
                    self.request_id = value
                elif name == b"traceparent":
                    self.traced = True
                elif name == b"grpc-encoding":
                    self.encoding = value
                elif name == b"warmroute-model":
                    self.model = value
                elif name == b"grpc-timeout":
                    self.timeout = value
                    self.timeout_s = parse_timeout(value)
                    if self.timeout_s is None:
                        return "grpc-timeout is none"
                    continue
                elif name in _CONNECTION:
                    return f"{name.decode()} has no place in HTTP/2"
                elif name != b"via":
                    continue
            elif name[0] in _MAY_FORWARD and is_forwarding(name):
                way.append(field)
                continue
            forward.append(field)
        told, self.attempt = peer.fields(way)
        forward += told
        forward.append(VIA)
        path = pseudo.get(b":path", b"")
        if not pseudo.get(b":method") or not pseudo.get(b":scheme") or not path:
            return "a pseudo-header is missing"
        self.path = path
        if pseudo[b":method"] != b"POST":
            self.refused = 405
        elif not kind.startswith(b"application/grpc"):
            self.refused = 415
        elif not path.startswith(b"/"):
            return "the path does not begin with /"
        return ""


class AnswerHead(Head):
    """A worker's header block: initial metadata, trailers, or both in one.

    ``status`` is the HTTP status, 0 in trailers. ``grpc_status`` is -1 where there is none. ``pushback_s`` is what
    ``grpc-retry-pushback-ms`` asks for, None where nothing does.
    """

    __slots__ = ("forward", "grpc_status", "has_request_id", "pushback_s", "status")

    def __init__(self, fields: list[Field], *, oversized: bool) -> None:
        super().__init__(fields)
        self.forward: list[Field] = []
        self.status = 0
        self.grpc_status = -1
        self.has_request_id = False
        self.pushback_s: float | None = None
        self.malformed = "a head over the limits" if oversized else self._read(fields)

    def _read(self, fields: list[Field]) -> str:
        checked = _CHECKED
        forward = self.forward
        for field in fields:
            name = field[0]
            if field not in checked:
                why = _check(field)
                if why:
                    return why
            if name.startswith(b":"):
                value = field[1]
                if name != b":status" or forward or len(value) != 3 or not value.isdigit() or value < b"100":
                    return "pseudo-header other than one status"
                self.status = int(value)
            elif name == b"grpc-status":
                self.grpc_status = int(field[1]) if field[1].isdigit() and len(field[1]) < 10 else 2
            elif name == b"x-request-id":
                self.has_request_id = True
            elif name == b"grpc-retry-pushback-ms":
                ms = field[1]
                self.pushback_s = int(ms) / 1000 if ms.isdigit() and len(ms) < 12 else 0.0
            elif name in _CONNECTION:
                continue
            forward.append(field)
        return ""


def _check(field: Field) -> str:
    """Return why a field is not valid in HTTP/2 (RFC 9113 8.2.1), or nothing; remember short ones that are."""
    name, value = field[0], field[1]
    if not _NAME.fullmatch(name):
        return "a field name that is none in HTTP/2"
    if _BAD_VALUE.search(value):
        return f"a control character or a blank at an end of {name[:64].decode('latin-1')}"
    if len(name) + len(value) <= _CHECKED_BYTES:
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        _CHECKED.add(field)
    return ""
