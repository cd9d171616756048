"""The warm gate of one model: closed until a warm-up run has succeeded, then open. There is nothing in between.

What is to be done about a model follows from two things: whether its files are in memory and verified (``ready``), and
whether what it depends on answers, and its warm-up runs succeeded once it is ready (``healthy``). Both gate ``warm``.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Step(StrEnum):
    """What is to be done about a model."""

    REFUSE = "refuse"  # nothing is loaded, and nothing may be yet: requests are told what is missing
    WAIT = "wait"  # what is loaded stays; once its dependencies answer again it is proven again
    TRIGGER = "trigger"  # begin to load, while its deadline has not passed
    IDLE = "idle"  # nothing: it serves


STEPS: Final = {
    (False, False): Step.REFUSE,
    (True, False): Step.WAIT,
    (False, True): Step.TRIGGER,
    (True, True): Step.IDLE,
}
"""By ``ready`` and ``healthy``. docs/lifecycle.md has it with what follows."""


class GateClosedError(Exception):
    """The model takes no requests; the text is the protocol's error message."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Gate:
    """Stands before a model's execution. Draining does not close it: what arrives meanwhile is still answered."""

    def __init__(self, model: str, retry_after_s: int = 1) -> None:
        self._model = model
        self._retry_after_s = retry_after_s
        self._reason: str | None = "not loaded yet"
        self._again_in_s: Callable[[], float] | None = None

    @property
    def is_open(self) -> bool:
        """True where requests may be executed."""
        return self._reason is None

    def open(self) -> None:
        """Let requests in: the model is proven warm."""
        self._reason = None

    def close(self, reason: str, again_in_s: Callable[[], float] | None = None) -> None:
        """Keep requests out, and tell them ``reason``, and after how many seconds it is worth asking again."""
        self._reason = reason
        self._again_in_s = again_in_s

    def check(self) -> None:
        """Do nothing where the gate is open.

        Raises:
            GateClosedError: the gate is closed.
        """
        if self._reason is not None:
            again_in_s = 0 if self._again_in_s is None else math.ceil(self._again_in_s())
            raise GateClosedError(
                f"model {self._model!r} is not ready: {self._reason}", max(self._retry_after_s, again_in_s)
            )
