"""Adapters: from what some server says of itself to the words of the router. One small class per dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from router.model import State


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from asking a server. ``status`` is None where nothing did, and ``error`` then says why."""

    status: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Signal:
    """What an answer says of a replica: its state, and why where it is not warm."""

    state: State
    reason: str = ""


class SignalAdapter(Protocol):
    """Reads one dialect of a server's signals. Pure: it is given an answer and returns a signal, and never raises."""

    name: str

    def read(self, answer: Answer) -> Signal:
        """Return what ``answer`` says of the replica that was asked about."""


class HttpReadiness:
    """Readiness by status code: ``/v2/health/ready``, ``/v2/models/NAME/ready``, ``/health`` or anything alike.

    A 2xx is ready. Not ready is spelled differently: Triton answers 400, MLServer and most others 503, some 429 while
    they are full. All of these mean "not now". A redirect is not followed, since whoever is behind it is not the
    endpoint; where the path or the permission is wrong, the reason says so, because waiting will not help. Bodies are
    not read: implementations disagree about them.
    """

    name = "http-readiness"

    def read(self, answer: Answer) -> Signal:
        """Return ``warm`` or, with the reason, ``loading``."""
        status = answer.status
        if status is None:
            return Signal(State.LOADING, f"no answer: {answer.error}")
        if 200 <= status < 300:
            return Signal(State.WARM)
        if status in (404, 405, 501):
            return Signal(State.LOADING, f"HTTP {status}: the server does not know this path; check probe.path")
        if status in (401, 403):
            return Signal(State.LOADING, f"HTTP {status}: the server does not let us ask")
        if 300 <= status < 400:
            return Signal(State.LOADING, f"HTTP {status}: a redirect is no answer")
        return Signal(State.LOADING, f"not ready (HTTP {status})")
