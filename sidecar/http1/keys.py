"""The key of a request, where its model's balancer goes by one: the value of a field, or the path's last segment."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from router.policy import BalancerName

if TYPE_CHECKING:
    from router.routes import Route
    from sidecar.http1.head import RequestHead
    from sidecar.http2.hpack import Field


class KeySource:
    """Where the requests of one model have their key. Bodies are not looked at for it.

    ``header`` is the name of a field, None for the path's last segment.
    """

    __slots__ = ("_line", "_name")

    def __init__(self, header: str | None) -> None:
        self._name = b"" if header is None else header.lower().encode()
        self._line = b"\r\n" + self._name + b":"

    def of(self, head: RequestHead) -> bytes | None:
        """Return the key of a request, None where it has none. The first field of the name counts."""
        if not self._name:
            path = head.target.partition(b"?")[0]
            return unquote_to_bytes(path[path.rfind(b"/") + 1 :]) or None
        raw = head.raw
        start = raw.lower().find(self._line)
        if start < 0:
            return None
        start += len(self._line)
        return raw[start : raw.find(b"\r\n", start)].strip(b" \t") or None

    def of_metadata(self, fields: list[Field]) -> bytes | None:
        """Return the key of a gRPC call, None where it has none: its path names a method, which is no key."""
        for field in fields:
            if field[0] == self._name:
                return field[1] or None
        return None


def key_source_of(route: Route | None) -> KeySource | None:
    """Return where requests on a route have their key, None where its balancer needs none."""
    if route is None or route.policy.key is None or route.policy.balancer is not BalancerName.KEYED:
        return None
    return KeySource(route.policy.key.header)
