"""How weights come from disk into memory."""
