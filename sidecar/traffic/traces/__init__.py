"""Traces: requests that others made once, to be made again at the same moments."""
