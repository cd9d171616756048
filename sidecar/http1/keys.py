"""The key of a request, where its model's balancer or its shards go by one.

That is the value of a field, the path's last segment, or a member of the JSON body (``json_key``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from router.policy import BalancerName
from sidecar.http1.json_key import JsonKey, PromptKey

if TYPE_CHECKING:
    from router.policy import AffinityPolicy
    from router.routes import Route
    from sidecar.http1.head import RequestHead
    from sidecar.http2.hpack import Field


class KeySource:
    """Where the requests of one model have their key.

    ``member`` is where calls of the V2 protocol over gRPC have it in their message: ``id`` or ``parameters.NAME``, as
    in a JSON body of that protocol; empty: nowhere. ``affinity`` is set where it is the blocks of a prompt, over both.

    ``header`` is the name of a field, None for the path's last segment, unless ``body`` reads it from bodies of up to
    ``body_bytes``. ``text`` says where that is.
    """

    __slots__ = ("_line", "_name", "affinity", "body", "body_bytes", "member", "text")

    def __init__(
        self, header: str | None, body: JsonKey | PromptKey | None = None, body_bytes: int = 0, text: str = ""
    ) -> None:
        self._name = b"" if header is None else header.lower().encode()
        self._line = b"\r\n" + self._name + b":"
        self.body = body
        self.body_bytes = body_bytes
        self.member = b""
        self.affinity: AffinityPolicy | None = None
        self.text = text or ("the path" if header is None else f"the field {header}")

    def find(self, head: RequestHead, body: bytes | None) -> bytes | None:
        """Return the key of a request, None where it has none; a body of None is too long to be looked at."""
        if self.body is None:
            return self.of(head)
        return None if body is None or len(body) > self.body_bytes else self.body.of(body)

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
    """Return what requests on a route are told apart by, None where nothing does.

    For the route of a model whose shards answer for themselves that is what says which shard has a request.
    """
    if route is None:
        return None
    policy = route.policy
    key = policy.key
    if key is not None and (route.shards or policy.balancer is BalancerName.KEYED):
        if key.json is None:
            return KeySource(key.header)
        source = KeySource(None, JsonKey(key.json), key.body_bytes, f"the body's {key.json}")
        source.member = member_of_message(key.json)
        return source
    if policy.affinity is not None:
        source = KeySource(None, PromptKey(policy.affinity), policy.affinity.body_bytes, "the prompt")
        source.affinity = policy.affinity
        return source
    return None


def member_of_message(path: str) -> bytes:
    """Return the member of a V2 message over gRPC that a path in a JSON body names there, too; empty where none."""
    names = path.split(".")
    return path.encode() if path == "id" or (len(names) == 2 and names[0] == "parameters") else b""
