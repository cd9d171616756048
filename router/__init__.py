"""The decisions of warmroute, pure: no sockets, no clock, no randomness of its own, no logging.

Everything here is a function of (state, event, now, rng). ``now`` is seconds on the host's monotonic clock (one
clock for every process of one host), ``rng`` is a callable that returns a float in [0, 1). This package imports the
standard library only; import contracts check it.
"""
