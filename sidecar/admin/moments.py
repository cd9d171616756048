"""Moments as the admin API shows them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(unix_s: float) -> str:
    """Return a Unix time as ISO 8601 says it, to the second, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
