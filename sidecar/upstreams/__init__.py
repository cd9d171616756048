"""Connections to workers, probes of them, adapters for their signals."""
