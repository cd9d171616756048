"""The shared state in Redis, as the control process keeps it."""
