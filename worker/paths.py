"""Names of files within a version's directory."""

from __future__ import annotations

MAX_FILES = 10_000
"""In one version's directory."""


PACKED = (".gz", ".zst")
"""What the names of files end with that are unpacked as they are loaded."""


def within(path: str) -> str | None:
    """Return ``path`` without a leading ``./``, or None where it is not a relative path that stays in its directory."""
    plain = path.removeprefix("./")
    return None if any(part in ("", ".", "..") for part in plain.split("/")) else plain
