"""Which priority class and tenant a request belongs to, by its fields."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from sidecar.settings import Admission, Trust

if TYPE_CHECKING:
    from sidecar.http2.hpack import Field

MOST_NAME_BYTES: Final = 128
"""What is kept of a tenant's name."""
DEFAULT_KIND: Final = "default"
"""The class of requests that name none."""


class Asking:
    """What a request says that wants to wait. ``ends_at`` is when its time is over whatever becomes of it here.

    ``kind`` is its class's place in the metrics; ``bytes`` is what is kept of it.
    """

    __slots__ = ("bytes", "ends_at", "kind", "rank", "tenant")

    def __init__(self, kind: int, rank: int, tenant: str, bytes_: int, ends_at: float) -> None:
        self.kind = kind
        self.rank = rank
        self.tenant = tenant
        self.bytes = bytes_
        self.ends_at = ends_at


class Sorting:
    """Says which class and tenant requests belong to; of callers who are not believed nothing is read."""

    __slots__ = ("_anybody", "_class_line", "_class_name", "_classes", "_tenant_line", "_tenant_name", "kinds")

    def __init__(self, policy: Admission) -> None:
        self.kinds = kinds_of(policy)
        self._classes = {
            name.lower().encode(): (kind, policy.priority.classes[name])
            for kind, name in enumerate(self.kinds)
            if name in policy.priority.classes
        }
        self._anybody = policy.trust is Trust.ANYBODY
        self._class_name = policy.priority.header.lower().encode() if self._classes else b""
        self._class_line = _line(self._class_name)
        self._tenant_name = (policy.tenant.header or "").lower().encode()
        self._tenant_line = _line(self._tenant_name)

    def of_head(self, raw: bytes, bytes_: int, ends_at: float, *, trusted: bool) -> Asking:
        """Read the head of an HTTP/1.1 request, as it came."""
        name = tenant = b""
        if trusted or self._anybody:
            if self._class_line is not None and (found := self._class_line.search(raw)):
                name = found[1]
            if self._tenant_line is not None and (found := self._tenant_line.search(raw)):
                tenant = found[1]
        return self._asking(name, tenant, bytes_, ends_at)

    def of_fields(self, fields: list[Field], bytes_: int, ends_at: float, *, trusted: bool) -> Asking:
        """Read the fields of a gRPC call."""
        name = tenant = b""
        if trusted or self._anybody:
            for field in fields:
                if field[0] == self._class_name:
                    name = name or field[1]
                elif field[0] == self._tenant_name:
                    tenant = tenant or field[1]
        return self._asking(name, tenant, bytes_, ends_at)

    def _asking(self, name: bytes, tenant: bytes, bytes_: int, ends_at: float) -> Asking:
        kind, rank = self._classes.get(name.lower(), (0, 0))
        return Asking(kind, rank, _bounded(tenant).decode("latin-1"), bytes_, ends_at)


def _bounded(tenant: bytes) -> bytes:
    """Return a name of at most MOST_NAME_BYTES that is no other tenant's: of a longer one what follows is hashed.

    A line feed stands between, which no field holds: nobody can call itself so.
    """
    if len(tenant) <= MOST_NAME_BYTES:
        return tenant
    digest = sha256(tenant).hexdigest()[:32].encode()
    return tenant[: MOST_NAME_BYTES - len(digest) - 1] + b"\n" + digest


def kinds_of(policy: Admission) -> tuple[str, ...]:
    """Return the names of the classes, in the order of their places in the metrics; the first is of those without."""
    return (DEFAULT_KIND, *sorted(policy.priority.classes))


def _line(name: bytes) -> re.Pattern[bytes] | None:
    if not name:
        return None
    return re.compile(rb"\r\n%s:[ \t]*([^\r]*?)[ \t]*\r" % re.escape(name), re.IGNORECASE)
