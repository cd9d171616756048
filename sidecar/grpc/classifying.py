"""The shape class of a call: what its metadata name, else its batch, else its length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.http1.keys import KeySource

if TYPE_CHECKING:
    from router.policy import ShapePolicy
    from sidecar.grpc.reading import Beginning
    from sidecar.http2.hpack import Field


class CallClasses:
    """The shape classes of one model. ``read``: calls are told apart by what their first message begins with."""

    __slots__ = ("_batches", "_lengths", "_names", "_source", "read")

    def __init__(self, policy: ShapePolicy) -> None:
        self._names = {name.encode(): name for name, _ in policy.classes}
        self._source = None if policy.header is None else KeySource(policy.header)
        self._lengths = [(name, most) for name, most in policy.classes if most is not None]
        self._batches = policy.batches
        self.read = bool(self._lengths or self._batches)

    def class_of(self, fields: list[Field], beginning: Beginning | None) -> str:
        """Return a call's class: the one that its field names, else the first that takes its batch or its length."""
        if self._source is not None:
            named = self._source.of_metadata(fields)
            if named is not None:
                return self._names.get(named, "")
        if beginning is None:
            return ""
        if beginning.batch >= 0 and self._batches:
            return next((name for name, most in self._batches if beginning.batch <= most), "")
        if beginning.length >= 0:
            return next((name for name, most in self._lengths if beginning.length <= most), "")
        return ""
