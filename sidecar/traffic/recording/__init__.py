"""Recording: a listener that passes bytes through and writes down what requests they were (docs/replay.md)."""
