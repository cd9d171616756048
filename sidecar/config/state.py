"""What a sidecar's processes tell each other, and people, of the configuration in force."""

from __future__ import annotations

import msgspec


class Change(msgspec.Struct, frozen=True):
    """One field that differs; its values as people may see them, without secrets."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


class ConfigState(msgspec.Struct, frozen=True):
    """What the supervisor knows of the configuration. Moments are Unix seconds, ``asked_at`` monotonic ones.

    ``needs_restart`` is what the running processes cannot take over; ``applied`` what the last change did. Where
    ``would_break`` says what would be wrong with the rest by itself, nothing was taken over, and all of it needs one.
    ``problems`` are those of the source as it is now, where it cannot be used: then what ran before goes on.
    """

    revision: str = ""
    sequence: int = 0  # how many configurations were in force before this one
    source: str = ""
    reloadable: bool = False
    loaded_at: float = 0.0
    asked_at: float = 0.0  # when the last look at the source began
    bad_since: float | None = None
    problems: tuple[str, ...] = ()
    applied: tuple[Change, ...] = ()
    needs_restart: tuple[Change, ...] = ()
    would_break: tuple[str, ...] = ()
    taken: int = 0
    unchanged: int = 0
    withheld: int = 0
    refused: int = 0
