"""What measures a start: synthetic models, the cold-start bench, the baseline fit. No worker imports any of it."""
