"""What is kept of a body that is looked at before its request is sent on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.http1.model_field import ModelField

if TYPE_CHECKING:
    from sidecar.http1.steps import Course

COUNT_BYTES: Final = 65536
"""So much more is kept of one body before all that is kept in the process is counted again."""


class Look:
    """How far a body that is still coming was looked at.

    ``kept`` is what is kept back of it. ``copy`` is where the data of a body in chunks comes without its framing.
    ``course`` is that of a request whose body is waited for whole.
    """

    __slots__ = ("copy", "counted", "course", "field", "kept", "waiting")

    def __init__(self, copy: list[bytes] | None) -> None:
        self.field = ModelField()
        self.copy = copy
        self.kept = bytearray()
        self.counted = COUNT_BYTES
        self.course: Course | None = None
        self.waiting = True  # for the model

    def feed(self, out: bytes) -> None:
        """Look at what came of the body."""
        if self.copy is not None:
            out = b"".join(self.copy)
            self.copy.clear()
        if not self.field.done:
            self.field.feed(out)

    @property
    def much(self) -> bool:
        """True once for each COUNT_BYTES that are kept."""
        if len(self.kept) <= self.counted:
            return False
        self.counted = len(self.kept) + COUNT_BYTES
        return True
