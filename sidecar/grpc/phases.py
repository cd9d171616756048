"""The phases of a call."""

from __future__ import annotations

from typing import Final

MATCHING: Final = 0
GATHERING: Final = 1
WAITING: Final = 2
ANSWERING: Final = 3
ENDING: Final = 4
OVER: Final = 5
"""The phases of a call, in order: MATCHING, its message has yet to say which model; GATHERING, more of its request is
waited for, which its model needs; WAITING for a worker's answer;
ANSWERING, the answer has begun; ENDING, it is complete but not all sent; OVER."""
