"""What a fault of a process is: which kind, of which process, for how long."""

from __future__ import annotations

from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FOR_S = 3600.0
"""Longest life of a fault, seconds."""

DEFAULT_FOR_S = 60.0

Memo = dict[str, int | float | str]
"""What :meth:`Act.end` must know to undo a fault, in any process that runs as the same user."""


class ProcessFaultError(Exception):
    """A fault that is refused or could not begin; the text is one line and says what would help."""


class ProcessFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault of one process.

    ``kind`` is one of ``KINDS``. ``pid`` names the process; ``ticks``, its start as :func:`sidecar.pids.start_ticks`
    gives it, tells it from another that got the same pid later (0: whichever runs when the fault begins). A state store
    is named by ``url`` as well (``unix:///PATH``, ``redis://127.0.0.1:PORT``); without ``pid`` it is the process that
    serves there. ``for_s`` is the lifetime in seconds, after which it ends by itself. ``share`` belongs to kind
    ``slow``, ``headroom_mb`` to ``out_of_memory``.
    """

    kind: str
    pid: int = 0
    for_s: float = DEFAULT_FOR_S
    ticks: int = 0
    url: str = ""
    share: float | None = None
    headroom_mb: float | None = None


class Reach(IntEnum):
    """How far a process can be reached."""

    NOTHING = 0
    """It is not there."""
    PROCESS = 1
    """By its pid."""
    SOCKET = 2
    """Also by the address that it serves at."""
    ANSWERS = 3
    """And it answers there."""


class Act(Protocol):
    """One kind's doing: the keeper calls :meth:`begin` once, :meth:`step` when that is due, and then :meth:`end`."""

    SUBJECT: ClassVar[str]
    """What of the process it has to itself: no two faults in force have the same one of the same process."""
    NEEDS: ClassVar[Reach]
    """How far the process must be reached for it to begin; where only a URL names that, by its socket at least."""
    LEAVES: ClassVar[Reach]
    """How far the process can be reached while it is in force."""
    PARAMETERS: ClassVar[tuple[str, ...]]
    """The fields of ProcessFault beyond the common ones that are this kind's."""
    UNDONE: ClassVar[str]
    """What becomes of the process when the fault ends, for people."""
    LASTS: ClassVar[bool]
    """False of what is over once it has begun."""

    def begin(self, fault: ProcessFault) -> Memo:
        """Bring the fault about; return what is needed to undo it.

        Raises:
            ProcessFaultError: it cannot be; nothing was changed.
        """

    def step(self, memo: Memo, now: float) -> float | None:
        """Do what is due at ``now`` (monotonic seconds); return when to be called again, None for never."""

    def end(self, memo: Memo) -> bool:
        """Undo the fault; may be called again. Return False where the process is gone, so that nothing is to undo.

        Raises:
            ProcessFaultError: it could not be undone; the text says what is left and what to do.
        """


def in_the_way(act: Act, one: Act, *, by_url: bool) -> bool:
    """Whether ``one``, in force at a process, keeps ``act`` from beginning there; ``by_url``: only that names it."""
    needs = max(act.NEEDS, Reach.SOCKET) if by_url else act.NEEDS
    return act.SUBJECT == one.SUBJECT or needs > one.LEAVES


def checked(fault: ProcessFault, kinds: Mapping[str, Act]) -> Act:
    """Return the kind of a fault whose fields are in order.

    Raises:
        ProcessFaultError: one is not; the text names it.
    """
    kind = kinds.get(fault.kind)
    if kind is None:
        raise ProcessFaultError(f"no process fault of kind {fault.kind!r}; there are: {', '.join(sorted(kinds))}")
    if not isfinite(fault.for_s) or not 0 < fault.for_s <= MAX_FOR_S:
        raise ProcessFaultError(f"{fault.kind}: for_s {fault.for_s:g}: must be above 0, at most {MAX_FOR_S:g} seconds")
    for field in ("share", "headroom_mb"):
        value: float | None = getattr(fault, field)
        if value is not None and field not in kind.PARAMETERS:
            raise ProcessFaultError(f"{fault.kind}: {field} does not belong to it; leave it out")
        if value is not None and not isfinite(value):
            raise ProcessFaultError(f"{fault.kind}: {field} {value:g}: must be a number")
    return kind
