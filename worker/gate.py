"""The warm gate of one model: closed until a warm-up run has succeeded, then open. There is nothing in between."""

from __future__ import annotations


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

    @property
    def is_open(self) -> bool:
        """True where requests may be executed."""
        return self._reason is None

    def open(self) -> None:
        """Let requests in: the model is proven warm."""
        self._reason = None

    def close(self, reason: str) -> None:
        """Keep requests out, and tell them ``reason``."""
        self._reason = reason

    def check(self) -> None:
        """Do nothing where the gate is open.

        Raises:
            GateClosedError: the gate is closed.
        """
        if self._reason is not None:
            raise GateClosedError(f"model {self._model!r} is not ready: {self._reason}", self._retry_after_s)
