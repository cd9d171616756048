"""Errors that are answered as the Open Inference Protocol wants them: ``{"error": "..."}`` and a status."""

from __future__ import annotations

from typing import Final

OUT_OF_MEMORY: Final = "out of memory; give the worker more, or have it serve or be asked less"


class RequestError(Exception):
    """A request that is answered with an error; the text is what the caller reads."""

    def __init__(
        self, message: str, status: int = 400, retry_after_s: int | None = None, *, overdue: bool = False
    ) -> None:
        """``overdue``: the time that the request itself gave is over, so the answer says nothing of the worker."""
        super().__init__(message)
        self.overdue = overdue
        self.status = status
        self.retry_after_s = retry_after_s
