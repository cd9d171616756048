"""Faults that warmroute injects into its own data path."""
