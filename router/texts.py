"""Text that others wrote: what of it no terminal, log or table may get as it is."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1), separators of lines, and what turns the direction of text around."""


def spelled_out(text: str) -> str:
    """Return ``text`` with its control characters as they are escaped in Python: ``\\x1b`` for ESC."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
