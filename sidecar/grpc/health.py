"""What warmroute answers itself where no worker takes it: ``grpc.health.v1``, and what OIP clients ask a server.

The messages are so small that they are read and written by hand: each has one field that matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.matching import SERVICE
from sidecar.grpc.matching import PROTOCOL
from sidecar.grpc.statuses import Status
from sidecar.version import installed_version

if TYPE_CHECKING:
    from sidecar.grpc.call import Call
    from sidecar.grpc.plane import GrpcPlane

CHECK: Final = b"/grpc.health.v1.Health/Check"
WATCH: Final = b"/grpc.health.v1.Health/Watch"
LIVE: Final = SERVICE + b"ServerLive"
READY: Final = SERVICE + b"ServerReady"
METADATA: Final = SERVICE + b"ServerMetadata"
OWN: Final = frozenset({CHECK, WATCH, LIVE, READY, METADATA})
"""Methods that warmroute answers where there is no default model to take them."""

_SERVING: Final = 1
_NOT_SERVING: Final = 2
_SERVICE_UNKNOWN: Final = 3
_WHOLE: Final = frozenset({"", SERVICE.strip(b"/").decode()})
"""Services that stand for the server as a whole."""
_TRUE: Final = b"\x08\x01"  # field 1, a boolean


def _text(number: int, text: str) -> bytes:
    raw = text.encode()[:127]
    return bytes((number << 3 | 2, len(raw))) + raw


def serving(plane: GrpcPlane, service: str, now: float) -> int:
    """Return the serving status of a service: the server as a whole, or a model by its name."""
    cluster = plane.shared.cluster
    if service in _WHOLE:
        fit = cluster.routable(now, PROTOCOL)
    else:
        route = plane.route_of(plane.resolve(service, "", None))
        if route is None:
            return _SERVICE_UNKNOWN
        fit = cluster.route_is_routable(route, now)
    return _SERVING if fit and not plane.shared.leaving and not plane.shared.refusing else _NOT_SERVING


def answer(plane: GrpcPlane, call: Call, service: str) -> None:
    """Answer one of :data:`OWN`; ``service`` is the request's first field."""
    now = plane.clock()
    path = call.head.asked.path
    if path == CHECK:
        status = serving(plane, service, now)
        if status == _SERVICE_UNKNOWN:
            call.answer_status(Status.NOT_FOUND, "no such service or model")
        else:
            call.answer([bytes((0x08, status))], end=True)
    elif path == WATCH:
        status = serving(plane, service, now)
        plane.watchers[call] = (service, status)
        call.answer([bytes((0x08, status))], end=False)
    elif path == METADATA:
        call.answer([_text(1, "warmroute") + _text(2, installed_version())], end=True)
    elif path == LIVE:
        call.answer([_TRUE], end=True)
    else:
        call.answer([_TRUE if serving(plane, "", now) == _SERVING else b""], end=True)


def tell_watchers(plane: GrpcPlane, now: float) -> None:
    """Send each watcher the status where it has changed; end the watches of a process that drains."""
    for call, (service, told) in list(plane.watchers.items()):
        status = serving(plane, service, now)
        if status != told:
            plane.watchers[call] = (service, status)
            call.answer([bytes((0x08, status))], end=False)
        elif plane.shared.draining:
            del plane.watchers[call]
            call.leave()
