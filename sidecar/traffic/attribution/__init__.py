"""What callers saw, joined with what workers did (docs/replay.md)."""
