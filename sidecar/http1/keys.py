"""The key of a request, where its model's balancer or its shards go by one.

That is the value of a field, the path's last segment, or a member of the JSON body (``json_key``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from router.policy import BalancerName
from sidecar.http1.json_key import JsonKey

if TYPE_CHECKING:
    from router.routes import Route
    from sidecar.http1.head import RequestHead
    from sidecar.http2.hpack import Field


class KeySource:
    """Where the requests of one model have their key.

    ``header`` is the name of a field, None for the path's last segment, unless ``json`` is the path of a body's member:
    then ``body`` reads it, of bodies up to ``body_bytes``.
    """

    __slots__ = ("_line", "_name", "body", "body_bytes", "text")

    def __init__(self, header: str | None, json: str | None = None, body_bytes: int = 0) -> None:
        self._name = b"" if header is None else header.lower().encode()
        self._line = b"\r\n" + self._name + b":"
        self.body = None if json is None else JsonKey(json)
        self.body_bytes = 0 if json is None else body_bytes
        self.text = f"the body's {json}" if json is not None else f"the field {header}" if header else "the path"

    def of(self, head: RequestHead) -> bytes | None:
        """Return the key that a request's head has, None where it has none. The first field of the name counts."""
        if self.body is not None:
            return None
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
        for field in fields if self._name else ():
            if field[0] == self._name:
                return field[1] or None
        return None


def key_source_of(route: Route | None) -> KeySource | None:
    """Return where requests on a route have their key, None where neither its balancer nor its shards need one."""
    if route is None or route.policy.key is None:
        return None
    if route.policy.balancer is not BalancerName.KEYED and not route.shards:
        return None
    key = route.policy.key
    return KeySource(key.header, key.json, key.body_bytes)
