"""The phases of a call."""

from __future__ import annotations

from typing import Final

MATCHING: Final = 0
WAITING: Final = 1
ANSWERING: Final = 2
ENDING: Final = 3
OVER: Final = 4
"""The phases of a call, in order: MATCHING, its message has yet to say which model; WAITING for a worker's answer;
ANSWERING, the answer has begun; ENDING, it is complete but not all sent; OVER."""
