"""Two targets on one trace: what differs between them, and what cannot be told (docs/replay.md)."""
